"""The rows of several lanes in one order, by the extension."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from streamrec.kernel import _native
from streamrec.kernel.contract import Interleaved
from streamrec.values.records import RecordRows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamrec.kernel.contract import Run
    from streamrec.values.columns import ByteArray, Indices

__all__ = ["interleave"]


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
    memory = (index, offsets, lengths, shards, ordinals, epochs, ends)
    _native.interleave(len(lanes), tuple(runs), keys, memory)
    merged = RecordRows(tuple(buffers), index, offsets, lengths, shards, ordinals)
    return Interleaved(merged, epochs, ends)
