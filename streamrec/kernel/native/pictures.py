"""The filters of PNG's rows, by the extension."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamrec.kernel import _native

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
    return _native.unfilter(filtered, rows, out.size // max(1, rows), pixel, out)
