"""The lane: it takes records from its source through its stages and keeps those that are ready.

With windows it shuffles those of each, or orders them for length buckets, when the window is full.
"""

from __future__ import annotations

from collections import deque
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from streamrec.errors import MalformedPosition, StreamrecError
from streamrec.pipeline.fetch.range_queue import Demand
from streamrec.pipeline.lane.record_span import Segment
from streamrec.plan.order.coordinates import Coordinates
from streamrec.values.record_rows import EpochRows, RecordRows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamrec.pipeline.lane.record_span import RecordSpan
    from streamrec.pipeline.lane.stages import FilterStage, Packing, Source
    from streamrec.plan.order.record_order import ChunkWindows
    from streamrec.plan.order.window import Buckets, Windows
    from streamrec.values.columns import Indices


ROW, PART = (Coordinates._fields.index(name) for name in ("row", "part"))


@dataclass(eq=False, repr=False)
class Lane:
    """A lane of a run whose records keep their order, with the rows that are ready.

    Args:
        source: The source of its records.
        start: The coordinates that it begins at; the first ``row`` records are dropped.
        filter_stage: Gives the source's records that the user's filter keeps.
        packing: Packs the records.
    """

    source: Source
    start: Coordinates
    _: KW_ONLY
    filter_stage: FilterStage | None = None
    packing: Packing | None = None
    record_size: float = 0
    """The mean size of a record in bytes; a guess until records tell."""
    error: StreamrecError | None = None
    """The error that follows the available rows."""
    available: int = 0
    """The number of rows that are ready to be merged."""
    ended: bool = False
    """True when no rows will follow the available ones."""
    _ready: float = 0  # the bytes of the available rows
    _segments: deque[Segment] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._records = self.filter_stage or self.source
        self._row = self.start.row

    def poll(self, wanted: int) -> None:
        """Read received records until ``wanted`` rows are available."""
        try:
            while self.available < wanted and self.error is None and self._advance():
                pass
        except StreamrecError as error:
            self.error = error

    def take(self, count: int) -> list[EpochRows]:
        """Take the next ``count`` rows for the round robin."""
        parts = []
        self.available -= count
        # Segments stay queued until their rows are delivered: only then does the state go beyond
        # them.
        for segment in self._segments:
            if not count:
                break
            first, rows = segment.merged, segment.rows
            if part := min(count, len(rows) - first):
                count -= part
                segment.merged = first + part
                parts.append(EpochRows(rows.part(first, first + part), segment.epoch))
                self._ready -= segment.row_bytes * part
        if not self.available:
            self._ready = 0  # a sum of fractions, so clear its rounding error
        return parts

    def deliver(self, count: int) -> Sequence[int] | Indices:
        """Mark ``count`` more rows as delivered; return the coordinates after them as numbers."""
        while True:
            segment = self._segments[0]
            segment.delivered += count
            count = segment.delivered - len(segment.rows)
            if count < 0:
                return segment.end(segment.delivered - 1)
            self._segments.popleft()
            if not count:
                return segment.end(len(segment.rows) - 1)

    def demand(self, number: int) -> Demand:
        """Return the lane's demand of its sublane of that number."""
        return self.source.demand(number, Demand(self._ready, self.lacks))

    @property
    def lacks(self) -> int:
        """The bytes that must be read before any of them is ready."""
        return 0

    @property
    def waits_for(self) -> str:
        """The name of the stage that the lane's next records are in."""
        return "pack" if self.packing else self._records.waits_for

    @property
    def component(self) -> int:
        """The source that the lane's next record comes from, if it draws from several; else 0."""
        return self.source.component

    def _advance(self) -> bool:
        """Take one step; return whether there was anything to do."""
        packing = self.packing
        if packing is None:
            return self._take_records()
        segment = packing.pop()
        if segment is not None:
            self._append(segment)
        if segment is not None or packing.full:
            return segment is not None
        try:
            return self._take_records()
        except StreamrecError as error:
            packing.put(error)  # the records being packed come before it
            return True

    def _take_records(self) -> bool:
        """Order the next records; return whether there was anything to do."""
        item = self._records.pop()
        if item is None:
            # A lane with packs ends when the last one has come out, and no later than that is
            # known.
            is_new = self._records.ended and not self.ended and not self.packing
            self.ended = self.ended or is_new
            return is_new
        if not isinstance(item, Coordinates):
            self._order(item)
            return True
        self._end_epoch(item)
        if self.packing is not None:
            self.packing.put(item)
        return True

    def _order(self, span: RecordSpan) -> None:
        """Give the next records, or hold them until others complete what they are a part of."""
        first = min(self._row, len(span))
        if first and span.inside is not None and first >= span.whole(1):
            raise MalformedPosition(
                f"the state says that {self._row} windows of an episode were delivered, but it has "
                f"{span.whole(1)}; load a state that was saved by this stream"
            )
        self._row -= first
        if first < len(span):
            rows = span.rows.part(first, None) if first else span.rows
            self._give(Segment(rows, span.extent.epoch, span.ends_from(first)))

    def _end_epoch(self, following: Coordinates) -> None:
        """Give the records that are held; the lane goes on at ``following``."""

    def _give(self, segment: Segment) -> None:
        """Pass on records that are in order."""
        self.record_size = segment.rows.nbytes / len(segment.rows)
        if self.packing is not None:
            self.packing.put(segment)
        else:
            self._append(segment)

    def _append(self, segment: Segment) -> None:
        """Make a segment's rows available."""
        nbytes, count = segment.rows.nbytes, len(segment.rows)
        segment.row_bytes = nbytes / count
        self._segments.append(segment)
        self.available += count
        self._ready += nbytes


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
        # A window ends with its epoch, and the next one's are numbered from 0.
        if span.extent.epoch != self.epoch:
            self.epoch = span.extent.epoch
            self._open(0)
        first = 0
        while first < len(span):
            count, weight = self.windows.takes(span.lengths[first:], self._missing)
            # Only the beginning of a record has coordinates, so a window ends with one.
            count = span.whole(first + count) - first
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
        # Damaged records have negative ordinals. They took part in the permutation, and leave it
        # here.
        places = np.flatnonzero((rows.ordinals[order] >= 0) | self.keeps_placeholders)
        assert self._start is not None
        start = self._start._replace(window=self._window).numbers

        def end(row: int) -> list[int]:
            if row == len(places) - 1:
                return following.numbers
            numbers, before = start.copy(), places.item(row)
            numbers[ROW] = done + before + 1
            # The damaged records that were left out before this row.
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
        # The rows that were delivered before the window: `taken` has those of the window that were
        # done.
        first = self._taken - self._row + self._damaged
        return self.buckets.order(self.number, first, np.concatenate(self._lengths), drawn)
