"""TFRecord framing: from the bytes of a shard, as they come in, to blocks of records, and back.

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
from streamrec.errors import (
    CorruptLength,
    CorruptRecord,
    DataError,
    RecordTooLarge,
    TruncatedShard,
)
from streamrec.formats.resync import LARGEST, LARGEST_PART, Resync
from streamrec.kernel.contract import FOOTER, HEADER, MAX_NEEDED, Fault, FrameScan, fresh
from streamrec.masking import masked
from streamrec.types import RecordBlock

if TYPE_CHECKING:
    from streamrec.kernel.contract import Allocate
    from streamrec.types import Bytes, Octets, RecordRows

__all__ = ["FOOTER", "HEADER", "DamagedSpan", "FrameScanner", "corrupt_row", "frame"]

_LENGTH = struct.Struct("<Q")
_HEADER = struct.Struct("<QI")
_CRC = struct.Struct("<I")

LARGE = 32 << 10
"""Bytes from which on payloads are checked by the threads that decode, which spares the event loop
a pass over them. With small ones that second call cost the threads more than it spared the loop."""

SHARE = 1 << 20
"""Bytes that are set aside at once for a record that straddles views."""
GROWTH = 4
"""Of a longer one so many bytes are set aside for each that has come: a length alone takes no
memory, and what has come is copied a third of a time more."""


def frame(payload: Bytes) -> bytes:
    """The frame of one record."""
    length = _LENGTH.pack(len(payload))
    crcs = kernel.masked_crc32c(length), kernel.masked_crc32c(payload)
    return b"".join((length, _CRC.pack(crcs[0]), payload, _CRC.pack(crcs[1])))


def corrupt_row(rows: RecordRows) -> int:
    """The first row that a scanner left unchecked, and that does not match its CRC; else -1."""
    return kernel.corrupt_row(rows, LARGE)


class DamagedSpan(NamedTuple):
    """A span of a shard that was given up, since nothing in it can be proven to be intact."""

    offset: int
    """Where it begins in the shard, in bytes."""
    content: Octets
    """Its bytes, in memory of their own."""
    record: int
    """The number in the shard of the record that it is, or begins with."""
    records: int
    """How many records it counts as: 1, or 0 where it goes on from the span before."""
    exact: bool
    """Whether it is proven that it is one record."""
    fault: DataError
    """What was found wrong at its begin, or at that of the first span which it goes on from."""
    unread: int = 0
    """Bytes of a compressed shard that are lost besides, since they cannot be decompressed."""

    @property
    def end(self) -> int:
        """The offset behind it."""
        return self.offset + len(self.content)


class FrameScanner:
    """Finds the records of one shard in views of its bytes, fed in order.

    Reads no bytes itself, and copies only a record that straddles two views.

    Args:
        url: The shard, for errors.
        shard: Its number in the dataset, for blocks.
        check_crc: Check both CRCs of every record; else neither.
        leaves_large: Leave it to :func:`corrupt_row` to check payloads of ``LARGE`` bytes or more.
        offset: Where in the shard the first byte that is fed stands: the begin of a frame.
        ordinal: That record's number in the shard.
        allocate: Memory for a record that straddles views.
        share: Bytes of it that may be set aside before they have come.
        most: Bytes of the longest record that is taken.
        counts_gaps: Whether what is lost counts as one record where nobody knows how many it held;
            else those behind it are numbered as if there had been none.
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
        """Where the next record's frame begins in the shard, in bytes."""
        self.ordinal = ordinal
        """The next record's number in the shard."""
        self.size: int | None = None
        """Bytes of the whole shard, once known, or to a part's end: no record may reach beyond."""
        self._most = most
        self._counts_gaps = counts_gaps
        self.damaged: list[DamagedSpan] = []
        """What was given up after :meth:`recover`, before the blocks that ``scan`` returned with
        it; who takes notice of it empties it."""
        self._new_tail = partial(_Tail, allocate, share)
        self._tail = self._new_tail()
        self._fault: DataError | None = None
        self._search: Resync | None = None
        self._cause: DataError | None = None

    def __repr__(self) -> str:
        return f"<FrameScanner of {masked(self.url)} at record {self.ordinal}, byte {self.offset}>"

    def scan(self, view: Octets, *, more: bool) -> tuple[list[RecordBlock], int]:
        """Find the records that end in the next bytes of the shard.

        Args:
            view: uint8, contiguous: the bytes that follow those already consumed.
            more: True: the same memory will be presented again, longer, from the first byte not
                consumed, so an incomplete record is left in place. False: it is copied, and waits
                for the next view.

        Returns:
            Blocks, whose buffer is ``view``, or memory of its own for a record that straddled
            views; and how many bytes of ``view`` are consumed: all of them if ``more`` is False,
            unless there is a fault.

        Raises:
            CorruptLength: A record's length is wrong.
            CorruptRecord: A record's payload is wrong.
            TruncatedShard: A record is longer than what is left of the shard.
            RecordTooLarge: A record is longer than may be taken.
                The records before a fault are returned first; the next call raises it.
        """
        self._raise_pending()
        if self._search:
            return self._step_over(view, self._search)
        blocks: list[RecordBlock] = []
        begin = self._complete_tail(view, blocks) if self._tail else 0
        if self._tail or self._fault:
            return blocks, begin
        stop, needed = self._scan(view, begin, len(view), blocks)
        if more or self._fault or stop == len(view):
            return blocks, stop
        self._tail.take(view[stop:], needed)
        return blocks, len(view)

    def recover(self, fault: DataError) -> None:
        """Go on in spite of a fault that was raised: look for the next intact record behind it.

        The next calls of ``scan`` do, from the bytes that follow those consumed; what is given up
        is then in ``damaged``. At the shard's end a call without bytes concludes the search.
        """
        self._fault, self._cause, self._search = None, fault, Resync(self._most)

    def abandon(self, rest: Octets, fault: DataError, unread: int) -> None:
        """Give up what is left of the shard: its bytes cannot be had.

        Args:
            rest: The bytes that follow those consumed, as far as there are any.
            fault: Why.
            unread: How many bytes of the object as it is stored.
        """
        content = np.concatenate([self._tail.bytes, rest])
        damaged = DamagedSpan(
            self.offset, content, self.ordinal, 1, exact=False, fault=fault, unread=unread
        )
        self.damaged.append(damaged)
        self._tail, self._search = self._new_tail(), None

    @property
    def searching(self) -> bool:
        """Whether it is not yet known where the next intact record is."""
        return self._search is not None

    @property
    def pending(self) -> bool:
        """Whether the next call raises a fault that is found already."""
        return self._fault is not None

    def finish(self) -> None:
        """Say that the shard ends here.

        Raises:
            TruncatedShard: It ends inside a record.
            CorruptLength: A fault that the last ``scan`` found.
            CorruptRecord: The same.
        """
        self._raise_pending()
        if self._tail:
            raise self._error(
                TruncatedShard,
                f"the shard ends {len(self._tail)} bytes into the record's frame; "
                "fetch or write the shard again",
            )

    def _raise_pending(self) -> None:
        if self._fault:
            raise self._fault

    def _step_over(self, view: Octets, search: Resync) -> tuple[list[RecordBlock], int]:
        """Look for the next intact record; scan what was read of the shard to find it."""
        taken = 0
        blocks: list[RecordBlock] = []
        while self._search:
            left = None if self.size is None else self.size - self.offset
            answer = search.look(self._tail.bytes, left)
            if not isinstance(answer, int):
                self._give_up(*answer)
            elif taken < len(view):
                room = max(answer, min(2 * answer, LARGEST_PART))  # it asks for more step by step
                taken += self._tail.fill(view[taken:], answer, room)
            else:
                return [], taken
        stop, needed = self._scan(self._tail.bytes, 0, len(self._tail), blocks)
        self._tail = self._tail.rest(stop, 0 if self._fault else needed)
        return blocks, taken

    def _give_up(self, size: int, records: int, exact: bool, done: bool) -> None:
        assert self._cause is not None
        if size:
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
        self, buffer: Octets, begin: int, end: int, blocks: list[RecordBlock]
    ) -> tuple[int, int]:
        """Append a block of the whole records in ``buffer[begin:end]``.

        Returns:
            The first byte not consumed, and the size of the incomplete frame there (0: unknown).
        """
        found = kernel.scan_frames(buffer, begin, end, self._check_crc, self._large)
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

    def _complete_tail(self, view: Octets, blocks: list[RecordBlock]) -> int:
        """Add to the record that straddles views what it lacks, first its header.

        Returns:
            How many bytes of the view it took.
        """
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
        """The same up to the first record that is too large, as if only its header were there."""
        too_large = np.flatnonzero(found.lengths > self._most)
        if not len(too_large):
            return found
        first = int(too_large[0])
        offsets, lengths = found.offsets[:first], found.lengths[:first]
        stop, needed = int(found.offsets[first]) - HEADER, _frame_size(int(found.lengths[first]))
        return FrameScan(offsets, lengths, stop, needed, Fault.NONE)

    def _fault_of(self, buffer: Octets, found: FrameScan) -> DataError | None:
        """The error for what is wrong with the frame at which a scan stopped, if anything is."""
        may_come = found.needed <= _frame_size(self._most) and self._fits(found.needed)
        if not found.fault and (may_come or not found.needed):
            return None
        length, crc = _HEADER.unpack_from(buffer.data, found.stop)
        if found.fault is Fault.LENGTH_CRC:
            return self._corrupt_length(length, crc)
        if length > self._most or not self._fits(_frame_size(length)):
            return self._too_long(length, crc)
        return self._corrupt_record(buffer, found.stop) if found.fault else None

    def _fits(self, needed: int) -> bool:
        return needed <= (LARGEST if self.size is None else self.size - self.offset)

    def _corrupt_record(self, buffer: Octets, stop: int) -> DataError:
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
            f"{stored:#010x}: corrupt, compressed, or no TFRecord file",
        )

    def _too_long(self, length: int, stored: int) -> DataError:
        """A length beyond the limit, or beyond the shard's end, if it can be believed."""
        if kernel.masked_crc32c(_LENGTH.pack(length)) != stored:
            return self._corrupt_length(length, stored)
        if not self._fits(_frame_size(length)):
            return self._beyond_the_end(length)
        return self._error(
            RecordTooLarge,
            f"the record has {length} bytes, more than max_record_bytes, which is {self._most} "
            "(where it is not set, as many as memory_budget); set max_record_bytes, or both, to "
            "more if the record is to be read",
        )

    def _beyond_the_end(self, length: int) -> DataError:
        """The record was cut short, if there can be such a record."""
        left = "no object can hold"
        if self.size is not None:
            left = f"reach beyond byte {self.size}, where the shard ends, or its chunk in the index"
        message = f"the record's length matches its CRC32C, but its {length} bytes {left}"
        if _frame_size(length) > LARGEST:
            return self._error(CorruptLength, f"{message}: no real record is that long")
        return self._error(
            TruncatedShard,
            f"{message}: it was cut short; fetch or write the shard again",
        )

    def _error(self, kind: type[DataError], message: str) -> DataError:
        return kind(message, url=self.url, offset=self.offset, record=self.ordinal)


