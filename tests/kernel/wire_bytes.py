"""Serialized Examples and SequenceExamples assembled byte by byte, as no sane writer makes them.

Everything here stays within protobuf's grammar, but uses all of it: lists packed and unpacked and
in several chunks, messages in several pieces, map entries back to front or without a key or a
value, lists of two kinds in one feature, over-long varints, unknown fields of every wire type.
:meth:`Wild.broken` then breaks it. A seed gives the same bytes every time; thousands a second make
up for what Hypothesis would find with fewer.
"""

from __future__ import annotations

import struct
from random import Random
from typing import TYPE_CHECKING

from streamrec.kernel.contract import DataType

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

VARINT, FIXED64, DELIMITED, GROUP, END_GROUP, FIXED32 = range(6)
BYTES_LIST, FLOAT_LIST, INT64_LIST = 1, 2, 3
KINDS = {
    DataType.BYTES: BYTES_LIST,
    DataType.FLOAT32: FLOAT_LIST,
    DataType.INT64: INT64_LIST,
}
NAMES = {
    "a": DataType.INT64,
    "b": DataType.FLOAT32,
    "ü": DataType.BYTES,
    "": DataType.INT64,
    "a longer name than others": DataType.BYTES,
}
"""The features, and what they mostly hold; few, so that names repeat and plans meet them."""


# -- by hand ---------------------------------------------------------------------------------------


def varint(value: int, length: int = 0) -> bytes:
    """Return a varint, ten bytes if it is negative, padded with zero groups to ``length``."""
    value %= 1 << 64
    groups: list[int] = []
    while value or not groups or len(groups) < length:
        groups.append(value & 0x7F)
        value >>= 7
    return bytes([group | 0x80 for group in groups[:-1]] + [groups[-1]])


def tag(field: int, wire_type: int) -> bytes:
    return varint(field << 3 | wire_type)


def delimited(field: int, data: bytes) -> bytes:
    return tag(field, DELIMITED) + varint(len(data)) + data


def int64_list(*values: int) -> bytes:
    """Return a Feature with a packed int64 list."""
    return delimited(INT64_LIST, delimited(1, b"".join(map(varint, values))) if values else b"")


def float_list(*values: float) -> bytes:
    """Return a Feature with a packed float list."""
    packed = struct.pack(f"<{len(values)}f", *values)
    return delimited(FLOAT_LIST, delimited(1, packed) if values else b"")


def bytes_list(*values: bytes) -> bytes:
    """Return a Feature with a bytes list."""
    return delimited(BYTES_LIST, b"".join(delimited(1, value) for value in values))


def entry(name: str | bytes, value: bytes) -> bytes:
    """Return a map entry, as a field of Features or of FeatureLists."""
    key = name.encode() if isinstance(name, str) else name
    return delimited(1, delimited(1, key) + delimited(2, value))


def steps(*features: bytes) -> bytes:
    """Return a FeatureList."""
    return b"".join(delimited(1, feature) for feature in features)


def example(*entries: bytes) -> bytes:
    """Return an Example, or a SequenceExample with this context."""
    return delimited(1, b"".join(entries))


def feature_lists(*entries: bytes) -> bytes:
    """Return the feature lists of a SequenceExample."""
    return delimited(2, b"".join(entries))


# -- drawn -----------------------------------------------------------------------------------------

EDGES = (0, 1, -1, 127, 128, 2**14 - 1, 2**14, 2**31, 2**32, 2**56, 2**63 - 1, -(2**63))
UNKNOWN_FIELDS = (4, 5, 15, 16, 2047, 2048, 2**29 - 1)
"""Numbers of fields that no message here has; some with tags of several bytes."""
WIRE_TYPES = (VARINT, FIXED64, DELIMITED, GROUP, FIXED32)


