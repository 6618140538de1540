"""Shards that are damaged in every way that occurs, and what can be proven about them."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import crc32c
from hypothesis import strategies as st

from streamrec.formats.shards.tfrecord import frame

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from streamrec.formats.shards.tfrecord import DamagedSpan

GUESSED = 16 << 20
"""The longest frame whose length is guessed, as documented."""


class Whole(NamedTuple):
    """An intact record."""

    offset: int
    number: int
    payload: bytes


class Gap(NamedTuple):
    """A stretch of lost bytes."""

    begin: int
    end: int
    number: int
    exact: bool


def oracle(shard: bytes) -> tuple[list[Whole], list[Gap]]:
    """Return the records that can be proven, and the gaps between them, by the rules as written."""
    whole, gaps, place, number = [], [], 0, 0
    while place < len(shard):
        end = intact_end(shard, place)
        if end is not None:
            whole.append(Whole(place, number, shard[place + 12 : end - 4]))
        else:
            end, exact = damage(shard, place)
            gaps.append(Gap(place, end, number, exact))
        place, number = end, number + 1
    return whole, gaps


def damage(shard: bytes, place: int) -> tuple[int, bool]:
    """Return the end of the damage that begins at a place, and whether it is one record."""
    length = believed_length(shard, place)
    if length is not None:
        end = place + 16 + length
        return (end, True) if end <= len(shard) else (len(shard), False)
    for guess in sorted(guesses(shard, place)):
        end = place + 16 + guess
        if end <= len(shard) and 16 + guess <= GUESSED and payload_matches(shard, place, end):
            return end, True
    behind = (at for at in range(place + 1, len(shard)) if intact_end(shard, at) is not None)
    return next(behind, len(shard)), False


def intact_end(shard: bytes, place: int) -> int | None:
    length = believed_length(shard, place)
    if length is None:
        return None
    end = place + 16 + length
    return end if end <= len(shard) and payload_matches(shard, place, end) else None


def believed_length(shard: bytes, place: int) -> int | None:
    if place + 12 > len(shard):
        return None
    length, stored = struct.unpack_from("<QI", shard, place)
    return length if length <= 1 << 47 and masked(struct.pack("<Q", length)) == stored else None


def guesses(shard: bytes, place: int) -> Iterator[int]:
    if place + 12 > len(shard):
        return
    length, stored = struct.unpack_from("<QI", shard, place)
    yield length
    for other in range(len(shard) - place):
        if masked(struct.pack("<Q", other)) == stored:
            yield other


def payload_matches(shard: bytes, place: int, end: int) -> bool:
    (stored,) = struct.unpack_from("<I", shard, end - 4)
    return bool(masked(shard[place + 12 : end - 4]) == stored)


def masked(data: bytes) -> int:
    crc = crc32c.crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def gaps_of(lost: Sequence[DamagedSpan]) -> list[Gap]:
    """Stretches that were given up in parts, put together again."""
    gaps: list[Gap] = []
    for part in lost:
        if part.records:
            gaps.append(Gap(part.offset, part.end, part.record, part.exact))
        else:
            assert gaps[-1].end == part.offset
            gaps[-1] = gaps[-1]._replace(end=part.end)
    return gaps


# -- hypothesis ------------------------------------------------------------------------------------

payloads = st.one_of(
    st.binary(max_size=40),
    st.lists(st.binary(max_size=9), max_size=3).map(lambda few: b"".join(map(frame, few))),
    st.integers(0, 60).map(bytes),
)
"""Records; some hold a TFRecord file of their own, some nothing but zeros."""


@st.composite
def damaged_shards(draw: Any, records: Any = payloads, most: int = 6, damages: int = 3) -> bytes:
    """Draw a shard with a few damages, each of a drawn kind."""
    frames = [frame(payload) for payload in draw(st.lists(records, min_size=1, max_size=most))]
    shard = bytearray(b"".join(frames))
    for _ in range(draw(st.integers(0, damages))):
        draw(st.sampled_from(KINDS))(draw, shard)
    return bytes(shard)


def flip(draw: Any, shard: bytearray) -> None:
    """Flip one bit."""
    if shard:
        shard[draw(st.integers(0, len(shard) - 1))] ^= 1 << draw(st.integers(0, 7))


def cut(draw: Any, shard: bytearray) -> None:
    """Cut off the end."""
    del shard[draw(st.integers(0, len(shard))) :]


def insert(draw: Any, shard: bytearray) -> None:
    """Insert garbage, which may be a piece of the same shard."""
    place, first, last = (draw(st.integers(0, len(shard))) for _ in range(3))
    shard[place:place] = draw(st.binary(max_size=30)) or shard[first:last]


def remove(draw: Any, shard: bytearray) -> None:
    """Remove a piece."""
    first = draw(st.integers(0, len(shard)))
    del shard[first : first + draw(st.integers(1, 40))]


def zero(draw: Any, shard: bytearray) -> None:
    """Zero a piece, as a filesystem that has crashed may leave it."""
    first = draw(st.integers(0, len(shard)))
    count = min(draw(st.integers(1, 60)), len(shard) - first)
    shard[first : first + count] = bytes(count)


KINDS = [flip, cut, insert, remove, zero]
