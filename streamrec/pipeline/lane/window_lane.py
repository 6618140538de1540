"""The lane that shuffles each window of its records, or orders it for length buckets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from streamrec.errors import MalformedPosition
from streamrec.pipeline.lane.lane import Lane
from streamrec.pipeline.lane.segment import Segment
from streamrec.plan.order.coordinates import Coordinates
from streamrec.values.record_rows import RecordRows

if TYPE_CHECKING:
    from streamrec.pipeline.lane.record_span import RecordSpan
    from streamrec.plan.order.buckets import Buckets
    from streamrec.plan.order.record_order import ChunkWindows
    from streamrec.plan.order.window import Windows
    from streamrec.values.columns import Indices

ROW, PART = (Coordinates._fields.index(name) for name in ("row", "part"))


@dataclass(eq=False, repr=False, kw_only=True)
class WindowLane(Lane):
    """A lane that shuffles each window of its records, or orders it for length buckets.

    The first window's first ``row`` rows are dropped. A damaged record keeps its place in a window,
    whether or not it is given as a row. So a position in the window means the same to a run that
    skips the record and to one that does not know of it.

    Args:
        windows: The sizes of windows, and their permutations.
        number: The lane's number.
        epoch: The epoch that the lane begins in.
        buckets: The length buckets; ``None``: there are none.
        keeps_placeholders: Whether damaged records are given as rows without bytes.
    """

    windows: Windows | ChunkWindows
    number: int
    epoch: int
    buckets: Buckets | None = None
    keeps_placeholders: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._taken, self._damaged = self.start.taken, self.start.part
        self._open(self.start.window)

    def _open(self, number: int) -> None:
        self._window = number
        self._missing = self.windows.opens(self.number, self.epoch, number)
        self._parts: list[RecordRows] = []
        self._lengths: list[Indices] = []
        self._start: Coordinates | None = None

    @property
    def lacks(self) -> int:
        """The bytes that the window still lacks."""
        return self.windows.lacks(max(0, self._missing))

    def _order(self, span: RecordSpan) -> None:
        if span.extent.epoch != self.epoch:
            self.epoch = span.extent.epoch
            self._open(0)
        first = 0
        while first < len(span):
            count, weight = self.windows.takes(span.lengths[first:], self._missing)
            self._start = self._start or span.before(first)
            self._parts.append(span.rows.part(first, first + count))
            self._lengths.append(span.lengths[first : first + count])
            self._missing -= weight
            first += count
            if self._missing <= 0:
                number = self._window + 1
                self._close(span.after(first - 1)._replace(window=number))
                self._open(number)

    def _end_epoch(self, following: Coordinates) -> None:
        if self._parts:
            self._close(following)
            self._open(0)

    def _close(self, following: Coordinates) -> None:
        """Give the window's records that were not delivered before.

        Raises:
            MalformedPosition: The window has fewer records than the position says were delivered.
        """
        rows = RecordRows.concatenate(self._parts)
        done, damaged = self._row, self._damaged
        if done > len(rows):
            raise MalformedPosition(
                f"the state says that {done} records of a window were delivered, but it holds "
                f"{len(rows)}; load a state that was saved by this stream"
            )
        order = self._permutation(rows)[done:]
        places = np.flatnonzero((rows.ordinals[order] >= 0) | self.keeps_placeholders)
        assert self._start is not None
        start = self._start._replace(window=self._window).numbers

        def end(row: int) -> list[int]:
            if row == len(places) - 1:
                return following.numbers
            numbers, before = start.copy(), places.item(row)
            numbers[ROW] = done + before + 1
            numbers[PART] = damaged + before - row
            return numbers

        self._row, self._damaged, self._taken = 0, 0, self._taken + len(places)
        if len(places):
            self._give(Segment(rows.take(order[places]), self.epoch, end))

    def _permutation(self, rows: RecordRows) -> Indices:
        """Return the order in which the window's records leave it."""
        drawn = self.windows.permutation(self.number, self.epoch, self._window, rows.shards)
        if self.buckets is None:
            return drawn
        first = self._taken - self._row + self._damaged
        return self.buckets.order(self.number, first, np.concatenate(self._lengths), drawn)
