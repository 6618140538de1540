"""Single rows of columns, and their way back into columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec.values.aligned import empty
from streamrec.values.columns import (
    Arrays,
    BytesColumn,
    Ragged,
    Sparse,
    form_of,
    offsets_of,
    pick_rows,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamrec.values.columns import Column


def row_of(column: Column, number: int) -> Column:
    """Return a column of that row alone, whose buffers hold nothing else; a view."""
    if isinstance(column, np.ndarray):  # the most frequent kind, once for each record
        return column[number : number + 1]
    if not isinstance(column, Sparse):
        row: Column = _rows(column, number, number + 1)
        return row
    places = np.flatnonzero(column.indices[:, 0] == number)
    # A copy, since places are an array: it may be written to.
    indices = column.indices[places]
    indices[:, 0] = 0
    return Sparse(indices, pick_rows(column.values, places), (1, *column.dense_shape[1:]))


def _rows(column: Any, first: int, last: int) -> Any:
    match column:
        case BytesColumn():
            strings = column.strings_per_row
            offsets = column.offsets[first * strings : last * strings + 1]
            values = column.values[offsets[0] : offsets[-1]]
            return BytesColumn(values, offsets - offsets[0], column.item_shape, last - first)
        case Arrays():
            offsets = column.offsets[first : last + 1]
            values = column.values[offsets[0] : offsets[-1]]
            return Arrays(values, offsets - offsets[0], column.shapes[first:last])
        case Ragged():
            splits = column.row_splits[first : last + 1]
            values = _rows(column.values, int(splits[0]), int(splits[-1]))
            return Ragged(values, splits - splits[0])
    return column[first:last]


def join_columns(columns: Sequence[Any]) -> Any:
    """Join columns of one feature, in their order.

    Raises:
        ValueError: They are of different kinds, dtypes or shapes; the message says which.
    """
    first = columns[0]
    kind = _kind(first)
    for column in columns:
        if _kind(column) != kind:
            raise ValueError(f"first {form_of(first)}, then {form_of(column)}")
    match first:
        case BytesColumn():
            offsets = _join_offsets([column.offsets for column in columns])
            # Cut to the rows first: a column that is a view may hold more values than theirs.
            values = join_columns([_rows(one, 0, len(one)).values for one in columns])
            return BytesColumn(values, offsets, first.item_shape, sum(map(len, columns)))
        case Arrays():
            offsets = _join_offsets([column.offsets for column in columns])
            values = join_columns([_rows(one, 0, len(one)).values for one in columns])
            return Arrays(values, offsets, np.concatenate([column.shapes for column in columns]))
        case Ragged():
            splits = _join_offsets([column.row_splits for column in columns])
            return Ragged(join_columns([_rows(one, 0, len(one)).values for one in columns]), splits)
        case Sparse():
            return _join_sparse(columns)
    whole = empty((sum(map(len, columns)), *first.shape[1:]), first.dtype)
    # NumPy's own memory need not begin at a multiple of 64 bytes.
    return np.concatenate(columns, out=whole)


def _kind(column: Any) -> tuple[Any, ...]:
    """Return what must be equal in columns that are joined."""
    if isinstance(column, np.ndarray):
        return np.ndarray, column.dtype, column.shape[1:]
    match column:
        case BytesColumn():
            return BytesColumn, column.item_shape
        case Arrays():
            return Arrays, column.values.dtype, column.shapes.shape[1]
        case Ragged():
            return Ragged, _kind(column.values)
        case Sparse():
            return Sparse, _kind(column.values), len(column.dense_shape)
    raise TypeError(f"{type(column).__name__} is not a column")


def _join_offsets(offsets: Sequence[Any]) -> Any:
    return offsets_of(np.concatenate([np.diff(one) for one in offsets]))


def _join_sparse(columns: Sequence[Sparse]) -> Sparse:
    begins = offsets_of(np.array([len(column) for column in columns], np.int64))
    indices = np.concatenate([column.indices for column in columns])
    indices[:, 0] += np.repeat(begins[:-1], [len(column.indices) for column in columns])
    shape = np.max([column.dense_shape[1:] for column in columns], axis=0).tolist()
    values = join_columns([column.values for column in columns])
    return Sparse(indices, values, (int(begins[-1]), *shape))
