"""Padding: rows of different lengths become one array, with short rows filled up."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec.values.columns import BytesColumn, Ragged, offsets_of

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["as_items", "padded"]


def as_items(
    values: npt.NDArray[Any] | BytesColumn, shape: tuple[int, ...]
) -> npt.NDArray[Any] | BytesColumn:
    """Return flat values as items of a shape, in the same memory."""
    if isinstance(values, BytesColumn):
        return BytesColumn(values.values, values.offsets, shape)
    # The number of items is given, since NumPy cannot infer it where there are no values.
    return values.reshape(len(values) // math.prod(shape), *shape)


def padded(column: Ragged, default: Any) -> npt.NDArray[Any] | BytesColumn:
    """Return the rows as one column ``[rows, longest, *shape]``.

    Args:
        column: Rows of items.
        default: The value that fills up short rows; ``None`` means 0 or ``b""``.
    """
    lengths = np.diff(column.row_splits)
    longest = int(lengths.max(initial=0))
    values = column.values
    if isinstance(values, BytesColumn):
        return _padded_strings(values, lengths, longest, default or b"")
    assert isinstance(values, np.ndarray)
    shape = (len(lengths), longest, *values.shape[1:])
    if len(values) == len(lengths) * longest:
        return values.reshape(shape)
    dense = np.full(shape, 0 if default is None else default, values.dtype)
    dense[np.arange(longest) < lengths[:, None]] = values
    return dense


def _padded_strings(
    values: BytesColumn, lengths: npt.NDArray[np.int64], longest: int, default: bytes
) -> BytesColumn:
    each = values.strings_per_row
    given = np.repeat(np.arange(longest) < lengths[:, None], each)
    sizes = np.full(len(given), len(default), np.int64)
    sizes[given] = np.diff(values.offsets)
    octets = values.values
    if default and not given.all():
        own = np.repeat(given, sizes)
        octets = np.empty(len(own), np.uint8)
        octets[own] = values.values
        octets[~own] = np.tile(np.frombuffer(default, np.uint8), int((~given).sum()))
    return BytesColumn(octets, offsets_of(sizes), (longest, *values.item_shape), len(lengths))
