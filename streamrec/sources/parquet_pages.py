"""The pages of Parquet: what each takes before it is decompressed, and how long its lists are.

A header is a struct of Thrift's compact protocol. Source: ``parquet.thrift`` of Apache Parquet.

The levels at a page's beginning tell the lengths of lists. A repetition level of 0 begins a row;
any other goes on with one. Levels are runs of one value and bit-packed groups of eight. Source:
"Parquet encoding definitions", RLE/bit-packing hybrid.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from streamrec.sources.arrow_fields import module

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    Numbers = npt.NDArray[np.int64]


_CODECS = {"LZ4": "lz4_raw", "LZ4_RAW": "lz4_raw"}
"""Arrow's names of codecs that are not Parquet's in small letters."""
_AT_ONCE = 1 << 14
"""Groups of levels that are unpacked together."""


def row_values(
    data: memoryview, pages: Sequence[PageHeader], codec: str, deepest: int
) -> Numbers | None:
    """Return the number of values of each row of a column in a row group, nulls included.

    Args:
        data: The bytes of the pages.
        pages: Their headers.
        codec: Parquet's name of their compression.
        deepest: The largest repetition level.

    Returns:
        The numbers; ``None`` where the levels have a form that is no longer written.

    Raises:
        ValueError: The levels are damaged.
    """
    begins: list[Numbers] = []
    before = 0
    for page in pages:
        if page.is_dictionary:
            continue
        if not page.has_runs:
            return None
        levels = _levels(data, page, codec)
        if levels is None:
            return None
        begins += _row_begins(levels, page.values, deepest.bit_length(), before)
        before += page.values
    # The values between two beginnings are a row's; the end of the last row is the end of all.
    return np.diff(np.concatenate([*begins, np.array([before], np.int64)]))


def _levels(data: memoryview, page: PageHeader, codec: str) -> memoryview | None:
    """Return the encoded levels of a page, which stand at its beginning."""
    body = data[page.at : page.at + page.stored]
    # Version 2 of the pages keeps levels uncompressed, so nothing is decompressed for them.
    if page.levels is not None:
        return body[: page.levels]
    if codec != "UNCOMPRESSED":
        pyarrow = module("pyarrow")
        name = _CODECS.get(codec, codec.lower())
        try:
            plain = pyarrow.decompress(body, page.size, name)
        except (pyarrow.ArrowException, OSError, ValueError):  # whoever reads the page tells it
            return None
        body = memoryview(plain).cast("B")
    # Version 1 has the length of the levels before them.
    size = int.from_bytes(body[:4], "little")
    return body[4 : 4 + size]


def _row_begins(levels: memoryview, values: int, width: int, before: int) -> Iterator[Numbers]:
    """Yield the numbers of the values that begin a row."""
    at, values_before = 0, 0
    while values_before < values:
        # The lowest bit tells a bit-packed group from a run.
        try:
            head, at = _varint(levels, at)
        except (EOFError, ValueError):
            raise ValueError("the levels of a page end too early") from None
        if head & 1:
            groups = head >> 1
            # Unpacked, each bit is a byte.
            for first in range(0, groups, _AT_ONCE):
                count = min(_AT_ONCE, groups - first)
                packed = np.frombuffer(levels[at : at + count * width], np.uint8)
                at += count * width
                if len(packed) < count * width:
                    raise ValueError("the levels of a page end too early")
                bits = np.unpackbits(packed, bitorder="little").reshape(-1, width)
                # Level 0 begins a row.
                begins = np.flatnonzero(~bits.any(axis=1))
                # The last group is padded to eight levels.
                yield begins[begins < values - values_before] + (before + values_before)
                values_before += count * 8
            if not groups:
                raise ValueError("a run of levels of a page is empty")
            continue
        # A run has its value once, in as few whole bytes as the width needs.
        count, value = head >> 1, int.from_bytes(levels[at : at + (width + 7) // 8], "little")
        at += (width + 7) // 8
        if not 0 < count <= values - values_before:
            raise ValueError("a run of levels of a page is longer than the page")
        if value == 0:
            yield np.arange(before + values_before, before + values_before + count)
        values_before += count


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """Return a number of seven bits a byte, and the place after it."""
    value = 0
    # Bounded: a file could set the sign of continuation for ever.
    for shift in range(0, 64, 7):
        if at >= len(data):
            raise EOFError
        octet = data[at]
        at += 1
        value |= (octet & 127) << shift
        if octet < 128:
            return value, at
    raise ValueError("the header of a page has a number beyond 64 bits")


DICTIONARY = 2
"""The type of a page with the values of a dictionary."""
_SIZE, _STORED = 2, 3
_DATA, _DICTIONARY, _DATA_V2 = 5, 7, 8
"""Fields of a page's header: its sizes, and the header of its own type."""
_DELTA = 7
"""The encoding by which a value shares its beginning with the one before it: DELTA_BYTE_ARRAY."""
_RUNS = 3
"""The encoding of levels by runs of one value and bit-packed groups: RLE."""
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _STRUCT = *range(1, 9), 12
"""The types of Thrift's values, without lists, which no header has."""
_DEEPEST = 8
"""Structs in structs: a page's header has three."""


