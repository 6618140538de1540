"""The ordering stages of a lane: records keep their order, or each window is shuffled.

With length buckets, a window's records are also put to places whose batches have like lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from streamrec.errors import MalformedPosition
from streamrec.plan.coordinates import Coordinates
from streamrec.values.records import RecordRows

if TYPE_CHECKING:
    from streamrec.pipeline.lane.mix_source import MixedSpan
    from streamrec.pipeline.lane.open_shards import Turn
    from streamrec.pipeline.lane.record_span import RecordSpan
    from streamrec.plan.buckets import Buckets
    from streamrec.plan.record_order import ChunkWindows
    from streamrec.plan.window import Windows
    from streamrec.values.columns import Indices

__all__ = [
    "InOrder",
    "Records",
    "Segment",
    "Segments",
    "Stage",
    "WindowShuffle",
]


BEGINNING = Coordinates(0, 0, 0)
EXTENT, ROW, PART = (Coordinates._fields.index(name) for name in ("extent", "row", "part"))


@dataclass(slots=True, eq=False)
class Segment:
    """Rows of one epoch that are ready, in the order of delivery."""

    rows: RecordRows
    epoch: int
    end: Callable[[int], Sequence[int] | Indices]
    """Returns the lane's coordinates behind a row, as numbers."""
    merged: int = 0
    """The number of rows that the round robin has taken."""
    delivered: int = 0
    """The number of rows that are in a batch."""
    row_bytes: float = 0
    """The mean size of a row's payload in bytes."""


Records: TypeAlias = "RecordSpan | Turn | MixedSpan"
"""Records in a lane's order, some of them perhaps filtered out."""
Segments: TypeAlias = Iterator[Segment]


class InOrder:
    """A stage in which records keep their order.

    Args:
        row: The number of first records to drop, since they were delivered before.
    """

    lacks = 0

    def __init__(self, row: int = 0) -> None:
        self._row = row

    def add(self, span: Records) -> Segments:
        """Take the next records and return those that are ready."""
        first = min(self._row, len(span))
        self._row -= first
        if first < len(span):
            rows = span.rows.part(first, None) if first else span.rows
            yield Segment(rows, span.extent.epoch, span.ends[first:].__getitem__)

    def end_epoch(self, following: Coordinates) -> Segments:  # noqa: ARG002 - nothing is held
        """Return nothing, as no record is ever held."""
        return iter(())


class WindowShuffle:
    """A stage that shuffles each window, or orders it for length buckets.

    A damaged record keeps its place in a window, whether or not it is given as a row. So a position
    in the window means the same to a run that skips the record and to one that does not know of it.

    Args:
        windows: The sizes of windows, and their permutations.
        lane: The lane's number.
        epoch: The epoch that the lane begins in.
        start: The coordinates to begin at; the first window's first ``row`` rows are dropped.
        buckets: The length buckets; ``None``: there are none.
        keeps_placeholders: Whether damaged records are given as rows without bytes.
    """

    def __init__(
        self,
        windows: Windows | ChunkWindows,
        lane: int,
        epoch: int = 0,
        start: Coordinates = BEGINNING,
        buckets: Buckets | None = None,
        *,
        keeps_placeholders: bool = False,
    ) -> None:
        self._windows = windows
        self._lane = lane
        self._buckets = buckets
        self._taken = start.taken
        self._row, self._damaged = start.row, start.part
        self._keeps_placeholders = keeps_placeholders
        self._parts: list[RecordRows] = []
        self._lengths: list[Indices] = []
        self._start: Coordinates | None = None
        self._epoch = epoch
        self._open(start.window)

    @property
    def lacks(self) -> int:
        """The bytes that the window still lacks."""
        return self._windows.lacks(max(0, self._missing))

    def add(self, span: Records) -> Segments:
        """Take the next records and return the windows that they fill."""
        if span.extent.epoch != self._epoch:
            self._epoch = span.extent.epoch
            self._open(0)
        first = 0
        while first < len(span):
            count, weight = self._windows.takes(span.lengths[first:], self._missing)
            self._start = self._start or span.before(first)
            self._parts.append(span.rows.part(first, first + count))
            self._lengths.append(span.lengths[first : first + count])
            self._missing -= weight
            first += count
            if self._missing <= 0:
                number = self._number + 1
                yield from self._close(span.after(first - 1)._replace(window=number))
                self._open(number)

    def end_epoch(self, following: Coordinates) -> Segments:
        """Return the last, short window."""
        if self._parts:
            yield from self._close(following)
            self._open(0)

    def _open(self, number: int) -> None:
        self._number = number
        self._missing = self._windows.opens(self._lane, self._epoch, number)
        self._parts, self._lengths = [], []
        self._start = None

    def _close(self, following: Coordinates) -> Segments:
        """Return the window's records that were not delivered before.

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
        order = self._order(rows)[done:]
        kept = np.flatnonzero((rows.ordinals[order] >= 0) | self._keeps_placeholders)
        assert self._start is not None
        start = self._start._replace(window=self._number).numbers

        def end(row: int) -> list[int]:
            if row == len(kept) - 1:
                return following.numbers
            numbers, before = start.copy(), kept.item(row)
            numbers[ROW] = done + before + 1
            numbers[PART] = damaged + before - row
            return numbers

        self._row, self._damaged, self._taken = 0, 0, self._taken + len(kept)
        if len(kept):
            yield Segment(rows.take(order[kept]), self._epoch, end)

    def _order(self, rows: RecordRows) -> Indices:
        """Return the order in which the window's records leave it."""
        drawn = self._windows.permutation(self._lane, self._epoch, self._number, rows.shards)
        if self._buckets is None:
            return drawn
        first = self._taken - self._row + self._damaged
        return self._buckets.order(self._lane, first, np.concatenate(self._lengths), drawn)


Stage: TypeAlias = InOrder | WindowShuffle
"""A stage that orders a lane's records."""
