"""Resynchronisation: the search for the next intact record after a damaged one.

It follows three rules:

1. A length that matches its CRC is trusted. So a damaged payload after an intact header is exactly
   one record, whatever its bytes look like: a TFRecord inside a record is never taken for records.
   If the frame then reaches beyond the shard's end, the shard was cut short, and all is lost.
2. Where the length and its CRC contradict each other, one of them may be right: the length as it
   stands, or the one length below 2^32 that has this CRC. If the payload of one of the two matches
   its own CRC, its bounds are proven, and it is exactly one record, too. It is lost all the same,
   since a damaged frame is not delivered.
3. Otherwise the search ends at the first place where a whole frame is intact: both CRCs match, and
   it ends within the shard. The number of records lost before it is unknown. Where both the length
   and its CRC are damaged, frames inside that record's payload cannot be told from others, and are
   taken for records.

A record that is longer than may be held cannot be checked as a whole. Its header is trusted: a
search that meets it ends there, and a search that begins with it passes over it part by part.

The search does no I/O. It is given the shard's bytes from the damaged frame on, and says how many
more it needs, or how many are lost. The answer depends on the bytes alone, not on how they arrive.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from streamrec import kernel
from streamrec.kernel.contract import FOOTER, HEADER, MASK_DELTA, unmask

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from streamrec.values.columns import ByteArray, Indices

_HEADER = struct.Struct("<QI")
_CRC = struct.Struct("<I")
_LENGTH = struct.Struct("<Q")
_POLYNOMIAL, _ALL_ONES = 0x82F63B78, 0xFFFFFFFF
"""CRC32C's polynomial, lowest bit first, and the value with which a CRC begins and ends."""

LARGEST = 1 << 47
"""The longest record, in bytes: 128 TiB, as no object store holds a larger object."""
LARGEST_GUESS = 16 << 20
"""The longest frame, in bytes, of which rule 2 is tried: all of it must be held for that."""
LARGEST_PART = 16 << 20
"""The most bytes of damage that are held while nothing intact is found; then they are given up."""
FIRST_STEP, LARGEST_STEP = 4 << 10, 1 << 20
"""The bytes by which the search goes on, doubled each time: few are held if the next record is
near, and few steps are made if it is far."""
MOST_TRIES = 64
"""The number of intact headers with a damaged payload after which a search goes on at the next
byte. From then on it skips such a frame, so that each byte is checked a bounded number of times."""
STRIDE = 1 << 16
"""The number of offsets checked together, so that their arrays stay in the processor's cache."""


class LostBytes(NamedTuple):
    """The first bytes, which are lost."""

    size: int
    """The number of lost bytes; 0 where a part was given up right before an intact record."""
    records: int
    """The number of records that they count as: 1, or 0 where they continue a part before."""
    exact: bool
    """True where they are proven to be one record, or the first part of one."""
    done: bool
    """True where a record, or the shard's end, follows; else the search goes on."""


Answer: TypeAlias = LostBytes | int
"""The lost bytes, or the number of bytes, in all, that are needed to know them."""


