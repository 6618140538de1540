"""The filters and the compression of a PNG's rows, with the choices that libpng makes.

Source: ISO/IEC 15948 (PNG), clauses 9 and 12.7; libpng 1.6, pngwutil.c.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    Octets = npt.NDArray[np.uint8]

_BAND = 1 << 18
"""Bytes of rows that are filtered at once: their differences take ten times as much memory."""
_MEMORY_LEVEL = 9
"""What zlib may use: TensorFlow's choice."""
_LOOKAHEAD = 262
"""Bytes that zlib looks ahead; a window need not be larger than the data with these."""


def deflated(rows: Octets, pixel: int, level: int) -> bytes:
    """Filter and compress rows.

    Args:
        rows: uint8 ``[height, bytes of a row]``.
        pixel: Bytes of a pixel.
        level: zlib's level from 0 to 9; -1 is its default.
    """
    size = rows.size + len(rows)
    bits = min(15, max(9, (size + _LOOKAHEAD - 1).bit_length()))  # zlib cannot do with 8
    # libpng filters no row of a single pixel, and then leaves zlib its usual strategy.
    strategy = zlib.Z_DEFAULT_STRATEGY if rows.shape == (1, pixel) else zlib.Z_FILTERED
    deflater = zlib.compressobj(level, zlib.DEFLATED, bits, _MEMORY_LEVEL, strategy)
    body = b"".join(map(deflater.compress, _filtered(rows, pixel))) + deflater.flush()
    return _header(body[:2], size) + body[2:]


def _header(header: bytes, size: int) -> bytes:
    """Return zlib's header with the smallest window that holds the data (RFC 1950, clause 2.2)."""
    window = min(header[0] >> 4, max(0, (size - 1).bit_length() - 8))
    first, second = window << 4 | zlib.DEFLATED, header[1] & 0xE0
    return bytes([first, second + 31 - (first << 8 | second) % 31])


def _filtered(rows: Octets, pixel: int) -> Iterator[bytes]:
    """Yield the rows, each by the filter that leaves the least sum of differences."""
    step = max(1, _BAND // rows.shape[1])
    for begin in range(0, len(rows), step):
        band = rows[begin : begin + step]
        above = np.zeros_like(band)
        above[begin == 0 :] = rows[max(0, begin - 1) : begin + len(band) - 1]
        differences = _differences(band, above, pixel)
        costs = np.minimum(differences, -differences).sum(axis=2, dtype=np.int64)
        usable = _usable(len(rows), rows.shape[1] // pixel)
        best = np.array(usable)[costs[usable].argmin(axis=0)]
        chosen = differences[best, np.arange(len(band))]
        yield np.concatenate([best.astype(np.uint8)[:, None], chosen], axis=1).tobytes()


def _usable(height: int, width: int) -> list[int]:
    """Return the filters that may serve; those that look at what is never there do not."""
    usable = [0, 1, 2, 3, 4]
    if height == 1:
        usable = [0, 1]
    if width == 1:
        usable = [each for each in usable if each in (0, 2)]
    return usable


def _differences(rows: Octets, above: Octets, pixel: int) -> Octets:
    """Return what each filter leaves, uint8 ``[5, rows, bytes of a row]``: the filters 0 to 4."""
    left, corner = np.zeros_like(rows), np.zeros_like(rows)
    left[:, pixel:] = rows[:, :-pixel]
    corner[:, pixel:] = above[:, :-pixel]
    a, b, c = (each.astype(np.int16) for each in (left, above, corner))
    by_a, by_b, by_c = np.abs(b - c), np.abs(a - c), np.abs(a + b - 2 * c)
    paeth = np.where(by_b <= by_c, above, corner)
    paeth = np.where((by_a <= by_b) & (by_a <= by_c), left, paeth)
    average = ((a + b) // 2).astype(np.uint8)
    guesses = (np.zeros_like(rows), left, above, average, paeth)
    return np.stack([rows - guess for guess in guesses])
