"""The windows of a lane: the size of each, its permutation, and the length buckets in it.

A window is measured in bytes, because memory is its cost: a window of 8,192 pictures is 0.9 GB,
which its number of records does not tell.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from streamrec.plan.order.permutation import MASK, numbers, permutation, seed_of, stratified

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Numbers = npt.NDArray[np.int64]


FRAME_OVERHEAD = 16
"""Bytes of a TFRecord frame besides its payload; they count, so that empty records fill windows."""

GROWTH = (16, 8, 4)
"""Divisors of the first windows of an epoch, so that the first batch need not wait for a full one.
The window after them is staggered by lane, so that lanes do not refill all at once."""

MOST_SHARDS = 4096
"""Shards that a full window of all lanes has at most, or about as many where lanes are many.
Every shard takes a request: without a limit, the first window of 100,000 shards of a few bytes
would ask for all of them. A dataset of no more shards needs no limit."""

WINDOW = 0x57494E444F57  # "WINDOW": separates the permutations of windows from those of shards


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of all lanes.

    Args:
        total: ``shuffle_window``: bytes over all lanes.
        lanes: The number of lanes that share them.
        seed: The seed of the permutations.
        shuffles: ``False`` to keep the records of a window in order.
        open_shards: The shards that each lane has open at once.
        shard_bytes: Bytes for which a shard counts besides its records, as :func:`bytes_of_shard`
            gives them; for which a chunk of an index counts at least.
    """

    total: int
    lanes: int
    seed: int
    shuffles: bool = True
    open_shards: int = 1
    shard_bytes: int = 0

    def size(self, lane: int, number: int, growth: Sequence[int] = GROWTH) -> int:
        """Return the bytes of frames that close the window, by the record that reaches them.

        Args:
            lane: The lane's number.
            number: The window's number within its epoch.
            growth: Divisors of the first windows; the one after them is staggered.
        """
        full = self.total // self.lanes
        if number < len(growth):
            return full // growth[number]
        # From a half to a whole window, by lane.
        return full // 2 + full * lane // (2 * self.lanes) if number == len(growth) else full

    def turn(self, lane: int, number: int) -> int:
        """Return the bytes of frames that end an open shard's turn, with the record that has them.

        Args:
            lane: The lane's number.
            number: The turn's number within its epoch, over all open shards.
        """
        # The turns of a round, one for each open shard, together give as much as the window of the
        # round's number takes. So every window has equal parts of all open shards.
        return max(1, self.size(lane, number // self.open_shards) // self.open_shards)

    def opens(self, lane: int, epoch: int, number: int) -> int:  # noqa: ARG002 - all are alike
        """Return the bytes of frames that close the window of that number."""
        return self.size(lane, number)

    def takes(self, lengths: npt.NDArray[np.int64], missing: int) -> tuple[int, int]:
        """Return how many of these records the window takes, and their bytes of frames."""
        records = records_until(lengths, missing)
        return records, int(lengths[:records].sum()) + records * FRAME_OVERHEAD

    def lacks(self, missing: int) -> int:
        """Return the bytes that the window lacks."""
        return missing

    def permutation(
        self, lane: int, epoch: int, number: int, shards: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.int64]:
        """Return the order in which the window's records leave it; with buckets, within each.

        Args:
            lane: The lane's number.
            epoch: The epoch of the records.
            number: The window's number within the epoch.
            shards: int32 ``[records]``: the shard of each.
        """
        if not self.shuffles:
            return np.arange(len(shards))
        seed = self.seed_of(lane, epoch, number)
        if self.open_shards == 1:
            return permutation(len(shards), seed)
        # Records leave open shards evenly: a batch has a few records of each lane, and by chance
        # several of them would be of one shard.
        by_shard = np.argsort(shards, kind="stable")
        return by_shard[stratified(np.unique(shards, return_counts=True)[1], seed)]

    def seed_of(self, lane: int, epoch: int, number: int) -> int:
        """Return the seed of the window's permutation."""
        return seed_of(WINDOW, self.seed, epoch, lane, number)


def bytes_of_shard(shards: int, total: int) -> int:
    """Return the bytes for which each shard counts in windows, so that these end in time.

    Args:
        shards: The shards of the dataset, or the chunks of its index.
        total: ``shuffle_window``: bytes over all lanes.
    """
    return total // MOST_SHARDS if shards > MOST_SHARDS else 0


def records_until(lengths: npt.NDArray[np.int64], missing: int) -> int:
    """Return how many records a window takes that lacks ``missing`` bytes: one or more, if any.

    The record that reaches the window's size belongs to it.
    """
    frames = np.cumsum(lengths + FRAME_OVERHEAD)
    return min(len(lengths), int(np.searchsorted(frames, missing, side="left")) + 1)


BUCKETS = 0x4255434B455453  # "BUCKETS": separates their permutations from all others


@dataclass(frozen=True, slots=True)
class Buckets:
    """The assignment of a lane's records to batches of rows of similar length, by each lane alone.

    Every global batch has a bucket, in an order drawn from the seed: of ``count`` batches in a row,
    one has the shortest rows, and one the longest. Record ``i`` of lane ``l`` is in batch
    ``(i * lanes + l) // rows``, so a lane knows the bucket of each of its output slots before it
    has read a record. It sorts its window by length and deals it to the window's slots: the
    shortest records go to the slots of the lowest bucket, and so on. Every record leaves with its
    window, so none is held back, lost or read twice.

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

    def slot_buckets(self, lane: int, first: int, count: int) -> npt.NDArray[np.uint16]:
        """Return the buckets of a lane's next output slots; 0 has the shortest rows.

        Args:
            lane: The lane's number.
            first: Records that the lane gave before these, since all lanes began.
            count: The number of slots.
        """
        # Slots count over all lanes: record i of lane l is slot i * lanes + l.
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
        wanted = self.slot_buckets(lane, first, len(lengths))
        # Stable sorts throughout: the order must be the same in every version of NumPy.
        slots = np.argsort(wanted, kind="stable")
        by_length = drawn[np.argsort(lengths[drawn], kind="stable")]
        bucket = np.empty_like(wanted)
        bucket[by_length] = wanted[slots]
        order = np.empty(len(lengths), np.int64)
        order[slots] = drawn[np.argsort(bucket[drawn], kind="stable")]
        return order

    def _cycles(self, first: int, count: int) -> npt.NDArray[np.uint16]:
        """Return the buckets of ``count`` cycles of batches; each cycle has every bucket once."""
        # NumPy refuses a Python int beyond uint64.
        begin = np.uint64(first * self.count & MASK)
        indices = np.arange(count * self.count, dtype=np.uint64) + begin
        keys = numbers(indices, seed_of(BUCKETS, self.seed)).reshape(count, self.count)
        return np.argsort(keys, kind="stable").astype(np.uint16).ravel()
