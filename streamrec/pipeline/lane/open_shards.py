"""The source of a lane that has several shards open at once, and reads some of each in turn.

Each open shard stands for a sequence of shards. They go through the epochs together: one that has
reached the next epoch waits for the others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from streamrec.pipeline.fetch.demand import Demand
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

__all__ = ["OpenShards", "Turn"]

SHARE_OF_LATER = 1e-4
"""The share of an open shard that waits for the next epoch: its ranges are needed last."""

Point: TypeAlias = tuple[int, ...]
"""Extent, byte offset and record number of an open shard's next record."""


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
        readers: The readers of the open shards.
        epochs_of: For each open shard, a function that returns the epoch of an extent's number.
        windows: Give the turns' sizes in bytes.
        lane: The lane's number.
        start: The coordinates that it begins at.
        end: The coordinates at which a finite run leaves it; ``None``: the run is endless.
    """

    def __init__(
        self,
        readers: Sequence[RecordReader],
        epochs_of: Sequence[Callable[[int], int]],
        windows: Windows,
        lane: int,
        start: Coordinates,
        end: Coordinates | None,
    ) -> None:
        self.ended = False
        """True when no more records will come."""
        self._readers = readers
        self._epochs_of = epochs_of
        self._points = list(start.sources)  # behind the last record that each open shard gave
        self._epochs: list[float] = [  # of the next records; infinite if there are none
            epoch_of(point[0]) for epoch_of, point in zip(epochs_of, start.sources, strict=True)
        ]
        self._rests: list[RecordSpan | None] = [None] * len(readers)
        self._windows = windows
        self._lane = lane
        self._epoch, self._end = start.extent, end
        self._turn, self._taken = start.record, start.offset

    @property
    def component(self) -> int:
        """The index of the open shard of the next record."""
        return self._turn % len(self._readers)

    def demand(self, number: int, lane: Demand) -> Demand:
        """Return the lane's demand of one open shard."""
        rest, is_later = self._rests[number], self._epochs[number] != self._epoch
        undrawn = 0 if rest is None else rest.rows.nbytes
        share = SHARE_OF_LATER if is_later else 1 / len(self._readers)
        return Demand(lane.ready, lane.lacks, undrawn, share)

    @property
    def waits_for(self) -> str:
        """The name of the stage that the next records are in."""
        return self._readers[self.component].waits_for

    def pop(self) -> Turn | Coordinates | None:
        """Return the next records, or the coordinates after an epoch's end; ``None`` if not there.

        Raises:
            StreamrecError: The error that ends the lane.
        """
        while not self.ended:
            if all(epoch != self._epoch for epoch in self._epochs):
                return self._end_epoch()
            number = self._in_turn()
            item = self._rests[number] or self._readers[number].pop()
            if item is None:
                return None
            if isinstance(item, Coordinates):
                self._points[number] = item[:3]
                has_ended = self._readers[number].ended
                self._epochs[number] = inf if has_ended else self._epochs_of[number](item.extent)
            elif len(item):
                return self._given(number, item)
        return None

    def _in_turn(self) -> int:
        """Return the open shard whose turn it is; those that ended the epoch have none."""
        if self._taken >= self._limit():
            self._go_on()
        while self._epochs[self.component] != self._epoch:
            self._go_on()
        return self.component

    def _go_on(self) -> None:
        """Begin the next open shard's turn."""
        self._turn, self._taken = self._turn + 1, 0

    def _limit(self) -> int:
        """Return the bytes that end the turn."""
        return self._windows.turn(self._lane, self._turn)

    def _given(self, number: int, span: RecordSpan) -> Turn:
        """Take the records of an open shard that belong to its turn."""
        points = tuple(self._points)
        taken = self._taken + np.cumsum(span.lengths + FRAME_OVERHEAD)
        count = min(len(span), int(np.searchsorted(taken, self._limit(), side="left")) + 1)
        self._taken = taken.item(count - 1)
        is_all = count == len(span)
        self._rests[number] = None if is_all else span.cut(count, None)
        given = span if is_all else span.cut(0, count)
        self._points[number] = given.after(count - 1)[:3]
        extent = Extent(self._epoch, self._epoch, -1)
        return Turn(extent, given, self._turn, taken[:count], number, points)

    def _end_epoch(self) -> Coordinates:
        """Begin the next epoch; return the coordinates that the lane goes on at."""
        points, epoch = tuple(self._points), min(self._epochs)
        last = inf if self._end is None else self._end.extent
        self._turn = self._taken = 0
        if epoch >= last:
            self.ended = True
            return self._end or Coordinates(self._epoch, 0, 0, sources=points)
        self._epoch = int(epoch)
        return Coordinates(self._epoch, 0, 0, sources=points)
