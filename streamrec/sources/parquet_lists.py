"""The lengths of Parquet's lists, by the levels at the beginning of pages.

A repetition level of 0 begins a row; any other goes on with one. Levels are runs of one value and
bit-packed groups of eight. Source: "Parquet encoding definitions", RLE/bit-packing hybrid.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from streamrec.sources.arrow_fields import module

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from streamrec.sources.parquet_pages import PageHeader

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
    return np.diff(np.concatenate([*begins, np.array([before], np.int64)]))


def _levels(data: memoryview, page: PageHeader, codec: str) -> memoryview | None:
    """Return the encoded levels of a page, which stand at its beginning."""
    body = data[page.at : page.at + page.stored]
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
    size = int.from_bytes(body[:4], "little")
    return body[4 : 4 + size]


def _row_begins(levels: memoryview, values: int, width: int, before: int) -> Iterator[Numbers]:
    """Yield the numbers of the values that begin a row."""
    at, seen = 0, 0
    while seen < values:
        head, at = _varint(levels, at)
        if head & 1:
            groups = head >> 1
            for first in range(0, groups, _AT_ONCE):
                count = min(_AT_ONCE, groups - first)
                packed = np.frombuffer(levels[at : at + count * width], np.uint8)
                at += count * width
                if len(packed) < count * width:
                    raise ValueError("the levels of a page end too early")
                bits = np.unpackbits(packed, bitorder="little").reshape(-1, width)
                begins = np.flatnonzero(~bits.any(axis=1))
                yield begins[begins < values - seen] + (before + seen)
                seen += count * 8
            if not groups:
                raise ValueError("a run of levels of a page is empty")
            continue
        count, value = head >> 1, int.from_bytes(levels[at : at + (width + 7) // 8], "little")
        at += (width + 7) // 8
        if not 0 < count <= values - seen:
            raise ValueError("a run of levels of a page is longer than the page")
        if value == 0:
            yield np.arange(before + seen, before + seen + count)
        seen += count


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value, shift = 0, 0
    while at < len(data) and shift < 64:
        octet = data[at]
        at += 1
        value |= (octet & 127) << shift
        if octet < 128:
            return value, at
        shift += 7
    raise ValueError("the levels of a page end too early")
