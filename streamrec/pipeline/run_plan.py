"""What one rank is to deliver in a run, and where its lanes begin and end."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from typing import TYPE_CHECKING

import numpy as np

from streamrec.errors import MalformedPosition
from streamrec.pipeline.functions import NONE, Functions
from streamrec.pipeline.quarantine import keeps_placeholders
from streamrec.pipeline.stages import Coordinates
from streamrec.plan.buckets import Buckets
from streamrec.plan.position import EXTENT, WINDOW, Position
from streamrec.plan.record_order import RecordOrder
from streamrec.plan.record_run import RecordRun
from streamrec.plan.window import Windows

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from streamrec.config import DatasetSettings
    from streamrec.plan.mixture import Draws
    from streamrec.plan.order import Extent, Order
    from streamrec.plan.ranges import MemoryPlan
    from streamrec.plan.record_order import ChunkWindows
    from streamrec.types import Components

__all__ = ["RunPlan"]

HOPELESS = 4
"""How many times all the shards of a lane are to pass a filter in vain before it is an error."""


@dataclass(frozen=True)
class RunPlan:
    """What one rank is to deliver."""

    settings: DatasetSettings
    orders: tuple[Order, ...]
    """One for each component of a mix, or for each open shard of a lane; else a single one."""
    position: Position
    memory: MemoryPlan
    batch_size: int | None
    remainder: str
    functions: Functions = NONE
    windows: Windows | ChunkWindows | None = None
    """``None``: records leave their lanes as they come."""
    draws: Draws | None = None
    """``None``: nothing is mixed."""
    components: Components | None = None
    """``None``: nothing is mixed."""
    is_suspicious: bool = False
    """Whether bytes have come that were corrupt."""

    @property
    def checks_late(self) -> bool:
        """Whether large payloads are checked where they are decoded, and not where they are found.

        If one of them is corrupt the run begins again before its batch, with suspicion. So this is
        for runs that read nothing before they decode it, and that can begin again.
        """
        settings = self.settings
        if settings.on_corrupt != "raise" or not settings.ordered or self.is_suspicious:
            return False
        reads_before = self.functions.filter is not None or settings.pack is not None
        return settings.check_crc and not reads_before

    @cached_property
    def by_record(self) -> RecordRun | None:
        """The arithmetic of a run in the order by record, as long as its counts are known."""
        if self.position.since is None:
            return None
        order = self.orders[0]
        assert isinstance(order, RecordOrder)
        assert not isinstance(self.windows, Windows)
        return RecordRun(
            order,
            self.windows,
            self.own_lanes,
            self.batch_size,
            *self.position.since,
            self.end_epoch,
            self.remainder,
        )

    @property
    def buckets(self) -> Buckets | None:
        """Which of a window's records go into which batch; ``None``: it does not matter."""
        count, rows = self.settings.length_buckets, self.position.fingerprint.global_batch
        if count is None or rows is None:
            return None
        return Buckets(count, rows, self.lanes, self.settings.seed)

    @property
    def starts(self) -> npt.NDArray[np.int64]:
        """Where the lanes begin, as in a position by shard."""
        run = self.by_record
        return self.position.lanes if run is None else run.starts(self.position.step)

    @property
    def points(self) -> npt.NDArray[np.int64]:
        """int64 ``[3, feeds]``: the extent, byte and record from which each feed is read."""
        return self.position.points if self.by_record is None else self.starts[:WINDOW]

    def rows(self, step: int) -> int:
        """The records of that step's batch, as far as they are there; 1 for single records."""
        return self.batch_size or 1 if self.by_record is None else self.by_record.rows(step)

    @property
    def own_lanes(self) -> range:
        """The numbers of the rank's lanes."""
        return range(self.position.rank, self.lanes, self.position.world_size)

    @property
    def lanes(self) -> int:
        """How many there are, of all ranks."""
        return self.orders[0].lanes

    @cached_property
    def feeds(self) -> list[tuple[Order, int]]:
        """The order and lane that each feed is of: order after order, each own lane."""
        return [(order, lane) for order in self.orders for lane in self.own_lanes]

    @property
    def has_sources(self) -> bool:
        """Whether each lane draws from several feeds: of a mix, or of several shards at once."""
        return self.position.sources.size > 0

    @property
    def turns(self) -> Windows | None:
        """How long the open shards' turns are; ``None``: a lane has one shard open at a time."""
        windows = self.windows
        return windows if isinstance(windows, Windows) and windows.open_shards > 1 else None

    @property
    def keeps_placeholders(self) -> bool:
        """Whether a damaged record becomes padding, so that those behind it keep their places."""
        return keeps_placeholders(self.settings, self.batch_size)

    @property
    def end_epoch(self) -> int | None:
        """The epoch of records before which the run ends; ``None``: it is not ended by records."""
        epochs, is_endless = (
            self.settings.epochs,
            self.draws and self.settings.exhausted == "repeat",
        )
        if epochs is None or self.settings.steps_per_epoch is not None or is_endless:
            return None
        return self.position.run_epoch + epochs

    @property
    def end_step(self) -> int | None:
        """The step at which the run ends; ``None``: it is not ended by steps."""
        epochs, steps = self.settings.epochs, self.settings.steps_per_epoch
        if epochs is None or steps is None:
            return self.by_record.end_step if self.by_record else None
        return (self.position.run_epoch + epochs) * steps

    def extents(self, feed: int, number: int) -> Iterator[Extent]:
        """The feed's extents from ``number`` on, to the end of the run."""
        order, lane = self.feeds[feed]
        endless = order.extents(lane, number)
        end = self.end_epoch
        return endless if end is None else takewhile(lambda extent: extent.epoch < end, endless)

    def lane_end(self, lane: int) -> Coordinates:
        """Where the lane stands after the run."""
        ends = [self.feed_end(order, lane) for order in self.orders]
        if not self.has_sources:
            return ends[0]
        return Coordinates(self.end_epoch or 0, 0, 0, sources=tuple(end[:3] for end in ends))

    def feed_end(self, order: Order, lane: int) -> Coordinates:
        """Where a feed of that order and lane stands after the run."""
        end = self.end_epoch
        return Coordinates(0 if end is None else order.first(lane, end), 0, 0)

    def epoch(self, feed: int) -> int:
        """The epoch in which a feed stands."""
        return self.epoch_of(feed, int(self.points[EXTENT, feed]))

    def epoch_of(self, feed: int, extent: int) -> int:
        """The epoch of a feed's extent of that number."""
        order, lane = self.feeds[feed]
        return order.extent(lane, extent).epoch

    def check(self) -> None:
        """Refuse a position that contradicts itself, or the index.

        Raises:
            StateError: No run of this plan was ever there.
        """
        order = self.orders[0]
        if self.by_record is not None:
            self.by_record.check(self.position.step)
        elif isinstance(order, RecordOrder):
            order.check(self.own_lanes, self.position.lanes)
        elif self.turns is not None:
            self._check_open_shards()

    def _check_open_shards(self) -> None:
        epochs = np.array([self.epoch(feed) for feed in range(len(self.feeds))])
        lowest = epochs.reshape(len(self.orders), -1).min(axis=0)
        if (lowest != self.position.lanes[EXTENT]).any():
            raise MalformedPosition(
                "the state says that a lane is in another epoch than the shards it has open; load "
                "a state that was saved by this stream"
            )

    def patience(self, lane: int) -> int | None:
        """After how many extents that give nothing there is no hope; ``None``: the run ends.

        Of lanes with several shards open, after how many epochs.
        """
        if self.end_epoch is not None:
            return None
        if self.turns is not None:
            return HOPELESS * self.lanes
        return HOPELESS * max(order.reach(lane) for order in self.orders)

    def next_run(self, position: Position) -> Position:
        """Where the run after this one begins, when this one has ended at ``position``."""
        epoch = position.run_epoch + (self.settings.epochs or 0)
        if self.end_epoch is None:
            return replace(position, run_epoch=epoch)
        return Position.start(
            position.fingerprint,
            [order.first(lane, epoch) for order, lane in self.feeds],
            rank=position.rank,
            world_size=position.world_size,
            epoch=epoch,
            step=position.step,
        )
