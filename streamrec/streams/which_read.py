"""The records of a step where only reading tells them: mixes, filters, packs, no index."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

from streamrec.config.arguments import count_of
from streamrec.errors import ConfigError
from streamrec.flow.channel import EndOfStream
from streamrec.streams.ranks import Rank
from streamrec.streams.session import ThreadSession
from streamrec.streams.which import point_in, range_of

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


def read_places(
    settings: DatasetSettings,
    steps: int | range,
    *,
    rank: int | None,
    world_size: int,
    state: Any = None,
) -> list[ReadRecord]:
    """Read a stream from a state on, and return the places of the records of some steps.

    All that comes between the state and the steps is read, so give the last state before them.

    Args:
        settings: The settings of the stream.
        steps: The step, or a range of at most 100,000 steps, counted from the very start.
        rank: The rank; ``None``: all of them, one after the other.
        world_size: The number of ranks.
        state: A state, or the states of all ranks; ``None``: the run began at the beginning.

    Returns:
        A row for each record, those of packs too. A row that a map or a transform has made of
        several records, padding, and the masked rows of damaged records are left out.

    Raises:
        ConfigError: The settings promise no order, or the state is behind the first step.
        StateError: The state does not belong to this stream.
        StoreError: The data cannot be read.
        DataError: A record is damaged, and ``on_corrupt`` is ``"raise"``.
    """
    wanted = range_of(steps)
    count_of(world_size, "world_size", 1)
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
    # Few steps are wanted, and the stream may have no end.
    few = settings.model_copy(update={"prefetch": 1})
    with closing(ThreadSession(few, rank, point)) as session:
        shards = session.settings["shards"]
        for batch in _batches(session, steps.stop):
            yield from _rows(batch, steps, rank.rank, shards, is_single=settings.batch_size is None)


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
    numbers, records = batch.origin
    after = batch.next_position.step
    named = zip(numbers.tolist(), records.tolist(), strict=True)
    for row, (number, record) in enumerate(named):
        # Without batches each record is a step of one row.
        step, place = (after - len(records) + row, 0) if is_single else (after - 1, row)
        if number >= 0 and step in steps:
            yield ReadRecord(step, rank, place, shards[number], record)
