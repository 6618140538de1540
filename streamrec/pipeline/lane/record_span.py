"""The units of a lane: spans of records from its source, and segments of rows that are ready.

And the check that the records of an extent stand where the index says.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np

from streamrec.config.places import command_for
from streamrec.errors import StaleIndex
from streamrec.formats.shards.resync import LostBytes, Resync
from streamrec.formats.shards.tfrecord import HEADER
from streamrec.plan.order.coordinates import OWN, Coordinates
from streamrec.plan.order.window import FRAME_OVERHEAD
from streamrec.values.columns import rising
from streamrec.values.record_rows import RecordRows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from streamrec.errors import DataError, StreamrecError
    from streamrec.formats.shards.tfrecord import FrameScanner
    from streamrec.pipeline.fetch.range_queue import RangeRead, Shards
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
    """int64 ``[rows]``: the payloads' sizes in the shard, in bytes, damaged ones included; that of
    a shard's first record with what the shard counts for in windows."""
    places: RecordPlaces
    numbers: Indices
    """int64 ``[rows]``: the number of each record among the places."""
    inside: Indices | None = None
    """int64 ``[rows]``: the number of each window in its record; ``None``: rows are records."""

    @classmethod
    def of(
        cls,
        extent: Extent,
        block: RecordBlock,
        crcs: Indices | None = None,
        *,
        shard_bytes: int = 0,
    ) -> Self:
        """Make a span of all records of a block.

        Args:
            extent: The extent that they are of.
            block: The records.
            crcs: int64 ``[records + 1]``: the ``crc`` of the coordinates before each record and
                after the last; by default they are not known.
            shard_bytes: Bytes for which a shard counts besides its records: with its first one.
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
        lengths = block.lengths
        if shard_bytes and len(block) and block.first_ordinal == 0:
            lengths = np.concatenate([lengths[:1] + shard_bytes, lengths[1:]])
        return cls(extent, rows, lengths, places, numbers)

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

    def ends_from(self, first: int) -> Callable[[int], Sequence[int] | Indices]:
        """Return a function of the lane's coordinates after a row, counted from ``first`` on."""
        if self.inside is None:
            return LaneEnds(self.places, self.numbers[first:], self.extent)
        return self.ends[first:].__getitem__

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


ASKED_ALONE = 64
"""Rows of which one is asked for alone: to look it up costs as much as a share of them all."""


class LaneEnds:
    """The lane's coordinates after rows, where a large batch asks for one in many.

    Args:
        places: The coordinates around records.
        numbers: int64 ``[rows]``: the number of each record among them.
        extent: The extent that they are of.
    """

    __slots__ = ("_all", "_alone", "_extent", "_numbers", "_places")

    def __init__(self, places: RecordPlaces, numbers: Indices, extent: Extent) -> None:
        self._places, self._numbers, self._extent = places, numbers, extent
        self._alone = len(numbers) // ASKED_ALONE
        self._all: Indices | None = None

    def __call__(self, row: int) -> Sequence[int] | Indices:
        """Return the coordinates after a row, as numbers."""
        if self._alone > 0:
            self._alone -= 1
            return self._places.after(self._numbers.item(row), self._extent).numbers
        if self._all is None:
            self._all = self._places.ends(self._numbers, self._extent)
        end: Indices = self._all[row]
        return end


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


@dataclass(frozen=True)
class ExtentCheck:
    """The comparison of what is read of extents with what the index says of them.

    Args:
        shards: The shards' names and sizes, and the index's entries of them.
    """

    shards: Shards

    def check_end(self, extent: Extent, scanner: FrameScanner) -> None:
        """Check that the records end where the index says, and are as many.

        Raises:
            StaleIndex: They do not.
        """
        if (scanner.offset, scanner.ordinal) != (extent.end, extent.next_record):
            place = f"record {scanner.ordinal} begins at byte {scanner.offset}"
            raise self.stale(extent, place)

    def check_total(self, extent: Extent, records: int) -> None:
        """Check that a shard has as many records as the folder that it belongs to says.

        Raises:
            StaleIndex: It has more or fewer.
        """
        if records != extent.next_record:
            raise StaleIndex(
                f"the folder's dataset_info.json counts {extent.next_record} records in this "
                f"shard, and it has {records}; fetch the folder again, or name the shards by a "
                "pattern and leave split out",
                url=self.shards.urls[extent.shard],
            )

    def check_chunks(self, extent: Extent, block: RecordBlock, *, is_exact: bool) -> None:
        """Check that the records that begin chunks are those that were indexed.

        Args:
            extent: The extent that the records are in.
            block: The records.
            is_exact: True if damage cannot have made their numbers wrong.

        Raises:
            StaleIndex: They are others.
        """
        entry = self.shards.entries[extent.shard] if self.shards.entries else None
        if entry is None:
            return
        fault = "differs from the record that was indexed"
        row = entry.replaced(block)
        if row is None and is_exact:
            fault = "has another number in the index"
            row = entry.miscounted(block)
        if row is not None:
            raise StaleIndex(
                f"the index is stale: record {block.first_ordinal + row} {fault}; write the index "
                "again with `streamrec index`",
                url=self.shards.urls[extent.shard],
                offset=block.base + block.offsets.item(row) - HEADER,
            )

    def may_be_wrong(self, extent: Extent, fault: DataError, leap: int | None) -> bool:
        """Return whether only an index says that a record begins at the fault.

        It does where an extent begins, and where a seek leaped into one. A saved position in an
        extent has the CRC of the record before it, which was compared.

        Args:
            extent: The extent that is read.
            fault: The fault in its bytes.
            leap: The place in the extent at which reading began; ``None``: its beginning, or a
                place that was compared.
        """
        entries = self.shards.entries
        if 0 < extent.begin == fault.offset:
            return True
        leaped = bool(entries) and fault.offset == leap
        return leaped and fault.offset in entries[extent.shard].begins

    def no_record_begins(self, extent: Extent, fault: DataError, read: RangeRead) -> StreamrecError:
        """Return the error for a place at which the index says that a record begins.

        Where the bytes prove that it does, its length is damaged. Else this is one of two troubles.
        """
        assert fault.offset is not None
        shard = extent.shard
        gap = Resync().look(read.unused, self.shards.sizes[shard] - fault.offset)
        if isinstance(gap, LostBytes) and gap.exact:
            return fault
        url = self.shards.urls[shard]
        return StaleIndex(
            f"the index says that record {fault.record} begins at byte {fault.offset}, and no "
            "intact record does: the index is wrong, or the record is damaged; "
            f"{command_for('verify', {'source': url})} tells which of the two",
            url=url,
        )

    def stale(self, extent: Extent, fault: str) -> StaleIndex:
        """Return the error for an extent that ends elsewhere than the index says."""
        return StaleIndex(
            f"the index says that record {extent.next_record} begins at byte {extent.end}, and "
            f"{fault}; write the index again with `streamrec index`",
            url=self.shards.urls[extent.shard],
        )
