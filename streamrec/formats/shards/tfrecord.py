"""TFRecord framing: finds the records in a shard's bytes as they arrive, and frames records.

A frame is the payload's length (uint64), its masked CRC32C (uint32), the payload, and the payload's
masked CRC32C (uint32), little-endian. Source: tensorflow/core/lib/io/record_writer.h. A shard is
frames end to end: it has no header, no index and no end mark.
"""

from __future__ import annotations

import struct
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from streamrec import kernel
from streamrec.errors import CorruptLength, CorruptRecord, DataError, RecordTooLarge, TruncatedShard
from streamrec.formats.shards.compression import hint_at_kind
from streamrec.formats.shards.resync import LARGEST, LARGEST_PART, Resync
from streamrec.kernel.contract import FOOTER, HEADER, MAX_NEEDED, FaultCode, FrameScan, fresh
from streamrec.masking import masked
from streamrec.values.record_rows import RecordBlock

if TYPE_CHECKING:
    from streamrec.kernel.contract import Allocate
    from streamrec.values.columns import ByteArray, Bytes, Indices
    from streamrec.values.record_rows import RecordRows

__all__ = [
    "FOOTER",
    "HEADER",
    "DamagedSpan",
    "FrameScanner",
    "corrupt_row",
    "footer",
    "footers",
    "frame",
    "is_intact",
]

_LENGTH = struct.Struct("<Q")
_HEADER = struct.Struct("<QI")
_CRC = struct.Struct("<I")

_CUT = "it was cut short, and the records after this place are missing"

LARGE = 32 << 10
"""The payload size, in bytes, from which on the decoding threads check the CRC, which spares the
event loop a pass over the payload. For smaller ones the second call costs the threads more than it
spares the loop."""

SHARE = 1 << 20
"""Bytes that are allocated at once for a record that straddles views."""
GROWTH = 4
"""Bytes that are allocated for each received byte of a longer record. So a length alone, which may
be wrong, takes no memory; received bytes are copied 1.33 times on average."""


def frame(payload: Bytes) -> bytes:
    """Return the frame of one record."""
    length = _LENGTH.pack(len(payload))
    crcs = kernel.masked_crc32c(length), kernel.masked_crc32c(payload)
    return b"".join((length, _CRC.pack(crcs[0]), payload, _CRC.pack(crcs[1])))


def corrupt_row(rows: RecordRows) -> int:
    """Return the first row that a scanner left unchecked and whose CRC does not match; else -1."""
    return kernel.corrupt_row(rows, LARGE)


def footers(block: RecordBlock) -> Indices:
    """Return int64 ``[records]``: the stored CRC after each payload; 0 for damaged records."""
    if block.lost or not len(block):
        return np.zeros(len(block), np.int64)
    # One view of all bytes as overlapping numbers: several times faster than to join four bytes.
    words = np.ndarray((len(block.buffer) - FOOTER + 1,), "<u4", block.buffer.data, strides=(1,))
    found: Indices = words[block.offsets + block.lengths].astype(np.int64)
    return found


def footer(block: RecordBlock, row: int) -> int:
    """Return the stored CRC after the payload of one row."""
    end = block.offsets.item(row) + block.lengths.item(row)
    return int.from_bytes(block.buffer[end : end + FOOTER].tobytes(), "little")


def is_intact(block: RecordBlock, row: int) -> bool:
    """Return whether a row's payload has the stored CRC; a scanner may leave that unchecked."""
    begin = block.offsets.item(row)
    payload = block.buffer[begin : begin + block.lengths.item(row)]
    return kernel.masked_crc32c(payload.data) == footer(block, row)


class DamagedSpan(NamedTuple):
    """A span of a shard that was given up, since nothing in it can be proven to be intact."""

    offset: int
    """The byte of the shard at which the stretch begins."""
    content: ByteArray
    """The bytes of the stretch, in memory of their own."""
    record: int
    """The number, in the shard, of the record that the stretch is or begins with."""
    records: int
    """The number of records that it counts as: 1, or 0 where it continues a span before."""
    exact: bool
    """True where it is proven to be one record."""
    fault: DataError
    """The fault at its beginning, or at that of the first span which it continues."""
    unread: int = 0
    """The stored bytes after it of a compressed shard, which cannot be decompressed."""

    @property
    def end(self) -> int:
        """The byte of the shard after the stretch."""
        return self.offset + len(self.content)


