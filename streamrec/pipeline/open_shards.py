"""The records of a lane that has several shards open at once: some of each of them, in turn.

Each of its open shards is a sequence of shards. They go through the epochs together: what is of the
next one waits until all of them are through.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from streamrec.pipeline.range_queue import Turns
from streamrec.pipeline.stages import OWN, Coordinates, RecordSpan
from streamrec.plan.order import Extent
from streamrec.plan.window import FRAME_OVERHEAD

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from streamrec.pipeline.range_queue import Progress, RangeQueue
    from streamrec.pipeline.record_reader import RecordReader
    from streamrec.plan.window import Windows
    from streamrec.types import Indices, RecordRows

__all__ = ["OpenShard", "OpenShards", "Turn"]

SHARE_OF_LATER = 1e-4
"""Of an open shard that is through the epoch: its next records are needed, but last of all."""

Point: TypeAlias = tuple[int, ...]
"""Extent, byte offset and record number: where an open shard's next record is looked for."""


class OpenShard:
    """One of a lane's sequences of shards.

    Args:
        reader: Where its records come from.
        feed: Its ranges.
        point: Where the lane stands in it.
        epoch_of: The epochs of its extents, by their numbers.
    """

    def __init__(
        self, reader: RecordReader, feed: RangeQueue, point: Point, epoch_of: Callable[[int], int]
    ) -> None:
        self.reader = reader
        self.point = point
        """Behind the last record that was given."""
        self.epoch: float = epoch_of(point[0])
        """Of what it gives next; infinite where nothing comes any more."""
        self._feed = feed
        self._feed.share = SHARE_OF_LATER  # until it is said whose turn it is
        self._epoch_of = epoch_of
        self._rest: RecordSpan | None = None

    def pop(self) -> RecordSpan | None:
        """Its next records of this epoch, if they are there.

        Raises:
            StreamrecError: Nothing comes, for this reason.
        """
        if self._rest is None:
            item = self.reader.pop()
            if not isinstance(item, Coordinates):
                return item
            self.point = item[:3]
            self.epoch = inf if self.reader.ended else self._epoch_of(item.extent)
            return None
        rest, self._rest = self._rest, None
        return rest

    def give(self, span: RecordSpan, count: int) -> RecordSpan:
        """So many of the records that were popped; what is left of them comes again."""
        given = span
        if count < len(span):
            given, self._rest = span.cut(0, count), span.cut(count, None)
        self._feed.undrawn = 0 if self._rest is None else self._rest.rows.nbytes
        self.point = given.after(count - 1)[:3]
        return given

    def expect(self, until: Callable[[float], float] | None) -> None:
        """Say how many bytes the lane takes before so many of it; ``None``: none in this epoch."""
        self._feed.until = until


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """Records that one open shard gives in its turn, or some of them."""

    extent: Extent
    """Its epoch is that of the lane."""
    span: RecordSpan
    number: int
    """The turn's."""
    taken: Indices
    """int64 ``[rows]``: the bytes of frames that are taken in the turn behind each of them."""
    open_shard: int
    points: tuple[Point, ...]
    """Where the lane stands in all open shards; in this one, somewhere before these records."""

    def __len__(self) -> int:
        return len(self.span)

    @property
    def rows(self) -> RecordRows:
        """The records."""
        return self.span.rows

    @property
    def lengths(self) -> Indices:
        """int64 ``[rows]``: the sizes in the shard of the payloads."""
        return self.span.lengths

    @property
    def ends(self) -> Indices:
        """int64 ``[rows, numbers]``: where a lane stands whose last record was this one."""
        last = self.after(len(self) - 1).numbers
        ends = np.tile(np.array(last, np.int64), (len(self), 1))
        own = OWN + 3 * self.open_shard
        ends[:, own : own + 3] = self.span.ends[:, :3]
        ends[:, 1] = self.taken
        return ends

    def before(self, row: int) -> Coordinates:
        """Where a lane stands whose next record is this one."""
        frame = self.span.lengths.item(row) + FRAME_OVERHEAD
        return self._at(self.span.before(row), self.taken.item(row) - frame)

    def after(self, row: int) -> Coordinates:
        """Where a lane stands whose last record was this one."""
        return self._at(self.span.after(row), self.taken.item(row))

    def keep(self, kept: Indices, rows: RecordRows) -> Turn:
        """Those that a filter keeps, in the memory where they are then."""
        return replace(self, span=self.span.keep(kept, rows), taken=self.taken[kept])

    def _at(self, own: Coordinates, taken: int) -> Coordinates:
        points = (*self.points[: self.open_shard], own[:3], *self.points[self.open_shard + 1 :])
        return Coordinates(self.extent.epoch, taken, self.number, sources=points)


