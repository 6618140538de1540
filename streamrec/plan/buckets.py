"""Batches of rows of like length, without any lane knowing of another.

Every global batch is given a bucket, in an order drawn from the seed: of each so many batches in a
row, one is of the shortest, and one of the longest. Record ``i`` of lane ``l`` is in the batch of
number ``(i * lanes + l) // rows``, so a lane knows the bucket of each of its places before it has
read a record. It sorts its window by length, and parts it as the window's places ask for it: the
shortest go to the places of the lowest bucket, and so on. Whatever the window holds goes out with
it, so nothing is held back, lost or read twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from streamrec.plan.permutation import MASK, numbers, seed_of

if TYPE_CHECKING:
    import numpy.typing as npt

    Numbers = npt.NDArray[np.int64]

__all__ = ["Buckets"]

BUCKETS = 0x4255434B455453  # "BUCKETS": keeps their order apart from other permutations


@dataclass(frozen=True, slots=True)
class Buckets:
    """Which of the records that a lane holds go into which batch.

    Args:
        count: How many buckets there are.
        rows: Of a global batch.
        lanes: How many there are, of all ranks.
        seed: Of the order of the buckets.
    """

    count: int
    rows: int
    lanes: int
    seed: int

    def wanted(self, lane: int, first: int, count: int) -> npt.NDArray[np.uint16]:
        """The bucket that each of some places of a lane is of, from 0, the shortest.

        Args:
            lane: The lane's number.
            first: How many records it has given before these, since all lanes began.
            count: How many places.
        """
        cycle, begun = divmod(first * self.lanes + lane, self.rows * self.count)
        batches = (np.arange(count, dtype=np.int64) * self.lanes + begun) // self.rows
        cycles = int(batches[-1]) // self.count + 1 if count else 0
        drawn: npt.NDArray[np.uint16] = self._cycles(cycle, cycles)[batches]
        return drawn

    def order(self, lane: int, first: int, lengths: Numbers, drawn: Numbers) -> Numbers:
        """The order in which a window's records leave it.

        Args:
            lane: The lane's number.
            first: How many records it has given before the window, since all lanes began.
            lengths: int64 ``[records]``: of the records, in bytes.
            drawn: A permutation: the order of the records of one bucket among each other.
        """
        wanted = self.wanted(lane, first, len(lengths))
        places = np.argsort(wanted, kind="stable")
        by_length = drawn[np.argsort(lengths[drawn], kind="stable")]
        bucket = np.empty_like(wanted)
        bucket[by_length] = wanted[places]
        order = np.empty(len(lengths), np.int64)
        order[places] = drawn[np.argsort(bucket[drawn], kind="stable")]
        return order

    def _cycles(self, first: int, count: int) -> npt.NDArray[np.uint16]:
        """The buckets of the batches in so many cycles, each of which has every bucket once."""
        begin = np.uint64(first * self.count & MASK)
        places = np.arange(count * self.count, dtype=np.uint64) + begin
        keys = numbers(places, seed_of(BUCKETS, self.seed)).reshape(count, self.count)
        return np.argsort(keys, kind="stable").astype(np.uint16).ravel()
