"""The reader that finds records in a lane's ranges, in the order in which they are stored."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from streamrec.errors import (
    ConfigError,
    CorruptCompression,
    CorruptLength,
    CorruptRecord,
    DataError,
    ObjectChanged,
    OutOfMemory,
    TruncatedShard,
)
from streamrec.flow.stages import WaitClock
from streamrec.formats.shards.tfrecord import FOOTER, HEADER, DamagedSpan, footers, is_intact
from streamrec.pipeline.lane.damage_policy import with_way_on
from streamrec.pipeline.lane.record_span import ExtentCheck, RecordSpan
from streamrec.plan.order.coordinates import Coordinates
from streamrec.plan.order.shard_order import Extent
from streamrec.values.columns import rising

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from streamrec.errors import StreamrecError
    from streamrec.formats.shards.tfrecord import FrameScanner
    from streamrec.pipeline.fetch.range_queue import (
        Demand,
        LargeRecord,
        RangeQueue,
        RangeRead,
        Shards,
    )
    from streamrec.pipeline.lane.damage_policy import DamagePolicy
    from streamrec.values.record_rows import RecordBlock

_BEFORE = Extent(-1, -1, -1)
"""Stands for the extent before the first one."""


@dataclass(eq=False, repr=False)
class RecordReader:
    """A reader of one sublane's records, from its ranges as they are received.

    Args:
        queue: The queue of its ranges.
        shards: The shards' names and sizes.
        start: The coordinates to begin at.
        end: The coordinates at which a finite run leaves the sublane.
        new_scanner: Makes a scanner of a shard's frames.
        damage: The policy for damage.
        epoch: The epoch of ``start``, which may be at its end.
        waits: The run's attribution of time.
        number: The number of the sublane, for spans.
    """

    component: ClassVar = 0

    queue: RangeQueue
    shards: Shards
    start: Coordinates
    end: Coordinates
    new_scanner: Callable[..., FrameScanner]
    damage: DamagePolicy
    epoch: int = 0
    """The epoch of the records that were popped last."""
    waits: WaitClock = field(default_factory=WaitClock)
    """The clock to charge scanning to; all around it the producer orders records."""
    number: int = 0
    """The number of the sublane, for spans."""
    patience: int | None = None
    """The number of extents of excluded records alone after which the lane fails; ``None``: it ends
    by itself, or gives rows for them."""
    shard_bytes: int = 0
    """The bytes for which a shard counts in windows besides its records."""
    ended: bool = False
    """True when no more records will come."""
    _extent: Extent = _BEFORE
    _is_whole: bool = True  # the extent is read from its beginning
    _next_byte: int = 0  # after the last record that was given; at first, where the extent begins
    _crc: int | None = None  # after the last record; None: none of the extent was given yet
    _leap: int | None = None  # where reading began within an extent, at no compared position
    _lead: int = 0  # the bytes before the first record that are still to be compared
    _expected: int = 0  # the CRC of the first record, if the start is at the beginning of an extent
    _fruitful: int | None = None  # the last extent with a record that is not excluded
    _hides_excluded: bool = False  # an excluded record may be anywhere in the rest of the extent
    _found: deque[RecordBlock | DamagedSpan] = field(default_factory=deque)
    _ready: deque[RecordSpan | Coordinates] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._scanner = self.new_scanner(url="")
        self._index = ExtentCheck(self.shards)

    @property
    def waits_for(self) -> str:
        """The name of the stage that the next records are in."""
        if self.damage.is_storing:
            return "quarantine"
        return "decompress" if self.queue.decompresses else "fetch"

    def demand(self, number: int, lane: Demand) -> Demand:  # noqa: ARG002 - there is one sublane
        """Return the lane's demand of its only sublane."""
        return lane

    def pop(self) -> RecordSpan | Coordinates | None:
        """Return the next records, or the coordinates after an epoch's end; ``None`` if not there.

        Raises:
            StreamrecError: The error that ends the lane.
        """
        try:
            while not self._ready and self._read_on():
                pass
        except MemoryError as error:
            raise self._out_of_memory(error) from None
        return self._ready.popleft() if self._ready else None

    def _read_on(self) -> bool:
        """Take one step; return whether there was anything to do."""
        if self._found:
            return self._take_found()
        read = self.queue.first
        if read is None:
            return self.queue.ended and self._finish()
        if (extent := read.request.extent) is not self._extent:
            self._enter(read)
        if extent.epoch != self.epoch and self._holds_something(read):
            self._begin_epoch(extent)
            return True
        if self._lead and not self._compare_lead(read):
            return False
        if self._is_past(extent):
            self.queue.give_up(extent)
            return True
        if read.scanned < read.filled and self._scan(read):
            return True
        if read.error is not None:
            return self._abandon(read, read.error)
        large = self._large_in(read)
        return read.done and not (large and large.waits) and self._leave(read)

    # -- epochs ------------------------------------------------------------------------------------

    def _holds_something(self, read: RangeRead) -> bool:
        """Return whether the shard is known not to be empty, or cannot be read.

        An empty shard begins no epoch: those of known size are never requested, and the coordinates
        must not depend on whether sizes were known.
        """
        size = read.shard_size if read.inflated else self.shards.sizes.get(read.shard)
        return bool(size) or read.filled > 0 or read.error is not None

    def _begin_epoch(self, extent: Extent) -> None:
        self._ready.append(Coordinates(extent.number, extent.begin, extent.first_record))
        self.epoch = extent.epoch

    def _finish(self) -> bool:
        if not self.ended:
            self.ended = True
            self._ready.append(self.end)
        return bool(self._ready)

    # -- records -----------------------------------------------------------------------------------

    def _enter(self, read: RangeRead) -> None:
        extent, begin = read.request.extent, read.request.start
        self.damage.enter(extent)
        self._hides_excluded = False
        is_first = self._extent is _BEFORE
        resumed = is_first and begin != extent.begin
        self._extent, self._is_whole = extent, not resumed
        self._check_patience()
        ordinal = self.start.record if resumed else extent.first_record
        self._lead = lead(extent, self.start) if resumed else 0
        self._crc = self.start.crc if resumed else None
        # No record stands before an extent's first one, so that one's own CRC is compared, once it
        # is read.
        self._expected = self.start.crc if is_first and not resumed else 0
        self._leap = begin if resumed and not self._lead else None
        self._next_byte = begin + self._lead
        self._scanner = self._scanner_at(extent, begin + self._lead, ordinal)

    def _compare_lead(self, read: RangeRead) -> bool:
        """Compare the bytes before the first record with the position; return whether they came.

        Raises:
            ObjectChanged: The position was saved from another shard.
        """
        if read.filled < self._lead and not read.done:
            return False
        crc = int.from_bytes(read.memory[: min(self._lead, read.filled)].tobytes(), "little")
        read.scanned, self._lead = self._lead, 0
        if crc != self.start.crc:
            raise self._change_error()
        return True

    def _change_error(self) -> ObjectChanged:
        return ObjectChanged(
            "this is not the shard in which reading stopped: the record before this byte, or at "
            f"it, does not have the CRC {self.start.crc:#010x}; restore the object, or begin anew",
            url=self.shards.urls[self._extent.shard],
            offset=self.start.offset,
        )

    def _scanner_at(self, extent: Extent, offset: int, ordinal: int) -> FrameScanner:
        return self.new_scanner(
            url=self.shards.urls[extent.shard],
            shard=extent.shard,
            offset=offset,
            ordinal=ordinal,
            counts_gaps=extent.end is None,
        )

    def _scan(self, read: RangeRead) -> bool:
        scanner = self._scanner
        # Each time anew: the size may be known only since the answer, or only at a compressed
        # shard's end.
        scanner.size = self._size(read)
        waits = self.waits
        began = waits.produce("scan")
        try:
            blocks, consumed = self._take(read)
        except DataError as fault:
            return self._suspect(fault, read)
        finally:
            ended = waits.produce("order")
            if waits.spans is not None:
                waits.spans.add("lane", "scan", began, ended, lane=self.number)
        read.scanned += consumed
        self.queue.end_large(read.request.extent, scanner.offset)
        self._check_count(read.request.extent)
        self._find(blocks)
        return consumed > 0 or scanner.pending or bool(self._found)

    def _take(self, read: RangeRead) -> tuple[list[RecordBlock], int]:
        """Scan what was received of a range; at its end, copy the beginning of the next record."""
        scanner = self._scanner
        blocks, consumed = scanner.scan(read.unused, more=True)
        large = self._large_in(read)
        waits = large is not None and large.waits
        has_more = consumed > 0 or blocks or scanner.pending  # all of which comes before the rest
        if not read.done or waits or has_more or not len(read.unused):
            return blocks, consumed
        memory = None if large is None else large.memory
        return scanner.scan(read.unused, more=False, memory=memory)

    def _large_in(self, read: RangeRead) -> LargeRecord | None:
        """Return the large record that the range ends in, if it is one."""
        scanner = self._scanner
        if not scanner.needed or read.inflated:
            return None
        return self.queue.find_large(read.request.extent, scanner.offset, scanner.needed)

    def _find(self, blocks: Sequence[RecordBlock] = ()) -> None:
        """Queue what the scanner has found: damaged spans come before the blocks."""
        self._found += [*self._scanner.damaged, *blocks]
        self._scanner.damaged.clear()

    def _take_found(self) -> bool:
        """Pass on the first finding; a damaged span only once it has been stored."""
        item = self._found[0]
        if not isinstance(item, DamagedSpan):
            self.damage.count(item)
            self._give(item)
        elif not self._take_damaged(item):
            return False
        self._found.popleft()
        return True

    def _take_damaged(self, span: DamagedSpan) -> bool:
        """Leave a damaged span out; return whether that is done."""
        shard = self._extent.shard
        if not span.exact:
            # The records behind it have numbers that are a guess. Any of them may be one that the
            # list names, and so may a record whose bytes are in the span.
            self._hides_excluded |= self._excludes(span.record, self._extent.next_record)
        if span.exact and not self._hides_excluded and self._excludes_one(span.record):
            extent = self._extent
            begin = extent.first_record + extent.skip
            is_own = extent.records is None or 0 <= span.record - begin < extent.records
            self.damage.leave_out(is_own=is_own)
        elif not self.damage.skip(span, shard, keeps=not self._hides_excluded):
            return False
        if (placeholder := self.damage.placeholder(span, shard)) is not None:
            self._give(placeholder)
        return True

    def _excludes(self, first: int, end: int | None) -> bool:
        """Return whether one of these records of the extent's shard is excluded."""
        excluded = self.shards.excluded
        return excluded is not None and excluded.names_any(self._extent.shard, first, end)

    def _excludes_one(self, record: int) -> bool:
        return self._excludes(record, record + 1)

    def _give(self, block: RecordBlock) -> None:
        self._index.check_chunks(self._extent, block, is_exact=self._is_exact)
        behind = footers(block)
        if len(block) and not block.lost:
            begin = block.base + block.offsets.item(0) - HEADER
            if begin != self._next_byte:  # after damage: what is before the record is no record
                self._crc = 0
            last = block.offsets.item(-1) + block.lengths.item(-1)
            self._next_byte = block.base + last + FOOTER
        if self._crc is None and len(block):
            self._crc = behind.item(0)
            # Where a record is damaged, that is told instead.
            if self._crc and self._expected not in (0, self._crc) and is_intact(block, 0):
                raise self._change_error()
        crcs = np.concatenate([[self._crc or 0], behind])
        if len(block):
            self._crc = behind.item(-1)
        part = part_of(self._extent, block)
        first = part.first_ordinal - block.first_ordinal
        crcs = crcs[first : first + len(part) + 1]
        span = RecordSpan.of(self._extent, part, crcs, shard_bytes=self.shard_bytes)
        self._ready.append(span if part.lost else self._without_excluded(span, part))

    def _without_excluded(self, span: RecordSpan, block: RecordBlock) -> RecordSpan:
        """Return a block's records without the excluded ones, or with placeholders for them."""
        if self.shards.excluded is None:
            return span
        rows = self.shards.excluded.within(block.shard, block.first_ordinal, len(block))
        if self._hides_excluded:
            rows = rising(0, len(block))
        if len(rows) < len(block):
            self._fruitful = self._extent.number
        if not len(rows):
            return span
        self.damage.counts["records_excluded"] += len(rows)
        return span.leave_out(rows, keeps_places=self.damage.keeps_placeholders)

    def _check_patience(self) -> None:
        """Check that a lane without an end does not exclude all that it has.

        Raises:
            ConfigError: It does.
        """
        if self.shards.excluded is None or self.patience is None:
            return
        self._fruitful = self._extent.number if self._fruitful is None else self._fruitful
        if self._extent.number - self._fruitful > self.patience:
            raise ConfigError(
                f"{self.shards.excluded.place} excludes every record of a lane, and the run has no "
                "end; exclude fewer, lower lanes, or set epochs"
            )

    def _size(self, read: RangeRead) -> int | None:
        """Return the shard's size in bytes; ``None`` for a compressed one before its last byte.

        Where damage is skipped, a chunk's end that an index gives counts as a shard's end.
        """
        # A compressed shard's size is ignored until then: findings must not depend on when it came.
        if read.inflated:
            return read.shard_size if read.scanned == read.filled else None
        extent = read.request.extent
        if self.damage.skips and extent.end is not None:
            return extent.end
        return self.shards.sizes[extent.shard]

    def _leave(self, read: RangeRead) -> bool:
        scanner, size, extent = self._scanner, self._size(read), read.request.extent
        if read.request.stop == extent.end and not self.damage.skips:
            self._index.check_end(extent, scanner)
        elif size is not None and read.request.stop >= size:
            if scanner.searching:
                return self._scan(read)
            try:
                scanner.finish()
            except DataError as fault:
                return self._suspect(fault, read)
            if extent.end is not None and self._is_exact:
                self._index.check_end(extent, scanner)
            elif extent.next_record is not None and self._is_exact:
                self._index.check_total(extent, scanner.ordinal)
            elif self.shards.excluded is not None and self._is_exact:
                shard = extent.shard
                url = self.shards.urls[shard]
                self.shards.excluded.check_end(shard, scanner.ordinal, url)
            if (missing := self.damage.missing(extent, scanner.ordinal)) is not None:
                self._give(missing)
        self.queue.drop()
        return True

    def _is_past(self, extent: Extent) -> bool:
        """Return whether all records of a part of a shard were found, and more stand behind it."""
        if extent.end is not None or extent.records is None or self._found:
            return False
        last = extent.skip + extent.records
        # At the shard's own end it is compared that no other record follows.
        return self._scanner.ordinal >= last and last != extent.next_record

    def _check_count(self, extent: Extent) -> None:
        """Check that no record lies after the last one which the index counts.

        A run that counts ends with that one, and may never see the extent's end.
        """
        last, scanner = extent.next_record, self._scanner
        # Damage that has been found, and is still to be taken, may stand for any number of records.
        damaged = scanner.searching or scanner.damaged
        waits = damaged or any(isinstance(one, DamagedSpan) for one in self._found)
        if extent.end is None or last is None:
            return
        if scanner.ordinal >= last and self._is_exact and not waits:
            self._index.check_end(extent, scanner)

    @property
    def _is_exact(self) -> bool:
        """True if the numbers of the extent's records cannot be wrong because of damage."""
        return not self.damage.skips or (self._is_whole and not self.damage.has_skipped)

    # -- damage ------------------------------------------------------------------------------------

    def _suspect(self, fault: DataError, read: RangeRead) -> bool:
        """Read the bytes from a corrupt record on again, or search for the next intact one."""
        assert fault.offset is not None
        assert fault.record is not None
        extent = read.request.extent
        # Only its payload is wrong, so the next record begins where its length says.
        is_excluded = isinstance(fault, CorruptRecord) and self._excludes_one(fault.record)
        is_cut = isinstance(fault, TruncatedShard) and self._size(read) == extent.end
        if is_cut and (extent.end or 0) < self.shards.sizes[extent.shard] and self._is_exact:
            # A shard can be cut at its end alone, so here the chunk's end is wrong.
            place = f"record {fault.record} begins at byte {fault.offset} and crosses it"
            raise self._index.stale(extent, place)
        try:
            rereads = self.damage.rereads(fault, read, is_excluded=is_excluded)
        # Where only the index says that a record begins, the fault may be the index's.
        except CorruptLength:
            if not self._index.may_be_wrong(extent, fault, self._leap):
                raise
            if not read.done:  # the rest of its bytes may prove that a record begins here
                return False
            raise self._index.no_record_begins(extent, fault, read) from None
        if rereads:
            # The scanner has used bytes after the fault, so a new one begins there.
            self.queue.reread(fault.offset)
            self._scanner = self._scanner_at(read.request.extent, fault.offset, fault.record)
        else:
            self._scanner.recover(fault)
        return True

    def _abandon(self, read: RangeRead, error: StreamrecError) -> bool:
        """Skip the rest of a compressed shard that was cut or damaged.

        The bytes before the fault follow from the object alone, so the order does too.

        Raises:
            StreamrecError: The error is another one, or damage is not skipped.
        """
        if not isinstance(error, CorruptCompression | TruncatedShard):
            raise error
        if not self.damage.skips:
            raise with_way_on(error)
        stored = self.shards.sizes[read.request.extent.shard]
        self._scanner.abandon(read.unused, error, max(0, stored - (error.offset or 0)))
        self._find()
        self.queue.give_up(read.request.extent)
        return True

    def _out_of_memory(self, error: MemoryError) -> OutOfMemory:
        scanner = self._scanner
        return OutOfMemory.of(error, url=scanner.url, offset=scanner.offset, record=scanner.ordinal)


def lead(extent: Extent, start: Coordinates) -> int:
    """Return the number of bytes before a start that are read to compare them with its CRC."""
    return FOOTER if start.crc and start.offset > extent.begin else 0


def part_of(extent: Extent, block: RecordBlock) -> RecordBlock:
    """Return the records of a block that belong to its extent."""
    if extent.records is None:
        return block
    begin = extent.first_record + extent.skip
    first = max(0, begin - block.first_ordinal)
    last = max(first, begin + extent.records - block.first_ordinal)
    if first == 0 and last >= len(block):
        return block
    return replace(
        block,
        offsets=block.offsets[first:last],
        lengths=block.lengths[first:last],
        first_ordinal=block.first_ordinal + first,
    )