class Wild:
    """Draws messages.

    Args:
        seed: Determines all of them.
        calm: Of 1: how seldom something odd comes between; 1 gives what a plain writer writes.
    """

    def __init__(self, seed: int, calm: float = 0.9) -> None:
        self.random = Random(seed)
        self.calm = calm

    def odd(self) -> bool:
        """Now something that no plain writer does."""
        return self.random.random() > self.calm

    def binary(self, longest: int = 8) -> bytes:
        return self.random.randbytes(self.random.randint(0, longest))

    def integer(self) -> int:
        if self.random.random() < 0.3:
            return self.random.choice(EDGES)
        return self.random.getrandbits(self.random.randint(1, 64)) - (1 << 63) * self.odd()

    def varint(self, value: int, longest: int) -> bytes:
        """Return the value's varint, seldom padded, of at most ``longest`` bytes."""
        return varint(value, self.random.randint(1, longest) if self.odd() else 0)

    def tag(self, field: int, wire_type: int) -> bytes:
        return self.varint(field << 3 | wire_type, 5)

    def delimited(self, field: int, data: bytes) -> bytes:
        return self.tag(field, DELIMITED) + self.varint(len(data), 5) + data

    def several(self, make: Callable[[], bytes], most: int) -> list[bytes]:
        return [make() for _ in range(self.random.randint(0, most))]

    # What is to be skipped

    def unknown(self, field: int, wire_type: int, depth: int = 2) -> bytes:
        """Return a field that has no meaning at its place."""
        if wire_type == GROUP:
            return tag(field, GROUP) + self._group(depth) + tag(field, END_GROUP)
        if wire_type == DELIMITED:
            return self.delimited(field, self.binary())
        sizes = {FIXED64: 8, FIXED32: 4}
        known = wire_type in sizes
        value = (
            self.random.randbytes(sizes[wire_type]) if known else self.varint(self.integer(), 10)
        )
        return self.tag(field, wire_type) + value

    def _group(self, depth: int) -> bytes:
        if not depth or not self.odd():
            return b""
        choose = self.random.choice
        return self.unknown(choose((1, 2, 3, 9)), choose(WIRE_TYPES), depth - 1)

    def noise(self, known: Sequence[int]) -> bytes:
        """Mostly nothing, else an unknown field, or a known one in a wire type it cannot have."""
        if not self.odd():
            return b""
        choose = self.random.choice
        if self.odd() and known:
            return self.unknown(choose(known), choose((FIXED64, GROUP)))
        return self.unknown(choose(UNKNOWN_FIELDS), choose(WIRE_TYPES))

    def sprinkled(self, pieces: Sequence[bytes], *known: int) -> bytes:
        """Return the pieces in their order, with some unknown fields between them."""
        return b"".join(self.noise(known) + piece for piece in pieces) + self.noise(known)

    # Lists

    def packable(self, value: Callable[[], bytes], wire_type: int) -> bytes:
        """Return a list of numbers in chunks, each packed or a single value."""
        chunks: list[bytes] = []
        for _ in range(self.random.randint(0, 3) if self.odd() else 1):
            values = self.several(value, 70 if self.odd() else 4)
            if self.odd():
                chunks += [self.tag(1, wire_type) + item for item in values]
            else:
                chunks.append(self.delimited(1, b"".join(values)))
        return self.sprinkled(chunks)

    def integers(self) -> bytes:
        """Return an Int64List."""
        return self.packable(lambda: self.varint(self.integer(), 10), VARINT)

    def floats(self) -> bytes:
        """Return a FloatList of any bits."""
        return self.packable(lambda: self.random.randbytes(4), FIXED32)

    def strings(self) -> bytes:
        """Return a BytesList."""
        return self.sprinkled(self.several(lambda: self.delimited(1, self.binary()), 3), 1)

    # Messages

    def feature(self, kind: int) -> bytes:
        """Return a Feature: mostly one list, seldom in pieces, of several kinds, or none."""
        kinds = [kind]
        if self.odd():
            kinds = self.random.choices((BYTES_LIST, FLOAT_LIST, INT64_LIST, kind), k=3)
            kinds = kinds[: self.random.randint(0, 3)]
        lists = {BYTES_LIST: self.strings, FLOAT_LIST: self.floats, INT64_LIST: self.integers}
        pieces = [self.delimited(each, lists[each]()) for each in kinds]
        return self.sprinkled(pieces, BYTES_LIST, FLOAT_LIST, INT64_LIST)

    def feature_list(self, kind: int) -> bytes:
        """Return a FeatureList, mostly of one kind."""
        return self.sprinkled(self.several(lambda: self.delimited(1, self.feature(kind)), 3), 1)

    def entry(self, value: Callable[[int], bytes]) -> bytes:
        """Return a map entry, seldom with key and value swapped, missing or repeated."""
        order = (
            self.random.choice(("vk", "k", "v", "", "kvv", "kkv", "vkvk")) if self.odd() else "kv"
        )
        name, dtype = self.random.choice(tuple(NAMES.items()))
        kind = self.random.randint(1, 3) if self.odd() else KINDS[dtype]
        parts = {
            "k": lambda: self.delimited(1, name.encode()),
            "v": lambda: self.delimited(2, value(kind)),
        }
        written = [parts[part]() for part in order]
        return self.sprinkled(written, 1, 2) if self.odd() else b"".join(written)

    def maps(self, field: int, value: Callable[[int], bytes]) -> list[bytes]:
        """Return a message that holds a map, as a field, seldom in pieces to be merged."""
        return [
            self.delimited(
                field,
                self.sprinkled(self.several(lambda: self.delimited(1, self.entry(value)), 5), 1),
            )
            for _ in range(self.random.randint(0, 3) if self.odd() else 1)
        ]

    def example(self) -> bytes:
        """Return an Example."""
        return self.sprinkled(self.maps(1, self.feature), 1)

    def sequence_example(self) -> bytes:
        """Return a SequenceExample."""
        pieces = self.maps(1, self.feature) + self.maps(2, self.feature_list)
        if self.odd():
            self.random.shuffle(pieces)
        return self.sprinkled(pieces, 1, 2)

    def broken(self, record: bytes) -> bytes:
        """Return the record with up to three faults: cut, flipped, changed, or lengthened."""
        data = bytearray(record)
        for _ in range(self.random.choice((1, 1, 2, 3))):
            at = self.random.randint(0, max(len(data) - 1, 0))
            change = self.random.choice(("flip", "flip", "cut", "change", "insert", "delete"))
            if change == "insert" or not data:
                data[at:at] = self.binary(3)
            elif change == "cut":
                del data[at:]
            elif change == "delete":
                del data[at : at + self.random.randint(1, 3)]
            else:
                data[at] ^= 1 << self.random.randint(0, 7) if change == "flip" else 0x5A
        return bytes(data)
