"""The windows of a lane: how large each is, and its permutation.

A window is measured in bytes, because its memory is what one has to pay for: a window of 8,192
pictures is 0.9 GB, and nobody knows that from a record count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from streamrec.plan.permutation import permutation, seed_of

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
    """

    total: int
    lanes: int
    seed: int
    shuffles: bool = True

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
        self, lane: int, epoch: int, number: int, records: int
    ) -> npt.NDArray[np.int64]:
        """The order in which the window's records leave it; with buckets, those of each."""
        if not self.shuffles:
            return np.arange(records)
        return permutation(records, self.seed_of(lane, epoch, number))

    def seed_of(self, lane: int, epoch: int, number: int) -> int:
        """Of the window's permutation."""
        return seed_of(WINDOW, self.seed, epoch, lane, number)


def records_until(lengths: npt.NDArray[np.int64], missing: int) -> int:
    """How many of these records a window takes that lacks so many bytes: at least one, if any.

    The record that reaches the size belongs to the window.
    """
    frames = np.cumsum(lengths + FRAME_OVERHEAD)
    return min(len(lengths), int(np.searchsorted(frames, missing, side="left")) + 1)
