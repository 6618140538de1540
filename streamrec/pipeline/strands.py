"""The records of a lane that has several shards open at once: some of each of them, in turn.

Each of its strands is a sequence of shards. They go through the epochs together: what is of the
next one waits until all of them are through.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from streamrec.pipeline.feeds import Turns
from streamrec.pipeline.stages import OWN, Coordinates, Stretch
from streamrec.plan.order import Extent
from streamrec.plan.window import FRAME_OVERHEAD

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from streamrec.pipeline.feeds import LaneFeed, Progress
    from streamrec.pipeline.scan import Scan
    from streamrec.plan.window import Windows
    from streamrec.types import Indices, RecordRows

__all__ = ["Strand", "Strands", "Turn"]

SHARE_OF_LATER = 1e-4
"""Of a strand that is through the epoch: its next records are needed, but last of all."""

Point: TypeAlias = tuple[int, ...]
"""Extent, byte offset and record number: where a strand's next record is looked for."""


class Strand:
    """One of a lane's sequences of shards.

    Args:
        scan: Where its records come from.
        feed: Its ranges.
        point: Where the lane stands in it.
        epoch_of: The epochs of its extents, by their numbers.
    """

    def __init__(
        self, scan: Scan, feed: LaneFeed, point: Point, epoch_of: Callable[[int], int]
    ) -> None:
        self.scan = scan
        self.point = point
        """Behind the last record that was given."""
        self.epoch: float = epoch_of(point[0])
        """Of what it gives next; infinite where nothing comes any more."""
        self._feed = feed
        self._feed.share = SHARE_OF_LATER  # until it is said whose turn it is
        self._epoch_of = epoch_of
        self._rest: Stretch | None = None

    def pop(self) -> Stretch | None:
        """Its next records of this epoch, if they are there.

        Raises:
            StreamrecError: Nothing comes, for this reason.
        """
        if self._rest is None:
            item = self.scan.pop()
            if not isinstance(item, Coordinates):
                return item
            self.point = item[:3]
            self.epoch = inf if self.scan.ended else self._epoch_of(item.extent)
            return None
        rest, self._rest = self._rest, None
        return rest

    def give(self, stretch: Stretch, count: int) -> Stretch:
        """So many of the records that were popped; what is left of them comes again."""
        given = stretch
        if count < len(stretch):
            given, self._rest = stretch.cut(0, count), stretch.cut(count, None)
        self._feed.undrawn = 0 if self._rest is None else self._rest.rows.nbytes
        self.point = given.after(count - 1)[:3]
        return given

    def expect(self, until: Callable[[float], float] | None) -> None:
        """Say how many bytes the lane takes before so many of it; ``None``: none in this epoch."""
        self._feed.until = until


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """Records that one strand gives in its turn, or some of them."""

    extent: Extent
    """Its epoch is that of the lane."""
    stretch: Stretch
    number: int
    """The turn's."""
    taken: Indices
    """int64 ``[rows]``: the bytes of frames that are taken in the turn behind each of them."""
    strand: int
    points: tuple[Point, ...]
    """Where the lane stands in all strands; in this one, somewhere before these records."""

    def __len__(self) -> int:
        return len(self.stretch)

    @property
    def rows(self) -> RecordRows:
        """The records."""
        return self.stretch.rows

    @property
    def lengths(self) -> Indices:
        """int64 ``[rows]``: the sizes in the shard of the payloads."""
        return self.stretch.lengths

    @property
    def ends(self) -> Indices:
        """int64 ``[rows, numbers]``: where a lane stands whose last record was this one."""
        last = self.after(len(self) - 1).numbers
        ends = np.tile(np.array(last, np.int64), (len(self), 1))
        own = OWN + 3 * self.strand
        ends[:, own : own + 3] = self.stretch.ends[:, :3]
        ends[:, 1] = self.taken
        return ends

    def before(self, row: int) -> Coordinates:
        """Where a lane stands whose next record is this one."""
        frame = self.stretch.lengths.item(row) + FRAME_OVERHEAD
        return self._at(self.stretch.before(row), self.taken.item(row) - frame)

    def after(self, row: int) -> Coordinates:
        """Where a lane stands whose last record was this one."""
        return self._at(self.stretch.after(row), self.taken.item(row))

    def keep(self, kept: Indices, rows: RecordRows) -> Turn:
        """Those that a filter keeps, in the memory where they are then."""
        return replace(self, stretch=self.stretch.keep(kept, rows), taken=self.taken[kept])

    def _at(self, own: Coordinates, taken: int) -> Coordinates:
        points = (*self.points[: self.strand], own[:3], *self.points[self.strand + 1 :])
        return Coordinates(self.extent.epoch, taken, self.number, sources=points)


