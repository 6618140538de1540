"""Rows of decoded columns, as references that are merged, ordered and cut like those of records.

Their buffers are mappings of columns, and their offsets are indices into these. No stage before the
decoder reads a buffer, so the references serve for both, and a row is copied only into its batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np

from streamrec.values.aligned import empty
from streamrec.values.record_rows import RecordRows

if TYPE_CHECKING:
    import numpy.typing as npt

    from streamrec.values.columns import ByteArray, Indices

Columns: TypeAlias = "dict[str, npt.NDArray[Any]]"


def rows_of(columns: Columns, shards: npt.NDArray[np.int32], ordinals: Indices) -> RecordRows:
    """Refer to all rows of some columns.

    Args:
        columns: Arrays ``[rows, ...]``; all that are ever joined have the same names, dtypes and
            shapes.
        shards: int32 ``[rows]``: the shard that each row begins in.
        ordinals: int64 ``[rows]``: the number in the shard of the record that each row begins with.
    """
    n, buffer = len(shards), cast("ByteArray", columns)
    lengths = np.full(n, sum(column[:1].nbytes for column in columns.values()))
    return RecordRows((buffer,), np.zeros(n, np.int32), np.arange(n), lengths, shards, ordinals)


def are_columns(rows: RecordRows) -> bool:
    """Return whether rows are those of columns; without any buffer they are records."""
    buffers: tuple[object, ...] = rows.buffers
    return isinstance(next(iter(buffers), None), dict)


def columns_of(rows: RecordRows) -> Columns:
    """Copy rows of columns into columns of their own."""
    buffers = cast("tuple[Columns, ...]", rows.buffers)
    pieces = [np.flatnonzero(rows.buffer_index == k) for k in range(len(buffers))]
    columns: Columns = {}
    for name, like in buffers[0].items():
        column = empty((len(rows), *like.shape[1:]), like.dtype)
        for buffer, places in zip(buffers, pieces, strict=True):
            column[places] = buffer[name][rows.offsets[places]]
        columns[name] = column
    return columns
