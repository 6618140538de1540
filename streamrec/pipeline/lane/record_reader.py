"""The reader that finds records in a lane's ranges, in the order in which they are stored."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

from streamrec.errors import (
    CorruptCompression,
    DataError,
    OutOfMemory,
    RecordTooLarge,
    StaleIndex,
    StreamrecError,
    TruncatedShard,
)
from streamrec.formats.shards.resync import LARGEST
from streamrec.formats.shards.tfrecord import SHARE, DamagedSpan, FrameScanner
from streamrec.kernel.contract import fresh
from streamrec.pipeline.lane.ordering_stages import Coordinates, RecordSpan
from streamrec.pipeline.lane.placeholders import missing_from, part_of, placeholder_of

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from streamrec.kernel.contract import Allocate
    from streamrec.pipeline.fetch.demand import Demand
    from streamrec.pipeline.fetch.lane_inflater import LaneInflater
    from streamrec.pipeline.fetch.range_queue import RangeQueue, RangeRead, Shards
    from streamrec.pipeline.lane.ordering_stages import Records
    from streamrec.pipeline.lane.quarantine import CorruptionLog
    from streamrec.plan.order import Extent
    from streamrec.values.records import RecordBlock

__all__ = ["RecordReader", "Source"]


class Source(Protocol):
    """A source of a lane's records."""

    @property
    def ended(self) -> bool:
        """True when no more records will come."""
        ...

    def demand(self, number: int, lane: Demand) -> Demand:
        """Return the lane's demand of its feed of that number.

        Args:
            number: The number of a component or open shard; else 0.
            lane: The part of the demand that is the same for all of the lane's feeds.
        """
        ...

    @property
    def component(self) -> int:
        """The index of the component or open shard of the next record; else 0."""
        ...

    @property
    def refetched(self) -> int:
        """The number of faults that were gone when the bytes were read again."""
        ...

    @property
    def waits_for(self) -> str:
        """The name of the stage that the next records are in."""
        ...

    def pop(self) -> Records | Coordinates | None:
        """Return the next records, or the coordinates after an epoch's end; ``None`` if not there.

        Raises:
            StreamrecError: The error that ends the lane.
        """
        ...