class PageHeader(NamedTuple):
    """The header of one page."""

    is_dictionary: bool
    is_delta: bool
    """Its values share their beginnings, so that they may be longer than it."""
    size: int
    """Bytes when it is decompressed."""
    values: int
    """Its values, of a data page with those that are null."""
    at: int = 0
    """The place after its header in the bytes of the column."""
    stored: int = 0
    """Bytes of it there."""
    levels: int | None = None
    """Bytes of its repetition levels, which stand uncompressed before the rest; ``None``: they are
    compressed with it, and their size stands before them."""
    has_runs: bool = True
    """Its repetition levels are in runs, as all writers have them now."""


def pages_of(data: memoryview, values: int) -> Iterator[PageHeader]:
    """Yield the headers of a column's pages in a row group.

    Args:
        data: The bytes of the pages.
        values: The values of all data pages.

    Raises:
        ValueError: A header is damaged.
    """
    at, values_before = 0, 0
    while values_before < values:
        try:
            # A header tells its own length only when it is read.
            page = page_at(data, at)
        except EOFError:
            raise ValueError("a page ends after its column") from None
        yield page
        values_before += 0 if page.is_dictionary else page.values
        at = page.at + page.stored


def page_at(data: memoryview, at: int) -> PageHeader:
    """Return the header at a place.

    Raises:
        EOFError: The bytes end within it.
        ValueError: It is damaged.
    """
    reader = _ThriftReader(data, at)
    header = reader.struct()
    size, stored = header.get(_SIZE), header.get(_STORED)
    kinds = [header[kind] for kind in (_DATA, _DATA_V2, _DICTIONARY) if kind in header]
    if not isinstance(size, int) or not isinstance(stored, int) or min(size, stored) < 0:
        raise ValueError("the header of a page has no valid size")
    fields = kinds[0] if kinds and isinstance(kinds[0], dict) else {}
    is_dictionary = header.get(1) == DICTIONARY
    # The two versions number their fields in another way.
    encoding = fields.get(4 if _DATA_V2 in header else 2)
    levels = max(0, int(fields.get(6, 0))) if _DATA_V2 in header else None
    has_runs = levels is not None or fields.get(4) == _RUNS
    values = max(0, int(fields.get(1, 0)))
    return PageHeader(
        is_dictionary=is_dictionary,
        is_delta=encoding == _DELTA,
        size=size,
        values=values,
        at=reader.at,
        stored=stored,
        levels=levels,
        has_runs=has_runs,
    )


class _ThriftReader:
    """A reader of Thrift's compact protocol, which keeps numbers and structs."""

    def __init__(self, data: memoryview, at: int) -> None:
        self._data, self.at = data, at

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """Return the fields of a struct by their numbers."""
        if depth > _DEEPEST:
            raise ValueError("the header of a page is nested too deep")
        fields: dict[int, Any] = {}
        number = 0
        while head := self._octet():
            delta, kind = head >> 4, head & 15
            # A difference of 0 means that the whole number follows.
            number = number + delta if delta else _as_signed(self._varint())
            # A truth value is in its type, and takes no bytes.
            fields[number] = kind == _TRUE if kind <= _FALSE else self._value(kind, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if kind == _STRUCT:
            return self.struct(depth + 1)
        read = _READ.get(kind)
        if read is None:
            raise ValueError("the header of a page is damaged")
        return read(self)

    def _octet(self) -> int:
        if not 0 <= self.at < len(self._data):
            raise EOFError
        self.at += 1
        return self._data[self.at - 1]

    def _varint(self) -> int:
        value, self.at = _varint(self._data, self.at)
        return value

    def _integer(self) -> int:
        return _as_signed(self._varint())

    def _skip_double(self) -> None:
        self.at += 8

    def _skip_binary(self) -> None:
        size = self._varint()
        self.at += size


def _as_signed(value: int) -> int:
    return (value >> 1) ^ -(value & 1)


_READ: dict[int, Callable[[_ThriftReader], Any]] = {
    _BYTE: _ThriftReader._octet,  # noqa: SLF001 - of the class above
    _I16: _ThriftReader._integer,  # noqa: SLF001
    _I32: _ThriftReader._integer,  # noqa: SLF001
    _I64: _ThriftReader._integer,  # noqa: SLF001
    _DOUBLE: _ThriftReader._skip_double,  # noqa: SLF001
    _BINARY: _ThriftReader._skip_binary,  # noqa: SLF001
}