class Strands:
    """The records of one lane.

    Args:
        strands: Of the lane.
        windows: Say how long turns are.
        lane: The lane's number.
        start: Where it stands.
        end: Where a finite run leaves it; ``None``: the run goes on.
        progress: What the lane has, and what it needs.
    """

    def __init__(
        self,
        strands: Sequence[Strand],
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
        self._strands = strands
        self._windows = windows
        self._lane = lane
        self._epoch, self._end = start.extent, end
        self._turns = Turns(len(strands), number=start.record, taken=start.offset)
        self._expect()

    @property
    def component(self) -> int:
        """Which strand the next record is of."""
        return self._turns.feed

    @property
    def refetched(self) -> int:
        """Faults that were gone when the bytes were read once more."""
        return sum(strand.scan.refetched for strand in self._strands)

    @property
    def waits_for(self) -> str:
        """The stage that the next records are in."""
        return self._strands[self.component].scan.waits_for

    def pop(self) -> Turn | Coordinates | None:
        """The next records; where the lane goes on when an epoch is over; nothing yet, or any more.

        Raises:
            StreamrecError: Nothing comes, for this reason.
        """
        while not self.ended:
            if all(strand.epoch != self._epoch for strand in self._strands):
                return self._end_epoch()
            strand = self._in_turn()
            stretch = strand.pop()
            if stretch is not None and len(stretch):
                return self._given(strand, stretch)
            if stretch is None and strand.epoch == self._epoch:
                return None
            self._expect()
        return None

    def _in_turn(self) -> Strand:
        """The strand whose turn it is; those that are through the epoch have none."""
        if self._turns.taken >= self._limit():
            self._turns.go_on()
        while (strand := self._strands[self.component]).epoch != self._epoch:
            self._turns.go_on()
        self._turns.size = max(self._limit(), self.progress.record)
        return strand

    def _limit(self) -> int:
        """Bytes that end the turn."""
        return self._windows.turn(self._lane, self._turns.number)

    def _given(self, strand: Strand, stretch: Stretch) -> Turn:
        """What a strand has, to the end of its turn."""
        points = tuple(one.point for one in self._strands)
        taken = self._turns.taken + np.cumsum(stretch.lengths + FRAME_OVERHEAD)
        count = min(len(stretch), int(np.searchsorted(taken, self._limit(), side="left")) + 1)
        self._turns.taken = taken.item(count - 1)
        extent = Extent(self._epoch, self._epoch, -1)
        given = strand.give(stretch, count)
        return Turn(extent, given, self._turns.number, taken[:count], self.component, points)

    def _end_epoch(self) -> Coordinates:
        """All strands are through the epoch: where the lane goes on."""
        points = tuple(strand.point for strand in self._strands)
        epoch = min(strand.epoch for strand in self._strands)
        last = inf if self._end is None else self._end.extent
        self._turns.number = self._turns.taken = 0
        if epoch >= last:
            self.ended = True
            return self._end or Coordinates(self._epoch, 0, 0, sources=points)
        self._epoch = int(epoch)
        self._expect()
        return Coordinates(self._epoch, 0, 0, sources=points)

    def _expect(self) -> None:
        """Tell the strands how soon they are needed."""
        for number, strand in enumerate(self._strands):
            is_open = strand.epoch == self._epoch
            strand.expect(partial(self._turns.until, number) if is_open else None)
