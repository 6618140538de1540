"""The source of a lane that has several shards open at once, and reads some of each in turn.

Each open shard stands for a sequence of shards. They go through the epochs together: one that has
reached the next epoch waits for the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from streamrec.pipeline.fetch.range_queue import Demand
from streamrec.pipeline.lane.record_span import RecordSpan
from streamrec.plan.order.coordinates import OWN, POINTS, Coordinates
from streamrec.plan.order.shard_order import Extent
from streamrec.plan.order.window import FRAME_OVERHEAD
from streamrec.values.columns import rising

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamrec.pipeline.lane.record_reader import RecordReader
    from streamrec.pipeline.lane.record_span import RecordPlaces
    from streamrec.plan.order.window import Windows
    from streamrec.values.columns import Indices

SHARE_OF_LATER = 1e-4
"""The share of an open shard that waits for the next epoch: its ranges are needed last."""

Point: TypeAlias = tuple[int, ...]
"""The point, as in :data:`POINT`, of an open shard's next record."""


@dataclass(frozen=True, slots=True, eq=False)
class ShardTurn:
    """The places of records that one open shard gives in its turn."""

    span: Extent
    """The extent of the shard."""
    places: RecordPlaces
    """The places in the shard."""
    numbers: Indices
    """int64 ``[records]``: the number of each record among these."""
    taken: Indices
    """int64 ``[records + 1]``: the bytes of frames that the turn has given before each record, and
    after the last."""
    number: int
    """The number of the turn."""
    open_shard: int
    points: tuple[Point, ...]
    """The lane's points in all open shards; in this one, one before these records."""

    def before(self, number: int, extent: Extent) -> Coordinates:
        """Return the coordinates of a lane whose next record is the one of that number."""
        place = self.places.before(self.numbers.item(number), self.span)
        return self._at(place, self.taken.item(number), extent)

    def after(self, number: int, extent: Extent) -> Coordinates:
        """Return the coordinates of a lane whose last record was the one of that number."""
        place = self.places.after(self.numbers.item(number), self.span)
        return self._at(place, self.taken.item(number + 1), extent)

    def ends(self, numbers: Indices, extent: Extent) -> Indices:
        """Return int64 ``[records, numbers]``: the coordinates after each of these records."""
        last = np.array(self.after(len(self.numbers) - 1, extent).numbers, np.int64)
        ends = np.tile(last, (len(numbers), 1))
        first = OWN + POINTS * self.open_shard
        places = self.places.ends(self.numbers[numbers], self.span)
        ends[:, first : first + POINTS] = places[:, :POINTS]
        ends[:, 1] = self.taken[numbers + 1]
        return ends

    def _at(self, place: Coordinates, nbytes: int, extent: Extent) -> Coordinates:
        points = (*self.points[: self.open_shard], place.point, *self.points[self.open_shard + 1 :])
        return Coordinates(extent.epoch, nbytes, self.number, sources=points)


@dataclass(eq=False, repr=False)
class OpenShards:
    """The source of one lane with several open shards.

    Args:
        readers: The readers of the open shards.
        windows: Give the turns' sizes in bytes.
        lane: The lane's number.
        start: The coordinates that it begins at.
        end: The coordinates at which a finite run leaves it; ``None``: the run is endless.
    """

    readers: Sequence[RecordReader]
    windows: Windows
    lane: int
    start: Coordinates
    end: Coordinates | None
    ended: bool = False
    """True when no more records will come."""

    def __post_init__(self) -> None:
        self._points = list(self.start.sources)  # after the last record that each open shard gave
        self._epochs: list[float]  # of the next records; infinite if there are none
        self._epochs = [reader.epoch for reader in self.readers]
        self._rests: list[RecordSpan | None] = [None] * len(self.readers)
        self._epoch = self.start.extent
        self._turn, self._taken = self.start.record, self.start.offset

    @property
    def component(self) -> int:
        """The index of the open shard of the next record."""
        return self._turn % len(self.readers)

    def demand(self, number: int, lane: Demand) -> Demand:
        """Return the lane's demand of one open shard."""
        rest, is_later = self._rests[number], self._epochs[number] != self._epoch
        undrawn = 0 if rest is None else rest.rows.nbytes
        share = SHARE_OF_LATER if is_later else 1 / len(self.readers)
        return Demand(lane.ready, lane.lacks, undrawn, share)

    @property
    def waits_for(self) -> str:
        """The name of the stage that the next records are in."""
        return self.readers[self.component].waits_for

    def pop(self) -> RecordSpan | Coordinates | None:
        """Return the next records, or the coordinates after an epoch's end; ``None`` if not there.

        Raises:
            StreamrecError: The error that ends the lane.
        """
        while not self.ended:
            # A shard whose records of this epoch are used up may be in the next one already, and
            # waits.
            if all(epoch != self._epoch for epoch in self._epochs):
                return self._end_epoch()
            number = self._in_turn()
            item = self._rests[number] or self.readers[number].pop()
            if item is None:
                return None
            if isinstance(item, Coordinates):
                self._points[number] = item.point
                reader = self.readers[number]
                self._epochs[number] = inf if reader.ended else reader.epoch
            elif len(item):
                return self._give(number, item)
        return None

    def _in_turn(self) -> int:
        """Return the open shard whose turn it is; those that ended the epoch have none."""
        if self._taken >= self._limit():
            self._go_on()
        # pop() has seen that one of them is in this epoch, so this comes to an end.
        while self._epochs[self.component] != self._epoch:
            self._go_on()
        return self.component

    def _go_on(self) -> None:
        """Begin the next open shard's turn."""
        self._turn, self._taken = self._turn + 1, 0

    def _limit(self) -> int:
        """Return the bytes that end the turn."""
        return self.windows.turn(self.lane, self._turn)

    def _give(self, number: int, span: RecordSpan) -> RecordSpan:
        """Take the records of an open shard that belong to its turn."""
        # Before the points move: a state within this span counts from where the span begins.
        points = tuple(self._points)
        sums = np.concatenate([[self._taken], span.lengths + FRAME_OVERHEAD]).cumsum()
        # The record with which the limit is reached still belongs to the turn.
        count = min(len(span), int(np.searchsorted(sums, self._limit(), side="left")))
        self._taken = sums.item(count)
        is_all = count == len(span)
        self._rests[number] = None if is_all else span.cut(count, None)
        part = span if is_all else span.cut(0, count)
        self._points[number] = part.after(count - 1).point
        turn = ShardTurn(
            span=part.extent,
            places=part.places,
            numbers=part.numbers,
            taken=sums,
            number=self._turn,
            open_shard=number,
            points=points,
        )
        extent = Extent(self._epoch, self._epoch, -1)
        return RecordSpan(
            extent=extent,
            rows=part.rows,
            lengths=part.lengths,
            places=turn,
            numbers=rising(0, count),
        )

    def _end_epoch(self) -> Coordinates:
        """Begin the next epoch; return the coordinates that the lane goes on at."""
        points, epoch = tuple(self._points), min(self._epochs)
        last = inf if self.end is None else self.end.extent
        self._turn = self._taken = 0
        if epoch >= last:
            self.ended = True
            return self.end or Coordinates(self._epoch, 0, 0, sources=points)
        self._epoch = int(epoch)
        return Coordinates(self._epoch, 0, 0, sources=points)
