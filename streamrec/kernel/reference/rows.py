"""Rows of records: their copying, and those of several lanes in one order, in Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from streamrec.kernel.contract import Interleaved, fresh
from streamrec.values.columns import BytesColumn
from streamrec.values.records import RecordRows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamrec.kernel.contract import Allocate, Run
    from streamrec.values.columns import Indices

__all__ = ["gather", "interleave"]


def gather(
    rows: RecordRows,
    allocate: Allocate = fresh,  # noqa: ARG001 - joining brings its own memory
) -> BytesColumn:
    """Copy the payloads of rows into one column.

    Args:
        rows: The records.
        allocate: Not used: joining brings its own memory.
    """
    return BytesColumn.of(list(rows.payloads()))


def interleave(lanes: Sequence[Sequence[Run]], keys: Indices) -> Interleaved:
    """Put the rows of several lanes into the order of their keys.

    Args:
        lanes: The runs of each lane, in order.
        keys: int64 ``[rows]``, contiguous: each stands for the next row of lane
            ``key % len(lanes)``.

    Raises:
        ValueError: A run is outside of its rows, or the keys do not match the runs.
    """
    runs = [run for given in lanes for run in given]
    if any(not 0 <= run.first <= run.last <= len(run.rows) for run in runs):
        raise ValueError("a run lies outside of its rows")
    order = _order(keys, [sum(run.last - run.first for run in given) for given in lanes])
    parts = [run.rows.part(run.first, run.last) for run in runs]
    rows = RecordRows.concatenate(parts).reorder(order)
    epochs = np.array([run.epoch for run in runs for _ in range(run.first, run.last)], np.int64)
    return Interleaved(rows, epochs[order], np.cumsum(rows.lengths))


def _order(keys: Indices, counts: Sequence[int]) -> Indices:
    """Return the row of each key, as an index into the lanes' rows end to end."""
    if len(keys) != sum(counts):
        raise ValueError("there is not a key for each row")
    owners = keys % max(1, len(counts))
    if (keys < 0).any() or np.bincount(owners, minlength=len(counts)).tolist() != list(counts):
        raise ValueError("the keys do not name each lane as often as it has rows")
    order = np.empty(len(keys), np.int64)
    order[np.argsort(owners, kind="stable")] = np.arange(len(keys))
    return order
