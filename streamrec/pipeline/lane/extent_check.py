"""The check that the records of an extent stand where the index says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from streamrec.errors import StaleIndex
from streamrec.formats.shards.resync import LostBytes, Resync
from streamrec.formats.shards.tfrecord import HEADER

if TYPE_CHECKING:
    from streamrec.errors import DataError, StreamrecError
    from streamrec.formats.shards.tfrecord import FrameScanner
    from streamrec.pipeline.fetch.range_queue import RangeRead, Shards
    from streamrec.plan.order.shard_order import Extent
    from streamrec.values.record_rows import RecordBlock


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
        return StaleIndex(
            f"the index says that record {fault.record} begins at byte {fault.offset}, and no "
            "intact record does: the index is wrong, or the record is damaged; `streamrec verify` "
            "tells which of the two",
            url=self.shards.urls[shard],
        )

    def stale(self, extent: Extent, fault: str) -> StaleIndex:
        """Return the error for an extent that ends elsewhere than the index says."""
        return StaleIndex(
            f"the index says that record {extent.next_record} begins at byte {extent.end}, and "
            f"{fault}; write the index again with `streamrec index`",
            url=self.shards.urls[extent.shard],
        )
