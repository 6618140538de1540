"""The keys of cached batches, and the positions that are kept with them.

A key is a digest of everything that determines a batch: the stream, and the position before it.
Steps are left out. Where nothing is shuffled, epochs are counted from the first one that is like
this one, so that a later epoch finds the batches of an earlier one.
"""

from __future__ import annotations

import json
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from streamrec.pipeline.batch.batch import Batch
    from streamrec.pipeline.run_plan import RunPlan
    from streamrec.plan.order.coordinates import Structured
    from streamrec.plan.state.position import Position

WITHOUT_EFFECT = frozenset(
    {
        # The shards are in a key by their versions, and what is resolved of the others as it is.
        *("source", "index", "lanes", "batch_size", "remainder"),
        # The end of the run is told by its epoch.
        *("epochs", "steps_per_epoch"),
        *("memory_budget", "max_record_bytes", "max_bytes", "max_pixels"),
        *("max_concurrency", "prefetch", "stall_timeout"),
        *("transform", "quarantine", "cache", "storage_options"),
    }
)
"""The settings that are in no key, as they do not change a batch or are in it in another form."""


class BatchKeys:
    """The keys of a run's batches.

    Args:
        plan: The plan of the run.
        versions: The keys of the shards' versions, in the shards' order.
    """

    def __init__(self, plan: RunPlan, versions: Sequence[str]) -> None:
        self._stream = _digest_of(plan, versions)
        self._epochs = _epochs_since_like(plan)
        self._end = None if plan.end_epoch is None else plan.end_epoch - self._epochs
        self._extents = _first_extents(plan, self._epochs) - _first_extents(plan, 0)

    def __repr__(self) -> str:
        return f"<BatchKeys, {self._epochs} epochs later>"

    def key(self, before: Position) -> str:
        """Return the key of the batch behind a position: 32 hexadecimal digits."""
        position = self._earlier(before)
        numbers = json.dumps([self._end, position.step, position.since, position.origin])
        known = self._stream, numbers.encode(), position.rows.tobytes()
        return blake2b(b"\n".join(known), digest_size=16).hexdigest()

    def kept(self, batch: Batch) -> Batch:
        """Return a batch as it is kept: with the position and epoch of the earliest one like it."""
        position = self._earlier(batch.next_position)
        return replace(batch, epoch=batch.epoch - self._epochs, next_position=position)

    def restored(self, batch: Batch, before: Position) -> Batch:
        """Return a kept batch as the one behind a position."""
        kept = batch.next_position
        position = replace(
            before,
            step=before.step + 1,
            epoch=kept.epoch + self._epochs,
            lanes=self._moved(kept.lanes, 1),
            sizes=kept.sizes,
            sources=kept.sources,
        )
        return replace(batch, epoch=batch.epoch + self._epochs, next_position=position)

    def _earlier(self, position: Position) -> Position:
        """Return the position that stands for all of those with equal batches behind them."""
        since, step = None, 0
        if position.since is not None:
            since = position.since[0] - self._epochs, 0
            step = position.step - position.since[1]
        return replace(
            position,
            step=step,
            since=since,
            run_epoch=since[0] if since else 0,
            epoch=position.epoch - self._epochs,
            lanes=self._moved(position.lanes, -1),
            origin=position.origin if position.since else position.origin - self._epochs,
        )

    def _moved(self, lanes: Structured, direction: int) -> Structured:
        if not self._epochs or not len(lanes):
            return lanes
        moved = lanes.copy()
        moved["extent"] += direction * self._extents
        return moved


def _digest_of(plan: RunPlan, versions: Sequence[str]) -> bytes:
    """Digest everything but the position: shards, order, settings, rank, and the release."""
    from streamrec import __version__  # it imports this module

    position = plan.position
    named = {
        "version": __version__,
        "fingerprint": position.fingerprint.to_dict(),
        "rank": [position.rank, position.world_size, plan.batch_size, plan.remainder],
        "settings": plan.settings.model_dump(
            mode="json", exclude={*WITHOUT_EFFECT}, warnings=False
        ),
        "shards": list(versions),
    }
    return blake2b(json.dumps(named).encode()).digest()


def _epochs_since_like(plan: RunPlan) -> int:
    """Return the number of epochs since the first one in which a run has equal batches."""
    if plan.end_epoch is None or plan.settings.has_windows or plan.draws is not None:
        return 0
    since = plan.position.since
    begin = plan.position.origin if since is None else since[0]
    return begin - begin % plan.orders[0].period


def _first_extents(plan: RunPlan, epoch: int) -> npt.NDArray[np.int64]:
    order = plan.orders[0]
    return np.array([order.first(lane, epoch) for lane in plan.own_lanes], np.int64)
