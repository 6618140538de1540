"""Batches of rows of similar length, planned by each lane alone.

Every global batch has a bucket, in an order drawn from the seed: of ``count`` batches in a row, one
has the shortest rows, and one the longest. Record ``i`` of lane ``l`` is in batch
``(i * lanes + l) // rows``, so a lane knows the bucket of each of its output slots before it has
read a record. It sorts its window by length and deals it to the window's slots: the shortest
records go to the slots of the lowest bucket, and so on. Every record leaves with its window, so
none is held back, lost or read twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from streamrec.plan.order.permutation import MASK, numbers, seed_of

if TYPE_CHECKING:
    import numpy.typing as npt

    Numbers = npt.NDArray[np.int64]

BUCKETS = 0x4255434B455453  # "BUCKETS": separates their permutations from all others


@dataclass(frozen=True, slots=True)
class Buckets:
    """The assignment of a lane's records to batches by length.

    Args:
        count: The number of buckets.
        rows: The rows of a global batch.
        lanes: The lanes of all ranks.
        seed: The seed of the order of buckets.
    """

    count: int
    rows: int
    lanes: int
    seed: int

    def wanted(self, lane: int, first: int, count: int) -> npt.NDArray[np.uint16]:
        """Return the buckets of a lane's next output slots; 0 has the shortest rows.

        Args:
            lane: The lane's number.
            first: Records that the lane gave before these, since all lanes began.
            count: The number of slots.
        """
        cycle, begun = divmod(first * self.lanes + lane, self.rows * self.count)
        batches = (np.arange(count, dtype=np.int64) * self.lanes + begun) // self.rows
        cycles = int(batches[-1]) // self.count + 1 if count else 0
        drawn: npt.NDArray[np.uint16] = self._cycles(cycle, cycles)[batches]
        return drawn

    def order(self, lane: int, first: int, lengths: Numbers, drawn: Numbers) -> Numbers:
        """Return the order in which a window's records leave it.

        Args:
            lane: The lane's number.
            first: Records that the lane gave before the window, since all lanes began.
            lengths: int64 ``[records]``: bytes of each record.
            drawn: A permutation: the order of records within a bucket.
        """
        wanted = self.wanted(lane, first, len(lengths))
        slots = np.argsort(wanted, kind="stable")
        by_length = drawn[np.argsort(lengths[drawn], kind="stable")]
        bucket = np.empty_like(wanted)
        bucket[by_length] = wanted[slots]
        order = np.empty(len(lengths), np.int64)
        order[slots] = drawn[np.argsort(bucket[drawn], kind="stable")]
        return order

    def _cycles(self, first: int, count: int) -> npt.NDArray[np.uint16]:
        """Return the buckets of ``count`` cycles of batches; each cycle has every bucket once."""
        begin = np.uint64(first * self.count & MASK)
        indices = np.arange(count * self.count, dtype=np.uint64) + begin
        keys = numbers(indices, seed_of(BUCKETS, self.seed)).reshape(count, self.count)
        return np.argsort(keys, kind="stable").astype(np.uint16).ravel()