class RecordReader:
    """A reader of one feed's records, from its ranges as they are received.

    Args:
        feed: The queue of its ranges or of decompressed pieces.
        shards: The shards' names and sizes.
        start: The coordinates to begin at.
        end: The coordinates at which a finite run leaves the feed.
        check_crc: Whether to check the records' CRCs.
        leaves_large: Whether to leave the CRCs of large payloads to the decoder.
        allocate: Allocates memory for a record that straddles ranges.
        share: The most bytes of that memory that are allocated before they have come.
        most: The size of the longest accepted record in bytes.
        corruption_log: The log of skipped damage; ``None``: damage ends the lane.
        keeps_placeholders: Whether a damaged record leaves a row without bytes in its place.
        notify: Called when a damaged span has been stored.
        reach: The number of different extents that the lane meets if it goes on for ever.
        epoch: The epoch of ``start``, which may be at its end; ``None``: that of the first extent.
    """

    component = 0

    def __init__(
        self,
        feed: RangeQueue | LaneInflater,
        shards: Shards,
        start: Coordinates,
        end: Coordinates,
        *,
        check_crc: bool,
        leaves_large: bool = False,
        allocate: Allocate = fresh,
        share: int = SHARE,
        most: int = LARGEST,
        corruption_log: CorruptionLog | None = None,
        keeps_placeholders: bool = False,
        notify: Callable[[], None] = lambda: None,
        reach: int = 1,
        epoch: int | None = None,
    ) -> None:
        self.ended = False
        """True when no more records will come."""
        self.refetched = 0
        """The number of faults that were gone when the bytes were read again."""
        self._feed = feed
        self._shards = shards
        self._first_record = start.record
        self._end = end
        self._check_crc = check_crc
        self._leaves_large = leaves_large
        self._allocate = allocate
        self._share = share
        self._most = most
        self._suspect: DataError | None = None
        self._reread = (0, 0)
        self._corruption_log = corruption_log
        self._keeps_placeholders = keeps_placeholders
        self._notify = notify
        self._most_empty_extents = 2 * reach
        self._empty_extents = -1
        self._vague = 0  # damaged spans of the extent with an unknown number of records
        self._found: deque[RecordBlock | DamagedSpan] = deque()
        self._storing: asyncio.Future[None] | None = None
        self._ready: deque[RecordSpan | Coordinates] = deque()
        self._extent: Extent | None = None
        self._epoch = epoch
        self._scanner: FrameScanner | None = None

    def demand(self, number: int, lane: Demand) -> Demand:  # noqa: ARG002 - there is one feed
        """Return the lane's demand of its only feed."""
        return lane

    @property
    def waits_for(self) -> str:
        """The name of the stage that the next records are in."""
        return "fetch" if self._storing is None else "quarantine"

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
        read = self._feed.first
        if read is None:
            return self._feed.ended and self._finish()
        if (extent := read.request.extent) is not self._extent:
            self._enter(read)
        if extent.epoch != self._epoch and self._holds_something(read):
            self._begin_epoch(extent)
            return True
        if read.scanned < read.filled and self._scan(read):
            return True
        if read.error is not None:
            return self._abandon(read, read.error)
        return read.done and self._leave(read)

    def _scan(self, read: RangeRead) -> bool:
        scanner = self._scanner
        assert scanner is not None
        scanner.size = self._size(read)
        try:
            blocks, consumed = scanner.scan(read.unused, more=not read.done)
        except DataError as fault:
            return self._suspects(fault, read)
        read.use(consumed)
        self._found += scanner.damaged
        scanner.damaged.clear()
        self._found += blocks
        return consumed > 0 or scanner.pending or bool(self._found)

    def _abandon(self, read: RangeRead, error: StreamrecError) -> bool:
        """Skip the rest of a compressed shard that was cut or damaged.

        The bytes before the fault follow from the object alone, so the order does too.

        Raises:
            StreamrecError: The error is another one, or damage is not skipped.
        """
        is_damage = isinstance(error, (CorruptCompression, TruncatedShard))
        if self._corruption_log is None or not is_damage:
            raise error
        assert isinstance(error, DataError)
        assert self._scanner is not None
        stored = self._shards.sizes[read.request.extent.shard]
        self._scanner.abandon(read.unused, error, max(0, stored - (error.offset or 0)))
        self._found += self._scanner.damaged
        self._scanner.damaged.clear()
        self._feed.give_up(read.request.extent)
        return True

    def _take_found(self) -> bool:
        """Pass on the first finding; a damaged span only once it has been stored."""
        assert self._extent is not None
        found = self._found[0]
        if isinstance(found, DamagedSpan):
            if not self._is_stored(found, self._extent.shard):
                return False
            self._vague += 0 if found.exact else found.records
            if found.exact and self._keeps_placeholders:
                placeholder = placeholder_of(found, self._extent.shard)
                self._ready.append(RecordSpan.of(self._extent, part_of(self._extent, placeholder)))
        else:
            self._acquit()
            self._empty_extents = -1
            if self._corruption_log is not None:
                self._corruption_log.met += len(found)
            self._ready.append(RecordSpan.of(self._extent, part_of(self._extent, found)))
        self._found.popleft()
        return True

    def _is_stored(self, damaged: DamagedSpan, shard: int) -> bool:
        """Count and store a damaged span; return whether that is done."""
        assert self._corruption_log is not None
        if self._storing is None:
            self._storing = self._corruption_log.skip(shard, damaged)
            if self._storing is not None:
                self._storing.add_done_callback(lambda _: self._notify())
        if self._storing is not None:
            if not self._storing.done():
                return False
            self._storing.result()
        self._storing = self._suspect = None
        return True

    def _suspects(self, fault: DataError, read: RangeRead) -> bool:
        """Read the bytes from a corrupt record on again, as they may have changed on the way.

        If that is no use, skip the damage. Bytes of compressed shards are not read again, since
        they would have to be read from the shard's beginning.

        Raises:
            DataError: The damage is certain and is not skipped, or the record is too large.
        """
        fault.__traceback__ = None  # else the kept fault would hold the range's memory
        assert fault.offset is not None
        assert fault.record is not None
        if self._is_certain(fault, read):
            # A record that is too large is never skipped: the order would depend on the memory.
            if self._corruption_log is None or isinstance(fault, RecordTooLarge):
                raise fault
            assert self._scanner is not None
            self._scanner.recover(fault)
            return True
        self._suspect = fault
        self._reread = fault.offset, read.request.stop
        self._feed.reread(fault.offset)
        self._scanner = self._scanner_at(read.request.extent, fault.offset, fault.record)
        return True

    def _is_certain(self, fault: DataError, read: RangeRead) -> bool:
        """Return whether reading the bytes again is of no use, or was of none."""
        if read.inflated or isinstance(fault, (TruncatedShard, RecordTooLarge)):
            return True
        assert fault.offset is not None
        start, stop = self._reread
        was_whole = start <= fault.offset and read.request.stop <= stop
        was_same = self._suspect is not None and self._suspect.offset == fault.offset
        return was_same or (was_whole and self._corruption_log is not None)

    def _acquit(self) -> None:
        """Count a suspected fault that is gone, as an intact record was found."""
        if self._suspect is not None:
            self._suspect = None
            self.refetched += 1

    def _leave(self, read: RangeRead) -> bool:
        scanner = self._scanner
        assert scanner is not None
        size, extent = self._size(read), read.request.extent
        if read.request.stop == extent.end and self._corruption_log is None:
            self._check_end(extent)
        elif size is not None and read.request.stop >= size:
            if scanner.searching:
                return self._scan(read)
            try:
                scanner.finish()
            except DataError as fault:
                return self._suspects(fault, read)
            if self._keeps_placeholders and extent.records is not None:
                self._fill_up(extent, scanner.ordinal)
        self._feed.drop()
        return True

    def _fill_up(self, extent: Extent, found: int) -> None:
        """Put placeholders behind a chunk's records for those that it lacks."""
        missing = missing_from(extent, found)
        if not len(missing):
            return
        assert self._corruption_log is not None
        self._corruption_log.miss(extent, len(missing) - self._vague)
        self._empty_extents = -1
        self._ready.append(RecordSpan.of(extent, missing))

    def _check_end(self, extent: Extent) -> None:
        """Check that the records end where the index says."""
        assert self._scanner is not None
        assert extent.records is not None
        last = extent.first_record + extent.skip + extent.records
        if self._scanner.offset != extent.end or self._scanner.ordinal < last:
            raise StaleIndex(
                f"the index says that record {last - 1} ends at byte {extent.end} or before, and "
                f"record {self._scanner.ordinal} begins at byte {self._scanner.offset}; write the "
                "index again with `streamrec index`",
                url=self._shards.urls[extent.shard],
            )

    def _size(self, read: RangeRead) -> int | None:
        """Return the shard's size in bytes; ``None`` for a compressed one before its last byte.

        Where damage is skipped, a chunk's end that an index gives counts as a shard's end.
        """
        # A compressed shard's size is ignored until then: findings must not depend on when it came.
        if read.inflated:
            return read.shard_size if read.scanned == read.filled else None
        extent = read.request.extent
        if self._corruption_log is not None and extent.end is not None:
            return extent.end
        return self._shards.sizes[extent.shard]

    def _finish(self) -> bool:
        if not self.ended:
            self.ended = True
            self._ready.append(self._end)
        return bool(self._ready)

    def _enter(self, read: RangeRead) -> None:
        extent, begin = read.request.extent, read.request.start
        self._empty_extents += 1
        if self._corruption_log is not None and self._empty_extents > self._most_empty_extents:
            raise self._corruption_log.hopeless(extent.shard, self._empty_extents)
        resumed = self._extent is None and begin != extent.begin
        self._extent, self._reread, self._vague = extent, (0, 0), 0
        ordinal = self._first_record if resumed else extent.first_record
        self._scanner = self._scanner_at(extent, begin, ordinal)

    def _holds_something(self, read: RangeRead) -> bool:
        """Return whether the shard is known not to be empty, or cannot be read.

        An empty shard begins no epoch: those of known size are never requested, and the coordinates
        must not depend on whether sizes were known.
        """
        known = read.shard_size if read.inflated else self._shards.sizes.get(read.shard)
        return bool(known) or read.filled > 0 or read.error is not None

    def _begin_epoch(self, extent: Extent) -> None:
        if self._epoch is not None:
            following = Coordinates(extent.number, extent.begin, extent.first_record)
            self._ready.append(following)
        self._epoch = extent.epoch

    def _scanner_at(self, extent: Extent, offset: int, ordinal: int) -> FrameScanner:
        return FrameScanner(
            url=self._shards.urls[extent.shard],
            shard=extent.shard,
            check_crc=self._check_crc,
            leaves_large=self._leaves_large,
            offset=offset,
            ordinal=ordinal,
            allocate=self._allocate,
            share=self._share,
            most=self._most,
            counts_gaps=extent.end is None,
        )

    def _out_of_memory(self, error: MemoryError) -> OutOfMemory:
        scanner = self._scanner
        assert scanner is not None
        return OutOfMemory.of(error, url=scanner.url, offset=scanner.offset, record=scanner.ordinal)
