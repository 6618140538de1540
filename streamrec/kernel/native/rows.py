"""Rows of records: their form for the extension, their copying, and those of several lanes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from streamrec.kernel import _native
from streamrec.kernel.contract import Interleaved, fresh
from streamrec.kernel.native.columns import memory
from streamrec.values.columns import BytesColumn
from streamrec.values.records import RecordRows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamrec.kernel.contract import Allocate, Run
    from streamrec.values.columns import ByteArray, Indices

__all__ = ["Held", "gather", "hold", "interleave"]

Held: TypeAlias = "tuple[Any, Any, Any, Any]"


def hold(rows: RecordRows) -> Held:
    """Return the arrays of the rows, contiguous and of the extension's types."""
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
    values = memory((rows.nbytes,), np.dtype(np.uint8), allocate)
    offsets = np.empty(len(rows) + 1, np.int64)
    _native.gather(hold(rows), values, offsets)
    return BytesColumn(values, offsets)


def interleave(lanes: Sequence[Sequence[Run]], keys: Indices) -> Interleaved:
    """Put the rows of several lanes into the order of their keys.

    Args:
        lanes: The runs of each lane, in order.
        keys: int64 ``[rows]``, contiguous: each stands for the next row of lane
            ``key % len(lanes)``.

    Raises:
        ValueError: A run is outside of its rows, or the keys do not match the runs.
    """
    runs: list[_native.Run] = []
    buffers: list[ByteArray] = []
    for lane, given in enumerate(lanes):
        for rows, first, last, epoch in given:
            arrays = (rows.buffer_index, rows.offsets, rows.lengths, rows.shards, rows.ordinals)
            runs.append((lane, first, last, epoch, len(buffers), *arrays))
            buffers += rows.buffers
    n = len(keys)
    index, shards = np.empty(n, np.int32), np.empty(n, np.int32)
    offsets, lengths, ordinals = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    epochs, ends = np.empty(n, np.int64), np.empty(n, np.int64)
    written = (index, offsets, lengths, shards, ordinals, epochs, ends)
    _native.interleave(len(lanes), tuple(runs), keys, written)
    merged = RecordRows(tuple(buffers), index, offsets, lengths, shards, ordinals)
    return Interleaved(merged, epochs, ends)
