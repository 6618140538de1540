"""Rows in the form that the extension takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from streamrec.values.records import RecordRows

__all__ = ["Held", "hold"]

Held: TypeAlias = "tuple[Any, Any, Any, Any]"


def hold(rows: RecordRows) -> Held:
    """Return the arrays of the rows, contiguous and of the extension's types."""
    return (
        rows.buffers,
        np.ascontiguousarray(rows.buffer_index, np.int32),
        np.ascontiguousarray(rows.offsets, np.int64),
        np.ascontiguousarray(rows.lengths, np.int64),
    )