class OpenShards:
    """The records of one lane.

    Args:
        open_shards: Of the lane.
        windows: Say how long turns are.
        lane: The lane's number.
        start: Where it stands.
        end: Where a finite run leaves it; ``None``: the run goes on.
        progress: What the lane has, and what it needs.
    """

    def __init__(
        self,
        open_shards: Sequence[OpenShard],
        windows: Windows,
        lane: int,
        start: Coordinates,
        end: Coordinates | None,
        progress: Progress,
    ) -> None:
        self.ended = False
        """Whether nothing will come any more."""
        self.progress = progress
        """What the lane has, and what it needs; kept by the lane."""
        self._open_shards = open_shards
        self._windows = windows
        self._lane = lane
        self._epoch, self._end = start.extent, end
        self._turns = Turns(len(open_shards), number=start.record, taken=start.offset)
        self._expect()

    @property
    def component(self) -> int:
        """Which open shard the next record is of."""
        return self._turns.feed

    @property
    def refetched(self) -> int:
        """Faults that were gone when the bytes were read once more."""
        return sum(open_shard.reader.refetched for open_shard in self._open_shards)

    @property
    def waits_for(self) -> str:
        """The stage that the next records are in."""
        return self._open_shards[self.component].reader.waits_for

    def pop(self) -> Turn | Coordinates | None:
        """The next records; where the lane goes on when an epoch is over; nothing yet, or any more.

        Raises:
            StreamrecError: Nothing comes, for this reason.
        """
        while not self.ended:
            if all(open_shard.epoch != self._epoch for open_shard in self._open_shards):
                return self._end_epoch()
            open_shard = self._in_turn()
            span = open_shard.pop()
            if span is not None and len(span):
                return self._given(open_shard, span)
            if span is None and open_shard.epoch == self._epoch:
                return None
            self._expect()
        return None

    def _in_turn(self) -> OpenShard:
        """The open shard whose turn it is; those that are through the epoch have none."""
        if self._turns.taken >= self._limit():
            self._turns.go_on()
        while (open_shard := self._open_shards[self.component]).epoch != self._epoch:
            self._turns.go_on()
        self._turns.size = max(self._limit(), self.progress.record)
        return open_shard

    def _limit(self) -> int:
        """Bytes that end the turn."""
        return self._windows.turn(self._lane, self._turns.number)

    def _given(self, open_shard: OpenShard, span: RecordSpan) -> Turn:
        """What an open shard has, to the end of its turn."""
        points = tuple(one.point for one in self._open_shards)
        taken = self._turns.taken + np.cumsum(span.lengths + FRAME_OVERHEAD)
        count = min(len(span), int(np.searchsorted(taken, self._limit(), side="left")) + 1)
        self._turns.taken = taken.item(count - 1)
        extent = Extent(self._epoch, self._epoch, -1)
        given = open_shard.give(span, count)
        return Turn(extent, given, self._turns.number, taken[:count], self.component, points)

    def _end_epoch(self) -> Coordinates:
        """All open shards are through the epoch: where the lane goes on."""
        points = tuple(open_shard.point for open_shard in self._open_shards)
        epoch = min(open_shard.epoch for open_shard in self._open_shards)
        last = inf if self._end is None else self._end.extent
        self._turns.number = self._turns.taken = 0
        if epoch >= last:
            self.ended = True
            return self._end or Coordinates(self._epoch, 0, 0, sources=points)
        self._epoch = int(epoch)
        self._expect()
        return Coordinates(self._epoch, 0, 0, sources=points)

    def _expect(self) -> None:
        """Tell the open shards how soon they are needed."""
        for number, open_shard in enumerate(self._open_shards):
            is_open = open_shard.epoch == self._epoch
            open_shard.expect(partial(self._turns.until, number) if is_open else None)
