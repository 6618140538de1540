"""The records of a step where only reading tells them: mixes, filters, packs, no index.

And the steps and the states that a question about the order names.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from streamrec.config.arguments import count_of, plain_integer
from streamrec.config.record_choice import NamingPack
from streamrec.errors import ConfigError, MalformedPosition
from streamrec.flow.channel import EndOfStream
from streamrec.plan.state.position import Position
from streamrec.plan.state.resume_point import FIELDS, Beginning, for_rank, read_resume_point
from streamrec.streams.ranks import Rank

if TYPE_CHECKING:
    from streamrec.config import DatasetSettings
    from streamrec.pipeline.batch.batch import Batch
    from streamrec.plan.state.resume_point import ResumePoint
    from streamrec.streams.session import ThreadSession

ENDED = "ended"
"""What a loader's state has beside a stream's."""
MOST_STEPS = 100_000
"""Steps of a call, as all their records are in the memory at once."""


def range_of(steps: object) -> range:
    """Return the steps of a call.

    Raises:
        ConfigError: They are not steps, or too many.
    """
    step = plain_integer(steps)
    found = range(step, step + 1) if isinstance(step, int) else steps
    if not isinstance(found, range) or found.step != 1 or found.start < 0:
        raise ConfigError(
            f"steps are a number from 0 up, or a range of successive ones, not {steps!r}"
        )
    if found.stop < found.start:
        raise ConfigError(f"{found} ends before it begins; give the first step, and the one behind")
    if len(found) > MOST_STEPS:
        raise ConfigError(f"these are {len(found)} steps; give at most {MOST_STEPS} at a time")
    return found


def point_in(state: Any, rank: int, world_size: int) -> ResumePoint:
    """Return the resume point of a rank in a state, or in those of all ranks."""
    if state is None:
        return Beginning()
    try:
        states = list(_states_in(state))
    except RecursionError:
        states = []
    if not states:
        raise MalformedPosition(
            "this is not a state of streamrec, nor is one in it; give what state_dict() returned, "
            "or a list of those of all ranks"
        )
    return for_rank([read_resume_point(one) for one in states], rank, world_size)


def _states_in(data: Any) -> Iterator[dict[str, Any]]:
    """Yield the states in a checkpoint; that of a loader is a text of JSON."""
    if isinstance(data, Mapping):
        if "version" in data and ("fingerprint" in data or data.keys() <= FIELDS | {ENDED}):
            yield {name: value for name, value in data.items() if name != ENDED}
            return
        data = list(data.values())
    elif isinstance(data, str) and data.startswith("{"):
        with suppress(ValueError):
            data = [json.loads(data)]
    # Not any collection: a checkpoint has tensors, of which each number would be looked at.
    if isinstance(data, list | tuple):
        for part in data:
            yield from _states_in(part)


def ends_in(state: Any) -> dict[str, Any]:
    """Return the settings of the ends of runs that a state tells, or that of the first rank."""
    try:
        points = (read_resume_point(one) for one in _states_in(state))
        texts = [point.ends for point in points if isinstance(point, Position) and point.ends]
    except RecursionError:
        texts = []
    return dict(json.loads(texts[0])) if texts else {}


def world_size_of(world_size: object, state: Any) -> int:
    """Return the number of ranks of a call; ``None`` stands for that of the state, or 1.

    Raises:
        ConfigError: It is not a number from 1 up.
    """
    if world_size is not None:
        return count_of(world_size, "world_size", 1)
    try:
        points = [read_resume_point(one) for one in _states_in(state)]
    except RecursionError:
        points = []
    sizes = {point.world_size for point in points if isinstance(point, Position)}
    return sizes.pop() if len(sizes) == 1 else 1


RUNS = 2
"""Runs that are read one after the other: a state may be that of a run's end."""


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
        ConfigError: The settings promise no order, the state is behind the first step, or the last
            step comes after the run of the state and the next one.
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
    from streamrec.streams.session import ThreadSession  # what reads takes time to import

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
    """Yield the batches of a run and the next, until one has the last step before ``stop``.

    Raises:
        ConfigError: Both runs end before that.
    """
    step, ends = 0, 0
    while step < stop:
        try:
            batch = session.receive()
        except EndOfStream:
            ends += 1
            if ends == RUNS:
                raise ConfigError(
                    f"the run of this state and the next end before step {stop - 1}, at step "
                    f"{step}; give a state of the run that has it, or ask for earlier steps"
                ) from None
            session.subscribe()
            continue
        step = batch.next_position.step
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
    from streamrec.pipeline.lane.stages import NAMES

    if NAMES[0] in batch:
        shards, records = (batch[name] for name in NAMES)
    # A row for each record; a pack has several in a row.
    rows = np.arange(len(shards)).repeat(shards.size // max(1, len(shards)))
    named = (rows, shards.ravel(), records.ravel())
    yield from zip(*(column.tolist() for column in named), strict=True)
