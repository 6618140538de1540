"""The records of a step where only reading tells them: mixes, filters, packs, no index."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from streamrec.config.dataset import NamingPack
from streamrec.errors import ConfigError
from streamrec.flow.channel import EndOfStream
from streamrec.pipeline.lane.stages import NAMES
from streamrec.streams.ranks import Rank
from streamrec.streams.session import ThreadSession
from streamrec.streams.which_asked import point_in, range_of, world_size_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streamrec.config import DatasetSettings
    from streamrec.pipeline.batch.batch import Batch
    from streamrec.plan.state.resume_point import ResumePoint


class ReadRecord(NamedTuple):
    """A record's place in a run that was read, and its place in the shards."""

    step: int
    rank: int
    row: int
    """The row of the batch, from 0."""
    shard: str
    """The shard's URL."""
    record: int
    """The record's number in the shard, from 0."""
    component: str | None = None
    """The component's name; ``None``: nothing is mixed."""


def read_places(
    settings: DatasetSettings,
    steps: int | range,
    *,
    rank: int | None,
    world_size: int | None,
    state: Any = None,
) -> list[ReadRecord]:
    """Read a stream from a state on, and return the places of the records of some steps.

    All that comes between the state and the steps is read, so give the last state before them.

    Args:
        settings: The settings of the stream.
        steps: The step, or a range of at most 100,000 steps, counted from the very start.
        rank: The rank; ``None``: all of them, one after the other.
        world_size: The number of ranks; ``None``: that of the state, or 1.
        state: A state, or the states of all ranks; ``None``: the run began at the beginning.

    Returns:
        A row for each record, those of packs too. A row that a map or a transform has made of
        several records, padding, and the masked rows of damaged and excluded records are left out.

    Raises:
        ConfigError: The settings promise no order, or the state is behind the first step.
        StateError: The state does not belong to this stream.
        StoreError: The data cannot be read.
        DataError: A record is damaged, and ``on_corrupt`` is ``"raise"``.
    """
    wanted = range_of(steps)
    world_size = world_size_of(world_size, state)
    if not settings.ordered:
        raise ConfigError("with ordered=False each run has another order; look into its audit log")
    ranks = range(world_size) if rank is None else range(rank, rank + 1)
    return [
        place
        for number in ranks
        for place in _of_rank(
            settings, wanted, Rank(number, world_size), point_in(state, number, world_size)
        )
    ]


def _of_rank(
    settings: DatasetSettings, steps: range, rank: Rank, point: ResumePoint
) -> Iterator[ReadRecord]:
    if point.step > steps.start:
        raise ConfigError(
            f"the state is that of step {point.step}, after step {steps.start}; give an earlier one"
        )
    with closing(ThreadSession(_for_places(settings), rank, point)) as session:
        shards = session.settings["shards"]
        for batch in _batches(session, steps.stop):
            yield from _rows(batch, steps, rank.rank, shards, is_single=settings.batch_size is None)


def _for_places(settings: DatasetSettings) -> DatasetSettings:
    """Return settings of the same order that read little ahead, and name each record of a pack."""
    # Few steps are wanted, and the stream may have no end.
    changes: dict[str, Any] = {"prefetch": 1}
    if settings.pack is not None:
        # A transform need not know of the columns that name the records.
        changes |= {"pack": NamingPack(**vars(settings.pack)), "transform": None}
    return settings.model_copy(update=changes)


def _batches(session: ThreadSession, stop: int) -> Iterator[Batch]:
    """Yield the batches of one run after the other, until one has the last step before ``stop``."""
    step, ends = 0, 0
    # A run without a batch is followed by others without end.
    while step < stop and ends < 2:
        try:
            batch = session.receive()
        except EndOfStream:
            ends += 1
            session.subscribe()
            continue
        step, ends = batch.next_position.step, 0
        yield batch


def _rows(
    batch: Batch, steps: range, rank: int, shards: list[str], *, is_single: bool
) -> Iterator[ReadRecord]:
    after, count = batch.next_position.step, len(batch.origin.shards)
    names = batch.source.tolist() if batch.components else [None] * count
    # In place of an excluded or damaged record there is a masked row.
    is_there = [True] * count if batch.mask is None else batch.mask.tolist()
    for row, number, record in _named(batch):
        # Without batches each record is a step of one row.
        step, place = (after - count + row, 0) if is_single else (after - 1, row)
        if is_there[row] and number >= 0 and step in steps:
            yield ReadRecord(step, rank, place, shards[number], record, names[row])


def _named(batch: Batch) -> Iterator[tuple[int, int, int]]:
    """Yield the row, the shard's number and the record's number of each record, also in packs."""
    shards, records = batch.origin
    if NAMES[0] in batch:
        shards, records = (batch[name] for name in NAMES)
    # A row for each record; a pack has several in a row.
    rows = np.arange(len(shards)).repeat(shards.size // max(1, len(shards)))
    named = (rows, shards.ravel(), records.ravel())
    yield from zip(*(column.tolist() for column in named), strict=True)
