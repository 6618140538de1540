"""The filters of PNG's rows, in Python. Source: ISO/IEC 15948 (PNG), clause 9."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from streamrec.values.columns import ByteArray, Bytes


def unfilter(filtered: Bytes, rows: int, pixel: int, out: ByteArray) -> bool:
    """Undo the filters of a PNG's rows.

    Args:
        filtered: The rows, each after the byte that names its filter.
        rows: The number of rows.
        pixel: Bytes of a pixel: 1, 2, 3, 4, 6 or 8.
        out: uint8, C-contiguous: the rows without that byte.

    Returns:
        ``False`` where a row has a filter that PNG does not have; ``out`` is then undefined.
    """
    size = out.size // max(1, rows)
    octets, target = bytes(filtered), out.reshape(rows, size)
    above = bytes(size)
    for number in range(rows):
        begin = number * (size + 1)
        kind, row = octets[begin], octets[begin + 1 : begin + 1 + size]
        if kind > _PAETH:
            return False
        above = _undone(kind, row, above, pixel)
        target[number] = np.frombuffer(above, np.uint8)
    return True


_PAETH = 4


def _undone(kind: int, row: bytes, above: bytes, pixel: int) -> bytes:
    # Before the first pixel there are zeros.
    done, corners = bytearray(pixel), bytes(pixel) + above
    for number, (octet, up) in enumerate(zip(row, above, strict=True)):
        left, corner = done[number], corners[number]
        guess = (0, left, up, (left + up) // 2, _closest(left, up, corner))[kind]
        done.append((octet + guess) & 255)
    return bytes(done[pixel:])


def _closest(left: int, up: int, corner: int) -> int:
    """Return the neighbour closest to ``left + up - corner``; of equals the first."""
    guess = left + up - corner
    return min((left, up, corner), key=lambda each: abs(guess - each))