class FrameScanner:
    """A scanner that finds the records of one shard in views of its bytes, given in order.

    It does no I/O, and copies only a record that straddles two views.

    Args:
        url: The shard, for errors.
        shard: The shard's number in the dataset, for blocks.
        check_crc: Check both CRCs of every record; else neither.
        leaves_large: Leave it to :func:`corrupt_row` to check payloads of ``LARGE`` bytes or more.
        offset: The byte of the shard at which the first view begins, which is that of a frame.
        ordinal: The number, in the shard, of the record there.
        allocate: A function that gives the memory for a record that straddles views.
        share: The bytes of such a record that may be allocated before they have arrived.
        most: The length of the longest record, in bytes; a longer one is a fault.
        counts_gaps: Count a stretch with an unknown number of lost records as one record; else the
            records after it are numbered as if there had been none.
    """

    def __init__(
        self,
        *,
        url: str,
        shard: int = 0,
        check_crc: bool = True,
        leaves_large: bool = False,
        offset: int = 0,
        ordinal: int = 0,
        allocate: Allocate = fresh,
        share: int = SHARE,
        most: int = LARGEST,
        counts_gaps: bool = True,
    ) -> None:
        self.url = url
        self.shard = shard
        self._check_crc = check_crc
        self._large = LARGE if leaves_large else MAX_NEEDED
        self.offset = offset
        """The byte of the shard at which the next record's frame begins."""
        self.ordinal = ordinal
        """The next record's number in the shard."""
        self.size: int | None = None
        """The size of the shard in bytes, or the end of the part that is read; ``None`` while it is
        not known. No record may reach beyond it."""
        self.needed = 0
        """Bytes of the next frame, if the last view ended in it and it was left there; else 0."""
        self._most = most
        self._counts_gaps = counts_gaps
        self.damaged: list[DamagedSpan] = []
        """The spans given up after :meth:`recover`, which come before the blocks of the same
        ``scan``; the caller clears this list."""
        self._new_tail = partial(_Tail, allocate, share)
        self._tail = self._new_tail()
        self._fault: DataError | None = None
        self._search: Resync | None = None
        self._cause: DataError | None = None

    def __repr__(self) -> str:
        return f"<FrameScanner of {masked(self.url)} at record {self.ordinal}, byte {self.offset}>"

    def scan(
        self, view: ByteArray, *, more: bool, memory: ByteArray | None = None
    ) -> tuple[list[RecordBlock], int]:
        """Find the records that end in the next bytes of the shard.

        Args:
            view: uint8, contiguous: the bytes that follow those already consumed.
            more: True: the same memory will be presented again, longer, from the first byte not
                consumed, so an incomplete record is left in place. False: it is copied, and waits
                for the next view.
            memory: Memory for the whole incomplete record. The next views may be parts of it, at
                their places, which are not copied; ``None``: it is allocated.

        Returns:
            Blocks, whose buffer is ``view``, or memory of its own for a record that straddled
            views; and the number of bytes of ``view`` that were consumed: all of them if ``more``
            is False, unless there is a fault.

        Raises:
            CorruptLength: A record's length is wrong.
            CorruptRecord: A record's payload is wrong.
            TruncatedShard: A record is longer than what is left of the shard.
            RecordTooLarge: A record is longer than ``most``.
                The records before a fault are returned first; the next call raises it.
        """
        self._raise_pending()
        self.needed = 0
        if self._search:
            return self._step_over(view, self._search)
        blocks: list[RecordBlock] = []
        begin = self._complete_tail(view, blocks) if self._tail else 0
        # Still incomplete, so the view is used up; or a fault, after which nothing is read.
        if self._tail or self._fault:
            return blocks, begin
        stop, needed = self._scan(view, begin, len(view), blocks)
        # Nothing is copied where the same memory comes again, or the view ends with a record.
        if more or self._fault or stop == len(view):
            self.needed = 0 if self._fault else needed
            return blocks, stop
        if memory is not None:
            self._tail = self._new_tail(memory)
        self._tail.take(view[stop:], needed)
        return blocks, len(view)

    def recover(self, fault: DataError) -> None:
        """Go on after a fault that was raised, with a search for the next intact record.

        The next calls of ``scan`` search, from the bytes that follow those consumed, and add the
        spans given up to ``damaged``. At the shard's end a call without bytes ends the search.
        """
        self._fault, self._cause, self._search = None, fault, Resync(self._most)

    def abandon(self, rest: ByteArray, fault: DataError, unread: int) -> None:
        """Give up the rest of the shard, whose bytes cannot be read.

        Args:
            rest: The bytes that follow those consumed, as far as there are any.
            fault: The reason.
            unread: The number of bytes, of the stored object, that cannot be read.
        """
        content = np.concatenate([self._tail.bytes, rest])
        damaged = DamagedSpan(
            self.offset, content, self.ordinal, 1, exact=False, fault=fault, unread=unread
        )
        self.damaged.append(damaged)
        self._tail, self._search = self._new_tail(), None

    @property
    def searching(self) -> bool:
        """True while the next intact record after a fault is being searched for."""
        return self._search is not None

    @property
    def pending(self) -> bool:
        """True while a fault is found that the next call will raise."""
        return self._fault is not None

    def finish(self) -> None:
        """Check that the shard ends after a record.

        Raises:
            TruncatedShard: The shard ends inside a record.
            CorruptLength: The last ``scan`` found this fault.
            CorruptRecord: The last ``scan`` found this fault.
        """
        self._raise_pending()
        if self._tail:
            advice = self._advice(self._tail.bytes[:HEADER].tobytes())
            raise self._error(
                TruncatedShard,
                f"the shard ends {len(self._tail)} bytes into the record's frame: {_CUT}; {advice}",
            )

    def _raise_pending(self) -> None:
        if self._fault:
            raise self._fault

    def _step_over(self, view: ByteArray, search: Resync) -> tuple[list[RecordBlock], int]:
        """Search for the next intact record, and scan the bytes read for the search."""
        taken = 0
        blocks: list[RecordBlock] = []
        while self._search:
            left = None if self.size is None else self.size - self.offset
            answer = search.look(self._tail.bytes, left)
            if not isinstance(answer, int):
                self._give_up(*answer)
            elif taken < len(view):
                # Twice the room, since the search asks for more bytes step by step.
                room = max(answer, min(2 * answer, LARGEST_PART))
                taken += self._tail.fill(view[taken:], answer, room)
            else:
                return [], taken
        stop, needed = self._scan(self._tail.bytes, 0, len(self._tail), blocks)
        self._tail = self._tail.rest(stop, 0 if self._fault else needed)
        return blocks, taken

    def _give_up(self, size: int, records: int, exact: bool, done: bool) -> None:
        assert self._cause is not None
        if size:
            # In memory of its own: it may be stored by a thread when the tail is gone.
            content = self._tail.bytes[:size].copy()
            self.damaged.append(
                DamagedSpan(self.offset, content, self.ordinal, records, exact, self._cause)
            )
        self._tail = self._tail.rest(size)
        self.offset += size
        self.ordinal += records if exact or self._counts_gaps else 0
        if done:
            self._search = None

    def _scan(
        self, buffer: ByteArray, begin: int, end: int, blocks: list[RecordBlock]
    ) -> tuple[int, int]:
        """Append a block of the whole records in ``buffer[begin:end]``.

        Returns:
            The first byte not consumed, and the size of the incomplete frame there (0: unknown).
        """
        found = kernel.scan_frames(buffer, begin, end, self._check_crc, self._large)
        # A smaller view holds no record that is too large.
        if end - begin > self._most:
            found = self._before_too_large(found)
        base = self.offset - begin
        if len(found.offsets):
            blocks.append(
                RecordBlock(buffer, found.offsets, found.lengths, self.shard, self.ordinal, base)
            )
        self.ordinal += len(found.offsets)
        self.offset = base + found.stop
        self._fault = self._fault_of(buffer, found)
        return found.stop, found.needed

    def _complete_tail(self, view: ByteArray, blocks: list[RecordBlock]) -> int:
        """Append the missing bytes to the record that straddles views, first those of its header.

        Returns:
            The number of bytes taken from the view.
        """
        # The header first, since it tells how many bytes the record needs.
        taken = self._tail.fill(view, HEADER, HEADER)
        _, needed = self._scan(self._tail.bytes, 0, len(self._tail), blocks)
        if needed and not self._fault:
            taken += self._tail.fill(view[taken:], needed, needed)
            if len(self._tail) == needed:
                self._scan(self._tail.bytes, 0, needed, blocks)
        if blocks:
            self._tail = self._new_tail()
        return taken

    def _before_too_large(self, found: FrameScan) -> FrameScan:
        """Cut a scan at the first record that is too large, as if only its header were there."""
        too_large = np.flatnonzero(found.lengths > self._most)
        if not len(too_large):
            return found
        first = int(too_large[0])
        offsets, lengths = found.offsets[:first], found.lengths[:first]
        stop, needed = int(found.offsets[first]) - HEADER, _frame_size(int(found.lengths[first]))
        return FrameScan(offsets, lengths, stop, needed, FaultCode.NONE)

    def _fault_of(self, buffer: ByteArray, found: FrameScan) -> DataError | None:
        """Return the error for the frame at which a scan stopped; ``None`` if nothing is wrong."""
        # Checked before the bytes are waited for: a wrong length could ask for a terabyte.
        may_come = found.needed <= _frame_size(self._most) and self._fits(found.needed)
        if not found.fault and (may_come or not found.needed):
            return None
        length, crc = _HEADER.unpack_from(buffer.data, found.stop)
        if found.fault is FaultCode.LENGTH_CRC:
            return self._corrupt_length(length, crc)
        if length > self._most or not self._fits(_frame_size(length)):
            return self._too_long(length, crc)
        return self._corrupt_record(buffer, found.stop) if found.fault else None

    def _fits(self, needed: int) -> bool:
        return needed <= (LARGEST if self.size is None else self.size - self.offset)

    def _corrupt_record(self, buffer: ByteArray, stop: int) -> DataError:
        (length,) = _LENGTH.unpack_from(buffer.data, stop)
        payload = buffer[stop + HEADER : stop + HEADER + length].data
        (stored,) = _CRC.unpack_from(buffer.data, stop + HEADER + length)
        return self._error(
            CorruptRecord,
            f"the CRC32C of the record's {length} bytes is {kernel.masked_crc32c(payload):#010x}, "
            f"but the shard says {stored:#010x}; fetch or write the shard again",
        )

    def _corrupt_length(self, length: int, stored: int) -> DataError:
        computed = kernel.masked_crc32c(_LENGTH.pack(length))
        return self._error(
            CorruptLength,
            f"the CRC32C of the record's length is {computed:#010x}, but the shard says "
            f"{stored:#010x}: it is corrupt, compressed, or not a TFRecord file; "
            f"{self._advice(_LENGTH.pack(length) + _CRC.pack(stored))}",
        )

    def _advice(self, head: bytes) -> str:
        """Return what to do about a frame that begins with these bytes."""
        # Only the first bytes of an object tell its kind.
        foreign = "" if self.offset else hint_at_kind(head)
        return foreign or "fetch or write the shard again"

    def _too_long(self, length: int, stored: int) -> DataError:
        """Return the error for a length beyond the limit or the shard's end, or for a wrong CRC."""
        # A length that its CRC denies is damage, and not a record that is too large.
        if kernel.masked_crc32c(_LENGTH.pack(length)) != stored:
            return self._corrupt_length(length, stored)
        if not self._fits(_frame_size(length)):
            return self._beyond_the_end(length)
        return self._error(
            RecordTooLarge,
            f"the record has {length} bytes, more than max_record_bytes, which is {self._most} "
            "(by default as much as memory_budget); raise max_record_bytes, or both, to read the "
            "record",
        )

    def _beyond_the_end(self, length: int) -> DataError:
        """Return the error for a length, with a right CRC, that reaches beyond the shard's end."""
        left = "no object can hold"
        if self.size is not None:
            part = "the shard" if self._counts_gaps else "the shard's indexed chunk"
            left = f"reach beyond byte {self.size}, the end of {part}"
        message = f"the record's length matches its CRC32C, but its {length} bytes {left}"
        if _frame_size(length) > LARGEST:
            return self._error(
                CorruptLength,
                f"{message}: no real record is that long; fetch or write the shard again",
            )
        return self._error(TruncatedShard, f"{message}: {_CUT}; fetch or write the shard again")

    def _error(self, kind: type[DataError], message: str) -> DataError:
        return kind(message, url=self.url, offset=self.offset, record=self.ordinal)


