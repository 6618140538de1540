"""The source of a lane that has several shards open at once, and reads some of each in turn.

Each open shard stands for a sequence of shards. They go through the epochs together: one that has
reached the next epoch waits for the others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from streamrec.pipeline.fetch.demand import Demand, Turns
from streamrec.plan.coordinates import OWN, Coordinates
from streamrec.plan.order import Extent
from streamrec.plan.window import FRAME_OVERHEAD

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from streamrec.pipeline.lane.record_reader import RecordReader
    from streamrec.pipeline.lane.record_span import RecordSpan
    from streamrec.plan.window import Windows
    from streamrec.values.columns import Indices
    from streamrec.values.records import RecordRows

__all__ = ["OpenShard", "OpenShards", "Turn"]

SHARE_OF_LATER = 1e-4
"""The share of an open shard that waits for the next epoch: its ranges are needed last."""

Point: TypeAlias = tuple[int, ...]
"""Extent, byte offset and record number of an open shard's next record."""


class OpenShard:
    """One of the sequences of shards that a lane reads side by side.

    Args:
        reader: The reader of its records.
        point: The point in it that the lane has reached.
        epoch_of: Returns the epoch of an extent's number.
    """

    def __init__(self, reader: RecordReader, point: Point, epoch_of: Callable[[int], int]) -> None:
        self.reader = reader
        self.point = point
        """The point behind the last record that was given."""
        self.epoch: float = epoch_of(point[0])
        """The epoch of its next records; infinite if there are none."""
        self.undrawn = 0
        """Bytes of records that were popped and not given."""
        self._epoch_of = epoch_of
        self._rest: RecordSpan | None = None

    def pop(self) -> RecordSpan | None:
        """Return its next records of this epoch, if they have been received.

        Raises:
            StreamrecError: The error that ends the lane.
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
        """Return the first ``count`` of the popped records; the rest is popped again."""
        given = span
        if count < len(span):
            given, self._rest = span.cut(0, count), span.cut(count, None)
        self.undrawn = 0 if self._rest is None else self._rest.rows.nbytes
        self.point = given.after(count - 1)[:3]
        return given


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """Records that one open shard gives in its turn, some of them perhaps filtered out."""

    extent: Extent
    """An extent with the lane's epoch."""
    span: RecordSpan
    number: int
    """The number of the turn."""
    taken: Indices
    """int64 ``[rows]``: the bytes of frames that the turn has given behind each record."""
    open_shard: int
    points: tuple[Point, ...]
    """The lane's points in all open shards; in this one, one before these records."""

    def __len__(self) -> int:
        return len(self.span)

    @property
    def rows(self) -> RecordRows:
        """The records."""
        return self.span.rows

    @property
    def lengths(self) -> Indices:
        """int64 ``[rows]``: the payloads' sizes in the shard, in bytes."""
        return self.span.lengths

    @property
    def ends(self) -> Indices:
        """int64 ``[rows, numbers]``: the lane's coordinates behind each record."""
        last = self.after(len(self) - 1).numbers
        ends = np.tile(np.array(last, np.int64), (len(self), 1))
        own = OWN + 3 * self.open_shard
        ends[:, own : own + 3] = self.span.ends[:, :3]
        ends[:, 1] = self.taken
        return ends

    def before(self, row: int) -> Coordinates:
        """Return the coordinates of a lane whose next record is this one."""
        frame = self.span.lengths.item(row) + FRAME_OVERHEAD
        return self._at(self.span.before(row), self.taken.item(row) - frame)

    def after(self, row: int) -> Coordinates:
        """Return the coordinates of a lane whose last record was this one."""
        return self._at(self.span.after(row), self.taken.item(row))

    def keep(self, kept: Indices, rows: RecordRows) -> Turn:
        """Return the records that a filter keeps; ``rows`` refer to their bytes."""
        return replace(self, span=self.span.keep(kept, rows), taken=self.taken[kept])

    def _at(self, own: Coordinates, taken: int) -> Coordinates:
        points = (*self.points[: self.open_shard], own[:3], *self.points[self.open_shard + 1 :])
        return Coordinates(self.extent.epoch, taken, self.number, sources=points)


class OpenShards:
    """The source of one lane with several open shards.

    Args:
        open_shards: The lane's open shards.
        windows: Give the turns' sizes in bytes.
        lane: The lane's number.
        start: The coordinates that it begins at.
        end: The coordinates at which a finite run leaves it; ``None``: the run is endless.
    """

    def __init__(
        self,
        open_shards: Sequence[OpenShard],
        windows: Windows,
        lane: int,
        start: Coordinates,
        end: Coordinates | None,
    ) -> None:
        self.ended = False
        """True when no more records will come."""
        self._open_shards = open_shards
        self._windows = windows
        self._lane = lane
        self._epoch, self._end = start.extent, end
        self._turn, self._taken = start.record, start.offset
        self._turn_size = self._frame_size = 1.0  # before they are known

    @property
    def component(self) -> int:
        """The index of the open shard of the next record."""
        return self._turn % len(self._open_shards)

    def demand(self, number: int, lane: Demand) -> Demand:
        """Return the lane's demand of one open shard."""
        open_shard, count = self._open_shards[number], len(self._open_shards)
        turns = Turns(count, (number - self._turn) % count, self._taken, self._turn_size)
        own = turns if open_shard.epoch == self._epoch else None
        return Demand(lane.ready, lane.lacks, open_shard.undrawn, SHARE_OF_LATER, own)

    @property
    def waits_for(self) -> str:
        """The name of the stage that the next records are in."""
        return self._open_shards[self.component].reader.waits_for

    def pop(self) -> Turn | Coordinates | None:
        """Return the next records, or the coordinates after an epoch's end; ``None`` if not there.

        Raises:
            StreamrecError: The error that ends the lane.
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
        return None

    def _in_turn(self) -> OpenShard:
        """Return the open shard whose turn it is; those that ended the epoch have none."""
        if self._taken >= self._limit():
            self._go_on()
        while (open_shard := self._open_shards[self.component]).epoch != self._epoch:
            self._go_on()
        self._turn_size = max(self._limit(), self._frame_size)
        return open_shard

    def _go_on(self) -> None:
        """Begin the next open shard's turn."""
        self._turn, self._taken = self._turn + 1, 0

    def _limit(self) -> int:
        """Return the bytes that end the turn."""
        return self._windows.turn(self._lane, self._turn)

    def _given(self, open_shard: OpenShard, span: RecordSpan) -> Turn:
        """Take the records of an open shard that belong to its turn."""
        points = tuple(one.point for one in self._open_shards)
        taken = self._taken + np.cumsum(span.lengths + FRAME_OVERHEAD)
        count = min(len(span), int(np.searchsorted(taken, self._limit(), side="left")) + 1)
        self._frame_size = (taken.item(count - 1) - self._taken) / count
        self._taken = taken.item(count - 1)
        extent = Extent(self._epoch, self._epoch, -1)
        given = open_shard.give(span, count)
        return Turn(extent, given, self._turn, taken[:count], self.component, points)

    def _end_epoch(self) -> Coordinates:
        """Begin the next epoch; return the coordinates that the lane goes on at."""
        points = tuple(open_shard.point for open_shard in self._open_shards)
        epoch = min(open_shard.epoch for open_shard in self._open_shards)
        last = inf if self._end is None else self._end.extent
        self._turn = self._taken = 0
        if epoch >= last:
            self.ended = True
            return self._end or Coordinates(self._epoch, 0, 0, sources=points)
        self._epoch = int(epoch)
        return Coordinates(self._epoch, 0, 0, sources=points)
