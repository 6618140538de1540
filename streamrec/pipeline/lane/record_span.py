"""The units of a lane: spans of records from its source, and segments of rows that are ready."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np

from streamrec.formats.shards.tfrecord import HEADER
from streamrec.plan.order.coordinates import OWN, Coordinates
from streamrec.plan.order.window import FRAME_OVERHEAD
from streamrec.values.columns import rising
from streamrec.values.record_rows import RecordRows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from streamrec.plan.order.shard_order import Extent
    from streamrec.values.columns import Indices
    from streamrec.values.record_rows import RecordBlock


_NOTHING = np.empty(0, np.int64)


class RecordPlaces(Protocol):
    """The lane's coordinates around successive records, before any filter; none of their bytes."""

    def before(self, number: int, extent: Extent) -> Coordinates:
        """Return the coordinates of a lane whose next record is the one of that number."""

    def after(self, number: int, extent: Extent) -> Coordinates:
        """Return the coordinates of a lane whose last record was the one of that number."""

    def ends(self, numbers: Indices, extent: Extent) -> Indices:
        """Return int64 ``[records, numbers]``: the coordinates after each of these records."""


@dataclass(frozen=True, slots=True, eq=False)
class RecordSpan:
    """Records in a lane's order, some of them perhaps filtered out."""

    extent: Extent
    """The extent that they are of; in a mix or with open shards, one with the lane's epoch."""
    rows: RecordRows
    lengths: Indices
    """int64 ``[rows]``: the payloads' sizes in the shard, in bytes, damaged ones included."""
    places: RecordPlaces
    numbers: Indices
    """int64 ``[rows]``: the number of each record among the places."""
    inside: Indices | None = None
    """int64 ``[rows]``: the number of each window in its record; ``None``: rows are records."""

    @classmethod
    def of(cls, extent: Extent, block: RecordBlock, crcs: Indices | None = None) -> Self:
        """Make a span of all records of a block.

        Args:
            extent: The extent that they are of.
            block: The records.
            crcs: int64 ``[records + 1]``: the ``crc`` of the coordinates before each record and
                after the last; by default they are not known.
        """
        if crcs is None:
            crcs = np.zeros(len(block) + 1, np.int64)
        places = BlockPlaces(
            offsets=block.offsets,
            lengths=block.lengths,
            base=block.base,
            first_ordinal=block.first_ordinal,
            crcs=crcs,
        )
        rows, numbers = RecordRows.from_block(block), rising(0, len(block))
        return cls(extent, rows, block.lengths, places, numbers)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def even_lengths(self) -> Indices:
        """int64 ``[rows]``: the mean payload of the records of their chunk, as an index tells it.

        The extent must be a part of a single chunk.
        """
        extent = self.extent
        assert extent.end is not None
        assert extent.next_record is not None
        mean = (extent.end - extent.begin) // (extent.next_record - extent.first_record)
        return np.full(len(self), max(0, mean - FRAME_OVERHEAD), np.int64)

    @property
    def ends(self) -> Indices:
        """int64 ``[rows, numbers]``: the lane's coordinates after each row."""
        ends = self.places.ends(self.numbers, self.extent)
        if self.inside is None:
            return ends
        # Inside a record the lane goes on at its beginning, and drops the windows that are done.
        for row in np.flatnonzero(np.diff(self.numbers) == 0).tolist():
            ends[row] = self.before(row)._replace(row=self.inside.item(row) + 1).numbers
        return ends

    def whole(self, count: int) -> int:
        """Return the least number of first rows, ``count`` or more, that are whole records."""
        if self.inside is None or count == len(self):
            return count
        after = np.flatnonzero(self.numbers[count:] != self.numbers[count - 1])
        return count + int(after[0]) if len(after) else len(self)

    def windows(self, begins: Sequence[Indices]) -> RecordSpan:
        """Return the windows of the records, which are episodes.

        Args:
            begins: The first step of each window of each of the records.
        """
        counts = np.array([len(steps) for steps in begins], np.int64)
        of_row = np.repeat(rising(0, len(self)), counts)
        firsts = np.cumsum(counts) - counts
        rows = replace(self.rows.pick(of_row), steps=np.concatenate([_NOTHING, *begins]))
        # Together they weigh what their record does, which is in memory once.
        lengths = self.lengths[of_row] // np.maximum(counts[of_row], 1)
        inside = rising(0, len(of_row)) - firsts[of_row]
        numbers = self.numbers[of_row]
        return replace(self, rows=rows, lengths=lengths, numbers=numbers, inside=inside)

    def before(self, row: int) -> Coordinates:
        """Return the coordinates of a lane whose next record is this one."""
        return self.places.before(self.numbers.item(row), self.extent)

    def after(self, row: int) -> Coordinates:
        """Return the coordinates of a lane whose last record was this one."""
        return self.places.after(self.numbers.item(row), self.extent)

    def keep(self, indices: Indices, rows: RecordRows) -> RecordSpan:
        """Return the records that a filter keeps; ``rows`` refer to their bytes."""
        lengths, numbers = self.lengths[indices], self.numbers[indices]
        return replace(self, rows=rows, lengths=lengths, numbers=numbers)

    def leave_out(self, rows: Indices, *, keeps_places: bool) -> RecordSpan:
        """Return the records without some rows, or with placeholders for them."""
        if keeps_places:
            return replace(self, rows=self.rows.lose(rows))
        kept = np.delete(rising(0, len(self)), rows)
        return self.keep(kept, self.rows.take(kept))

    def cut(self, first: int, last: int | None) -> RecordSpan:
        """Return the records from ``first`` to before ``last``."""
        rows, part = self.rows.part(first, last), slice(first, last)
        return replace(self, rows=rows, lengths=self.lengths[part], numbers=self.numbers[part])