def _frame_size(length: int) -> int:
    return HEADER + length + FOOTER


class _Tail:
    """A growing copy of the first bytes of a record, of which more are still to come."""

    def __init__(self, allocate: Allocate, share: int, memory: ByteArray | None = None) -> None:
        self._allocate = allocate
        self._share = share
        self._is_given = memory is not None
        self._buffer: ByteArray = np.empty(HEADER, np.uint8) if memory is None else memory
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def bytes(self) -> ByteArray:
        return self._buffer[: self._length]

    def fill(self, view: ByteArray, target: int, room: int) -> int:
        """Append bytes until there are ``target``, or the view ends; return the number appended."""
        count = max(0, min(target - self._length, len(view)))
        self.take(view[:count], room)
        return count

    def rest(self, first: int, room: int = 0) -> _Tail:
        """Copy the bytes from ``first`` on into a new tail."""
        rest = _Tail(self._allocate, self._share)
        rest.take(self.bytes[first:], room)
        return rest

    def take(self, view: ByteArray, room: int) -> None:
        """Append bytes; memory for up to ``room`` bytes in all is allocated as they arrive."""
        length = self._length + len(view)
        if length > len(self._buffer):
            self._reserve(max(length, min(room, max(self._share, GROWTH * length))))
        if not (self._is_given and self._is_in_place(view)):
            # By memoryview, since NumPy would release the GIL and wait to have it back.
            self._buffer.data[self._length : length] = view.data
        self._length = length

    def _is_in_place(self, view: ByteArray) -> bool:
        begin: int = self._buffer.__array_interface__["data"][0]
        place: int = view.__array_interface__["data"][0]
        return place == begin + self._length

    def _reserve(self, size: int) -> None:
        """Move the bytes into memory for ``size`` bytes in all."""
        grown = self._allocate(size)
        grown[: self._length] = self.bytes
        self._buffer = grown
