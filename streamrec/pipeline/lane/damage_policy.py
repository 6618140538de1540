"""The policy for the damage in a sublane: it is read again, then skipped or raised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from streamrec.errors import RecordTooLarge, TruncatedShard
from streamrec.formats.shards.tfrecord import FOOTER, HEADER
from streamrec.values.record_rows import RecordBlock

if TYPE_CHECKING:
    import asyncio
    from collections import Counter
    from collections.abc import Callable

    from streamrec.errors import DataError
    from streamrec.formats.shards.tfrecord import DamagedSpan
    from streamrec.pipeline.fetch.range_queue import RangeRead
    from streamrec.pipeline.lane.quarantine import CorruptionLog
    from streamrec.plan.order.shard_order import Extent

_NOTHING = np.empty(0, np.uint8)


@dataclass(eq=False)
class DamagePolicy:
    """The policy for one sublane's damage, with the faults that it has met.

    Args:
        counts: Counts faults that are gone when the bytes are read again, as ``refetched``.
        log: The log of skipped damage; ``None``: damage ends the lane.
        keeps_placeholders: Whether a damaged record leaves a row without bytes in its place.
        notify: Called when a damaged span has been stored.
        reach: The number of different extents that the lane meets if it goes on for ever.
    """

    counts: Counter[str]
    log: CorruptionLog | None = None
    keeps_placeholders: bool = False
    notify: Callable[[], None] = lambda: None
    reach: int = 1
    _empty_extents: int = -1
    _damaged: bool = False  # a part of the extent was skipped
    _inexact: int = 0  # damaged records of the extent that are a guess
    _suspect: DataError | None = None
    _reread: tuple[int, int] = (0, 0)
    _storing: asyncio.Future[None] | None = None

    @property
    def skips(self) -> bool:
        """True if damage is skipped."""
        return self.log is not None

    @property
    def has_skipped(self) -> bool:
        """True if a part of the extent was skipped."""
        return self._damaged

    @property
    def is_storing(self) -> bool:
        """True while a damaged span is being stored."""
        return self._storing is not None

    def enter(self, extent: Extent) -> None:
        """Begin an extent.

        Raises:
            CorruptBudgetExceeded: No extent of the lane has an intact record.
        """
        self._reread, self._inexact, self._damaged = (0, 0), 0, False
        self._empty_extents += 1
        if self.log is not None and self._empty_extents > 2 * self.reach:
            raise self.log.hopeless(extent.shard, self._empty_extents)

    def rereads(self, fault: DataError, read: RangeRead) -> bool:
        """Return whether to read a corrupt record again, as it may have changed on the way.

        If that is of no use, the damage is skipped.

        Raises:
            DataError: The damage is certain and is not skipped, or the record is too large.
        """
        fault.__traceback__ = None  # else the kept fault would hold the range's memory
        assert fault.offset is not None
        if self._is_certain(fault, read):
            # A record that is too large is never skipped: the order would depend on the memory.
            if self.log is None or isinstance(fault, RecordTooLarge):
                raise fault
            return False
        self._suspect = fault
        self._reread = fault.offset, read.request.stop
        return True

    def _is_certain(self, fault: DataError, read: RangeRead) -> bool:
        """Return whether reading the bytes again is of no use, or was of none."""
        # Those of a compressed shard would have to be read from the shard's beginning.
        if read.inflated or isinstance(fault, (TruncatedShard, RecordTooLarge)):
            return True
        assert fault.offset is not None
        start, stop = self._reread
        was_whole = start <= fault.offset and read.request.stop <= stop
        was_same = self._suspect is not None and self._suspect.offset == fault.offset
        return was_same or (was_whole and self.log is not None)

    def count(self, block: RecordBlock) -> None:
        """Count intact records; a suspected fault before them is gone."""
        if self._suspect is not None:
            self._suspect = None
            self.counts["refetched"] += 1
        self._empty_extents = -1
        if self.log is not None:
            self.log.met += len(block)

    def skip(self, damaged: DamagedSpan, shard: int) -> bool:
        """Count and store a damaged span; return whether that is done."""
        assert self.log is not None
        if self._storing is None:
            self._storing = self.log.skip(shard, damaged)
            if self._storing is not None:
                self._storing.add_done_callback(lambda _: self.notify())
        if self._storing is not None:
            if not self._storing.done():
                return False
            self._storing.result()
        self._storing = self._suspect = None
        self._damaged = True
        self._inexact += 0 if damaged.exact else damaged.records
        return True

    def placeholder(self, damaged: DamagedSpan, shard: int) -> RecordBlock | None:
        """Return the row that a damaged span leaves; ``None`` if it leaves none."""
        leaves_row = damaged.exact and self.keeps_placeholders
        return placeholder_of(damaged, shard) if leaves_row else None

    def missing(self, extent: Extent, found: int) -> RecordBlock | None:
        """Return placeholders for the records that a chunk lacks; ``None`` if it needs none.

        Args:
            extent: The extent that has been read.
            found: The number in the shard of the first record that was not found.
        """
        if not self.keeps_placeholders or extent.records is None:
            return None
        missing = missing_from(extent, found)
        if not len(missing):
            return None
        assert self.log is not None
        self.log.miss(extent, len(missing) - self._inexact)
        self._empty_extents = -1
        return missing


def placeholder_of(damaged: DamagedSpan, shard: int) -> RecordBlock:
    """Make a placeholder for a damaged span that is exactly one record: a row without bytes."""
    length = len(damaged.content) - HEADER - FOOTER
    offsets, lengths = np.array([HEADER]), np.array([length])
    return RecordBlock(
        buffer=_NOTHING,
        offsets=offsets,
        lengths=lengths,
        shard=shard,
        first_ordinal=damaged.record,
        base=damaged.offset,
        lost=True,
    )


def missing_from(extent: Extent, begin_of_gap: int) -> RecordBlock:
    """Make placeholders for the extent's records that were not found before its end.

    Args:
        extent: An extent whose records an index counts.
        begin_of_gap: The number in the shard of the first record that was not found.
    """
    assert extent.end is not None
    assert extent.records is not None
    begin = extent.first_record + extent.skip
    first = max(begin, begin_of_gap)
    count = max(0, begin + extent.records - first)
    nothing = np.zeros(count, np.int64)
    base = extent.end - HEADER - FOOTER
    return RecordBlock(
        buffer=_NOTHING,
        offsets=nothing + HEADER,
        lengths=nothing,
        shard=extent.shard,
        first_ordinal=first,
        base=base,
        lost=True,
    )
