"""Cuts exact batches out of what the lanes have ready, in the one order that there is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from streamrec.plan.position import COORDINATES, TAKEN
from streamrec.plan.round_robin import merge
from streamrec.types import RecordRows

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from streamrec.pipeline.lanes import Lane

__all__ = ["Batcher", "Chunk"]

SMALLEST_MERGE = 1024
"""Rows merged at a time, at least: the cost of a merge is one of lanes, not of rows."""


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Rows in the order of delivery."""

    rows: RecordRows
    lanes: npt.NDArray[np.int64]
    """int64 ``[rows]``: the own lane that each row is from."""
    epochs: npt.NDArray[np.int64]
    """int64 ``[rows]``."""

    def __len__(self) -> int:
        return len(self.rows)

    def cut(self, first: int, last: int | None) -> Chunk:
        """The rows from ``first`` to before ``last``."""
        part = slice(first, last)
        return Chunk(self.rows.take(part), self.lanes[part], self.epochs[part])

    @classmethod
    def concatenate(cls, chunks: Sequence[Chunk]) -> Chunk:
        """All rows of all chunks, in that order."""
        return cls(
            RecordRows.concatenate([chunk.rows for chunk in chunks]),
            np.concatenate([chunk.lanes for chunk in chunks]),
            np.concatenate([chunk.epochs for chunk in chunks]),
        )


class Batcher:
    """Merges the lanes and cuts batches.

    Args:
        lanes: The own lanes.
        taken: int64 ``[lanes]``: how many records each has delivered so far.
        skip: Rows to drop at first: they were delivered before the position was saved.
    """

    def __init__(self, lanes: Sequence[Lane], taken: npt.NDArray[np.int64], skip: int = 0) -> None:
        self._lanes = lanes
        self._merged = taken.copy()
        self._delivered = taken.copy()
        self._skip = skip
        self._pending = empty_chunk()

    @property
    def pending(self) -> int:
        """Rows that are merged and in no batch yet."""
        return len(self._pending)

    def gather(self, wanted: int) -> int:
        """Merge until ``wanted`` rows are pending.

        Returns:
            The own lane whose next record is missing; -1 when all is there, or all lanes are at
            their end.
        """
        blocking = -1
        while (missing := wanted + self._skip - self.pending) > 0:
            most = max(missing, SMALLEST_MERGE)
            self._poll(most)
            blocking, rows = self._merge(most)
            if not rows:
                break
        self._drop_skipped()
        return blocking if self.pending < wanted else -1

    def cut(self, rows: int) -> Chunk:
        """Take so many pending rows; the lanes move past them."""
        chunk, self._pending = self._pending.cut(0, rows), self._pending.cut(rows, None)
        counts = np.bincount(chunk.lanes, minlength=len(self._lanes))
        self._delivered += counts
        for lane in np.flatnonzero(counts).tolist():
            self._lanes[lane].deliver(int(counts[lane]))
        return chunk

    def coordinates(self) -> npt.NDArray[np.int64]:
        """The lanes' part of the position after what was cut."""
        array = np.empty((len(COORDINATES), len(self._lanes)), np.int64)
        array[:TAKEN] = np.array([lane.coordinates for lane in self._lanes], np.int64).T
        array[TAKEN] = self._delivered
        return array

    def _poll(self, wanted: int) -> None:
        share = 2 * wanted // len(self._lanes) + 1
        for lane in self._lanes:
            lane.poll(share)

    def _merge(self, most: int) -> tuple[int, int]:
        available = np.array([lane.available for lane in self._lanes], np.int64)
        ended = np.array([lane.ended for lane in self._lanes])
        plan = merge(self._merged, available, ended, most)
        if not len(plan.order):
            return plan.blocking, 0
        self._merged += plan.counts
        self._pending = Chunk.concatenate([self._pending, self._collect(plan.counts, plan.order)])
        return plan.blocking, len(plan.order)

    def _collect(self, counts: npt.NDArray[np.int64], order: npt.NDArray[np.int64]) -> Chunk:
        given = np.flatnonzero(counts).tolist()
        parts = [part for lane in given for part in self._lanes[lane].take(int(counts[lane]))]
        rows = RecordRows.concatenate([rows for rows, _ in parts])
        epochs = np.repeat([epoch for _, epoch in parts], [len(rows) for rows, _ in parts])
        lanes = np.repeat(np.arange(len(counts)), counts)
        return Chunk(rows.take(order), lanes[order], epochs[order].astype(np.int64))

    def _drop_skipped(self) -> None:
        dropped = min(self._skip, self.pending)
        if dropped:
            self.cut(dropped)
            self._skip -= dropped


def empty_chunk() -> Chunk:
    """No rows."""
    none = np.empty(0, np.int64)
    return Chunk(RecordRows.of([]), none, none)
