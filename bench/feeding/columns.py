"""The size of batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec import BytesColumn

if TYPE_CHECKING:
    import streamrec as sr


def arrays(batch: sr.Batch) -> dict[str, np.ndarray[Any, Any]]:
    """Return the arrays of a batch by name, two of a column of strings."""
    found: dict[str, np.ndarray[Any, Any]] = {}
    columns = batch.columns or {"records": batch.records}
    for name, column in columns.items():
        if isinstance(column, BytesColumn):
            found |= {f"{name}.values": column.values, f"{name}.offsets": column.offsets}
        else:
            found[name] = np.asarray(column)
    return found


def nbytes(batch: sr.Batch) -> int:
    """Return the bytes of all arrays of a batch."""
    return sum(array.nbytes for array in arrays(batch).values())
