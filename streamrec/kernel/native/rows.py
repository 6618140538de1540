"""Rows of records: their form for the extension, and their copying."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from streamrec.kernel import _native
from streamrec.kernel.contract import fresh
from streamrec.kernel.native.columns import Room, layout
from streamrec.values.columns import BytesColumn

if TYPE_CHECKING:
    from streamrec.kernel.contract import Allocate
    from streamrec.values.record_rows import RecordRows

Held: TypeAlias = "tuple[Any, Any, Any, Any]"


def hold(rows: RecordRows) -> Held:
    """Return the arrays of the rows, contiguous and of the extension's types."""
    # Nothing is copied where they are so already, as those of RecordRows are.
    return (
        rows.buffers,
        np.ascontiguousarray(rows.buffer_index, np.int32),
        np.ascontiguousarray(rows.offsets, np.int64),
        np.ascontiguousarray(rows.lengths, np.int64),
    )


def gather(rows: RecordRows, allocate: Allocate = fresh) -> BytesColumn:
    """Copy the payloads of rows into one column.

    Args:
        rows: The records.
        allocate: The source of memory for a large column.
    """
    (place,), sizes = layout([rows.nbytes])
    values = Room(sizes, allocate).array((rows.nbytes,), np.dtype(np.uint8), place)
    offsets = np.empty(len(rows) + 1, np.int64)
    _native.gather(hold(rows), values, offsets)
    return BytesColumn(values, offsets)