@dataclass(frozen=True, slots=True, eq=False)
class BlockPlaces:
    """The places of a block's records."""

    offsets: Indices
    lengths: Indices
    base: int
    first_ordinal: int
    crcs: Indices
    """int64 ``[records + 1]``: the ``crc`` before each record and after the last."""

    def before(self, number: int, extent: Extent) -> Coordinates:
        """Return the coordinates of a lane whose next record is the one of that number."""
        begin = self.base + self.offsets.item(number) - HEADER
        crc = self.crcs.item(number)
        return Coordinates(extent.number, begin, self.first_ordinal + number, crc)

    def after(self, number: int, extent: Extent) -> Coordinates:
        """Return the coordinates of a lane whose last record was the one of that number."""
        begin, frame = self.before(number, extent), self.lengths.item(number) + FRAME_OVERHEAD
        crc = self.crcs.item(number + 1)
        return begin._replace(offset=begin.offset + frame, record=begin.record + 1, crc=crc)

    def ends(self, numbers: Indices, extent: Extent) -> Indices:
        """Return int64 ``[records, numbers]``: the coordinates after each of these records."""
        ends = np.zeros((len(numbers), OWN), np.int64)
        stops = self.offsets + self.lengths
        ends[:, 0] = extent.number
        ends[:, 1] = stops[numbers] + (self.base - HEADER + FRAME_OVERHEAD)
        ends[:, 2] = numbers + (self.first_ordinal + 1)
        ends[:, 3] = self.crcs[numbers + 1]
        return ends


@dataclass(slots=True, eq=False)
class Segment:
    """Rows of one epoch that are ready, in the order of delivery."""

    rows: RecordRows
    epoch: int
    end: Callable[[int], Sequence[int] | Indices]
    """Returns the lane's coordinates after a row, as numbers."""
    merged: int = 0
    """The number of rows that the round robin has taken."""
    delivered: int = 0
    """The number of rows that are in a batch."""
    row_bytes: float = 0
    """The mean size of a row's payload in bytes."""