def _frame_size(length: int) -> int:
    return HEADER + length + FOOTER


class _Tail:
    """The first bytes of a record whose others are still to come, copied end to end."""

    def __init__(self, allocate: Allocate, share: int) -> None:
        self._allocate = allocate
        self._share = share
        self._buffer: Octets = np.empty(HEADER, np.uint8)
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def bytes(self) -> Octets:
        return self._buffer[: self._length]

    def fill(self, view: Octets, target: int, room: int) -> int:
        """Take bytes until there are ``target``, or the view ends; returns how many."""
        count = max(0, min(target - self._length, len(view)))
        self.take(view[:count], room)
        return count

    def rest(self, first: int, room: int = 0) -> _Tail:
        """The bytes from ``first`` on, in memory of their own."""
        rest = _Tail(self._allocate, self._share)
        rest.take(self.bytes[first:], room)
        return rest

    def take(self, view: Octets, room: int) -> None:
        """Append bytes, of ``room`` in all, for which memory is set aside as they come."""
        length = self._length + len(view)
        if length > len(self._buffer):
            self._reserve(max(length, min(room, max(self._share, GROWTH * length))))
        # by memoryview: NumPy would let go of the interpreter, and wait to have it back
        self._buffer.data[self._length : length] = view.data
        self._length = length

    def _reserve(self, size: int) -> None:
        """Set memory aside for ``size`` bytes in all."""
        grown = self._allocate(size)
        grown[: self._length] = self.bytes
        self._buffer = grown
