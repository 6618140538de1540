"""Columns that a user's function has returned: their checks, and the form of those delivered.

A column that was made by hand may be wrong, and reading by its offsets would then leave its memory.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from streamrec.values.columns import Arrays, BytesColumn, Ragged, Sparse, volumes

if TYPE_CHECKING:
    from streamrec.values.columns import Column

T = TypeVar("T")

_TOO_WIDE = "gG"
"""The codes of NumPy's long double and its complex number, which differ by machine."""


def is_number(dtype: np.dtype[Any]) -> bool:
    """Return whether it is one of numbers of at most 64 bits (complex ones: 128), or truths."""
    if dtype.type.__module__ != "numpy":
        return True  # of ml_dtypes
    return dtype.kind in "biufc" and dtype.char not in _TOO_WIDE


def fault_of(column: Column) -> str | None:
    """Return what is wrong with the numbers that say where a column's rows lie; ``None``: nothing.

    The text goes on after "whose".
    """
    match column:
        case Ragged():
            if not _rises(column.row_splits, len(column.values)):
                return "row_splits do not rise from 0 up to the number of its values"
            return fault_of(column.values)
        case BytesColumn():
            if not _rises(column.offsets, len(column.values)):
                return "offsets do not rise from 0 up to the number of its bytes"
        case Arrays():
            sizes = volumes(column.shapes, 1 << 58)
            is_fit = _rises(column.offsets, len(column.values))
            if not is_fit or not np.array_equal(np.diff(column.offsets), sizes):
                return "offsets are not those of arrays of its shapes"
        case Sparse():
            sides = np.array(column.dense_shape, np.int64)
            inside = (column.indices >= 0) & (column.indices < sides)
            if len(column.values) != len(column.indices) or not inside.all():
                return "indices lie outside of dense_shape, or are not as many as its values"
    return None


def _rises(offsets: Any, end: int) -> bool:
    if not isinstance(offsets, np.ndarray) or offsets.dtype.kind not in "iu" or offsets.ndim != 1:
        return False
    is_inside = bool(len(offsets)) and offsets[0] >= 0 and offsets[-1] <= end
    return bool(is_inside and (offsets[:-1] <= offsets[1:]).all())


def as_delivered(column: T) -> T:
    """Return a column whose arrays are writable, contiguous and of the machine's byte order.

    Those that are so already are not copied.
    """
    if isinstance(column, np.ndarray):
        return _plain(column)  # type: ignore[return-value]
    values = {one.name: getattr(column, one.name) for one in fields(column)}  # type: ignore[arg-type]
    own = {name: _part(name, value) for name, value in values.items()}
    if all(own[name] is values[name] for name in own):
        return column
    return replace(column, **own)  # type: ignore[type-var]


_OFFSETS = {"row_splits", "offsets", "shapes", "indices"}


def _part(name: str, value: Any) -> Any:
    if name in _OFFSETS:
        return _plain(value.astype(np.int64, copy=False))
    return (
        as_delivered(value)
        if isinstance(value, np.ndarray | Arrays | BytesColumn | Ragged)
        else value
    )


def _plain(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if type(array) is np.ndarray and array.flags.carray and array.dtype.isnative:
        return array
    return np.require(array, array.dtype.newbyteorder("="), ["C", "W", "A", "E"])
