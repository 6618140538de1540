"""The windows of a lane: how large each is, and its permutation.

A window is measured in bytes, because its memory is what one has to pay for: a window of 8,192
pictures is 0.9 GB, and nobody knows that from a record count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from streamrec.plan.permutation import permutation, seed_of, stratified

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

__all__ = ["FRAME_OVERHEAD", "Windows"]

FRAME_OVERHEAD = 16
"""Bytes of a TFRecord frame besides its payload: counted, so that empty records fill windows."""

GROWTH = (16, 8, 4)
"""The first windows of an epoch are full / 16, / 8 and / 4, so that the first batch need not wait
for a full one; the fourth is staggered by lane, so that lanes do not refill all at once."""

WINDOW = 0x57494E444F57  # "WINDOW": keeps the permutations of windows apart from those of shards


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of all lanes.

    Args:
        total: ``shuffle_window``: bytes over all lanes.
        lanes: How many lanes share them.
        seed: Of the permutations.
        shuffles: Whether there are any; else records come as they stand.
        open_shards: How many shards each lane has open at once.
    """

    total: int
    lanes: int
    seed: int
    shuffles: bool = True
    open_shards: int = 1

    def size(self, lane: int, number: int, growth: Sequence[int] = GROWTH) -> int:
        """How many bytes of frames close the window: the record that reaches them is its last.

        Args:
            lane: The lane's number.
            number: The window's number within its epoch.
            growth: What parts of a full one the first are; the one after them is staggered.
        """
        full = self.total // self.lanes
        if number < len(growth):
            return full // growth[number]
        return full // 2 + full * lane // (2 * self.lanes) if number == len(growth) else full

    def turn(self, lane: int, number: int) -> int:
        """How many bytes of frames end an open shard's turn; the record that reaches them is last.

        In each round all open shards have one, and together they give as much as the window of the
        round's number takes: so there are parts of equal size of all of them in any window.

        Args:
            lane: The lane's number.
            number: The turn's number within its epoch, of all open shards.
        """
        return max(1, self.size(lane, number // self.open_shards) // self.open_shards)

    def opens(self, lane: int, epoch: int, number: int) -> int:  # noqa: ARG002 - all are alike
        """What closes the window of that number: bytes of frames."""
        return self.size(lane, number)

    def takes(self, lengths: npt.NDArray[np.int64], missing: int) -> tuple[int, int]:
        """How many of these records the window takes, and how much less it lacks then."""
        records = records_until(lengths, missing)
        return records, int(lengths[:records].sum()) + records * FRAME_OVERHEAD

    def lacks(self, missing: int) -> int:
        """Bytes that the window lacks."""
        return missing

    def permutation(
        self, lane: int, epoch: int, number: int, shards: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.int64]:
        """The order in which the window's records leave it; with buckets, those of each.

        Where a lane has several shards open they leave it evenly: a batch has a few records of each
        lane, some of which would be of one shard by chance.

        Args:
            lane: The lane's number.
            epoch: That of the records.
            number: The window's number within it.
            shards: int32 ``[records]``: the shard of each.
        """
        if not self.shuffles:
            return np.arange(len(shards))
        seed = self.seed_of(lane, epoch, number)
        if self.open_shards == 1:
            return permutation(len(shards), seed)
        by_shard = np.argsort(shards, kind="stable")
        return by_shard[stratified(np.unique(shards, return_counts=True)[1], seed)]

    def seed_of(self, lane: int, epoch: int, number: int) -> int:
        """Of the window's permutation."""
        return seed_of(WINDOW, self.seed, epoch, lane, number)


def records_until(lengths: npt.NDArray[np.int64], missing: int) -> int:
    """How many of these records a window takes that lacks so many bytes: at least one, if any.

    The record that reaches the size belongs to the window.
    """
    frames = np.cumsum(lengths + FRAME_OVERHEAD)
    return min(len(lengths), int(np.searchsorted(frames, missing, side="left")) + 1)