class Resync:
    """One search, from a damaged frame on.

    Args:
        most: The length, in bytes, of the longest record that may be held.
    """

    def __init__(self, most: int = LARGEST) -> None:
        self._most = most
        self._rest = 0  # of the record that is passed over
        self._look: Callable[[ByteArray, int | None], Answer] = self._at_header
        self._guesses: list[int] = []
        self._next = 1
        self._step = FIRST_STEP
        self._tries = 0
        self._records = 1

    def look(self, held: ByteArray, left: int | None) -> Answer:
        """Search the bytes that are held, and return the lost bytes, or the number of bytes needed.

        Args:
            held: uint8, contiguous: the bytes from the damaged frame on, without those that an
                earlier search gave up.
            left: The number of bytes from the first of these to the shard's end; ``None`` while it
                is not known.
        """
        return self._look(held, left)

    def _at_header(self, held: ByteArray, left: int | None) -> Answer:
        if len(held) < HEADER:
            return self._lose(len(held)) if len(held) == left else HEADER
        length, crc = _HEADER.unpack_from(held.data)
        if length > LARGEST or kernel.masked_crc32c(_LENGTH.pack(length)) != crc:
            guesses = {_frame_size(length), _frame_size(length_of_crc(unmask(crc)))}
            # The shorter one first, since fewer bytes must be held to try it.
            self._guesses = sorted(size for size in guesses if size <= LARGEST_GUESS)
            self._look = self._at_guesses
        elif left is not None and _frame_size(length) > left:
            self._look = self._to_the_end
        elif length > self._most:
            self._rest, self._look = _frame_size(length), self._pass_over
        else:
            return self._whole(_frame_size(length), held)
        return self._look(held, left)

    def _at_guesses(self, held: ByteArray, left: int | None) -> Answer:
        while self._guesses:
            size = self._guesses[0]
            fits = left is None or size <= left
            # One that is not wholly held is asked for, and tried when it has come.
            if fits and (len(held) < size or _is_payload_intact(held, 0, size)):
                return self._whole(size, held)
            del self._guesses[0]
        self._look = self._search
        return self._search(held, left)

    def _whole(self, size: int, held: ByteArray) -> Answer:
        """Give up one record, once all of its bytes are held."""
        return LostBytes(size, 1, exact=True, done=True) if len(held) >= size else size

    def _pass_over(self, held: ByteArray, left: int | None) -> Answer:
        """Give up a record that is too large, part by part."""
        size = min(self._rest, LARGEST_PART)
        if len(held) < size and len(held) != left:
            return size
        size, is_first = min(size, len(held)), self._records == 1
        self._rest -= size
        lost = self._lose(size, done=not self._rest or size == left)
        return lost._replace(exact=is_first)

    def _to_the_end(self, held: ByteArray, left: int | None) -> Answer:
        if len(held) == left or len(held) >= LARGEST_PART:
            return self._give_up(held, left)
        return self._more(held, left)

    def _search(self, held: ByteArray, left: int | None) -> Answer:
        # A frame has at least a header and a footer, so the last places wait for more bytes.
        stop = min(len(held) - HEADER - FOOTER + 1, LARGEST_PART)
        while self._next < stop:
            last = min(self._next + STRIDE, stop)
            # The few headers that are intact by chance or in truth are tried one by one.
            for place in _intact_headers(held, self._next, last, left):
                needed = self._try(held, place)
                if needed:
                    return needed if len(held) < needed else self._lose(place)
            self._next = max(self._next, last)
        if len(held) == left or self._next >= LARGEST_PART:
            return self._give_up(held, left)
        return self._more(held, left)

    def _try(self, held: ByteArray, place: int) -> int:
        """Return the end of the frame at an intact header; 0 if its payload is damaged.

        A frame that is not wholly held yet counts as intact. One that may not be held ends behind
        its header, and is checked by the scanner.
        """
        # It lies inside a frame that was skipped.
        if place < self._next:
            return 0
        (length,) = _LENGTH.unpack_from(held.data, place)
        size = _frame_size(length) if length <= self._most else HEADER
        self._next = place
        if size == HEADER:
            return place + HEADER
        if len(held) < place + size or _is_payload_intact(held, place, size):
            return place + size
        self._tries += 1
        self._next += size if self._tries > MOST_TRIES else 1
        return 0

    def _more(self, held: ByteArray, left: int | None) -> int:
        wanted = len(held) + self._step
        self._step = min(2 * self._step, LARGEST_STEP)
        return wanted if left is None else min(wanted, left)

    def _give_up(self, held: ByteArray, left: int | None) -> LostBytes:
        """Give up the held bytes, or the first part of them, in which nothing intact begins."""
        size = min(len(held), LARGEST_PART)
        # The bytes given up leave the front of those held, and places move with them.
        self._next = max(0, self._next - size)
        return self._lose(size, done=size == left)

    def _lose(self, size: int, *, done: bool = True) -> LostBytes:
        # The first part counts as a record; those that continue it count as none.
        records, self._records = self._records, 0
        return LostBytes(size, records, exact=False, done=done)


def length_of_crc(crc: int) -> int:
    """Return the one length below 2^32 whose CRC32C, as a uint64, is ``crc``."""
    # Four bytes change a CRC as four zeros do that begin with the CRC xor these bytes. So the eight
    # bytes of such a length are undone as 64 zero bits, which leave the first CRC xor the length.
    state = crc ^ _ALL_ONES
    for _ in range(64):
        state = (state ^ _POLYNOMIAL) << 1 | 1 if state >> 31 else state << 1
    return state ^ _ALL_ONES


def _crc_of_length(length: int) -> int:
    return kernel.crc32c(_LENGTH.pack(length))


def _frame_size(length: int) -> int:
    return HEADER + length + FOOTER


def _is_payload_intact(held: ByteArray, place: int, size: int) -> bool:
    footer = place + size - FOOTER
    (stored,) = _CRC.unpack_from(held.data, footer)
    return bool(kernel.masked_crc32c(held[place + HEADER : footer].data) == stored)


def _intact_headers(held: ByteArray, first: int, last: int, left: int | None) -> list[int]:
    """Return the places in ``first … last-1`` with a length that matches its CRC and fits."""
    places = np.arange(first, last)
    room = LARGEST if left is None else left - HEADER - FOOTER - places
    # With strides of one byte every offset is read as a length, without a copy.
    lengths = np.ndarray((last - first,), "<u8", held, first, (1,))
    places = places[lengths <= np.asarray(room).astype(np.uint64)]
    stored = np.ndarray((len(held) - 3,), "<u4", held, 0, (1,))[places + 8]
    return [int(place) for place in places[_masked_crcs(held, places) == stored]]


def _masked_crcs(held: ByteArray, places: Indices) -> npt.NDArray[np.uint32]:
    """Return the masked CRC32Cs of the 8 bytes at each of the places."""
    crcs = np.full(len(places), _crc_of_length(0), np.uint32)
    for k, table in enumerate(_tables()):
        crcs ^= table[held[places + k]]
    return np.asarray((crcs >> 15 | crcs << 17) + MASK_DELTA, np.uint32)


@cache
def _tables() -> list[npt.NDArray[np.uint32]]:
    """Return, for each of 8 bytes, a table of the changes of their CRC by that byte's value."""
    # CRCs are linear but for a constant, so the changes by single bytes can be xored.
    zero = _crc_of_length(0)
    return [
        np.array([_crc_of_length(byte << 8 * k) ^ zero for byte in range(256)], np.uint32)
        for k in range(8)
    ]
