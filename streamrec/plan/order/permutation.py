"""Seeded permutations that are the same in every version and on every machine.

A saved checkpoint depends on them. NumPy's generators do not promise that, so the keys come from
SplitMix64 (Steele, Lea and Flood,
"Fast splittable pseudorandom number generators", OOPSLA 2014), whose constants are below.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt


GOLDEN_GAMMA = 0x9E3779B97F4A7C15
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB
MASK = (1 << 64) - 1
WHOLE = (1 << 63) - 1


def seed_of(*words: int) -> int:
    """Hash integers, whose order matters, into one 64-bit seed."""
    state = 0
    for word in words:
        # Without the constant, a word of 0 would leave a state of 0 as it is.
        state = _mix((state + GOLDEN_GAMMA) & MASK ^ (word & MASK))
    return state


def permutation(n: int, seed: int) -> npt.NDArray[np.int64]:
    """Return a permutation of ``0 … n-1``: the order of ``n`` successive outputs of SplitMix64."""
    keys = numbers(np.arange(n, dtype=np.uint64), seed)
    # No two keys are equal, as SplitMix64 gives each number of 64 bits once: any sort will do.
    return np.argsort(keys).astype(np.int64, copy=False)


def stratified(sizes: npt.NDArray[np.int64], seed: int) -> npt.NDArray[np.int64]:
    """Return a permutation in which every stretch draws from all groups evenly.

    The members of a group of ``n`` are ranked at random, and the one of rank ``r`` comes at a
    random point between ``r / n`` and ``(r + 1) / n`` of the whole. So ``n * x`` of them, at most
    one more or fewer, come before a point ``x``; and of groups of equal sizes each gives a member
    before any gives its next.

    It takes twice the time of :func:`permutation`: 0.1 ms for 2,700 members of five groups.

    Args:
        sizes: int64 ``[groups]``: the members of each group, at least one; the input has them group
            after group.
        seed: The seed of the ranks and points.
    """
    count = int(sizes.sum())
    drawn = numbers(np.arange(2 * count, dtype=np.uint64), seed)
    # By group first, which is the last key; within a group by the drawn numbers.
    ranked = np.lexsort((drawn[:count], np.repeat(np.arange(len(sizes)), sizes)))
    ranks = np.arange(count) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    widths = np.repeat(WHOLE // sizes, sizes).astype(np.uint64)
    # A new random number for each stratum, or groups would come in the same order again and again;
    # in integers of 63 bits, so that no machine rounds.
    points = ranks.astype(np.uint64) * widths + drawn[count:] % widths
    return ranked[np.argsort(points, kind="stable")].astype(np.int64, copy=False)


def numbers(
    indices: npt.NDArray[np.uint64], seed: int | npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint64]:
    """Return the outputs of SplitMix64 at these indices of its sequence, from 0.

    Seeds in an array are those of the indices beside them, by NumPy's broadcasting.
    """
    keys = (indices + np.uint64(1)) * np.uint64(GOLDEN_GAMMA) + np.uint64(seed)
    keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(MIX_1)
    keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(MIX_2)
    keys ^= keys >> np.uint64(31)
    return keys


def _mix(z: int) -> int:
    z = (z ^ (z >> 30)) * MIX_1 & MASK
    z = (z ^ (z >> 27)) * MIX_2 & MASK
    return z ^ (z >> 31)


def turned(lane: int, lanes: int, count: int, epochs: int) -> int:
    """Return the lane whose part of an epoch this lane has, so that no lane keeps its part.

    An epoch has ``count`` elements, and elements are dealt to the lanes in turn, counting on over
    the epochs. If ``lanes`` and ``count`` have a common divisor ``d``, an element meets each
    ``d``-th lane alone. So lanes turn, within groups of ``d``, by one whenever the elements have
    met those. In ``lanes`` epochs every lane has every element once, and no lane has more elements
    in an epoch than without turns.

    Args:
        lane: The lane.
        lanes: The number of lanes.
        count: The number of elements of an epoch.
        epochs: The epochs since all lanes began.
    """
    divisor = gcd(lanes, count)
    turns = epochs * divisor // lanes
    return lane - lane % divisor + (lane - turns) % divisor


@dataclass(frozen=True)
class LanePieces:
    """The pieces of an epoch's sequence of records that lanes get, longer ones by one record.

    Args:
        records: The number of records of an epoch.
        lanes: The number of lanes.
        origin: The epoch at whose beginning all lanes began; ``None``: they do not turn.
    """

    records: int
    lanes: int
    origin: int | None = None

    def bounds(self, lane: int, epoch: int) -> tuple[int, int]:
        """Return the numbers, in the epoch's sequence, of the lane's first record and its end."""
        if self.origin is None:
            return self.cut(lane, epoch), self.cut(lane + 1, epoch)
        # All epochs have the same pieces, the longer ones first, or lanes would not have each once.
        least, surplus = divmod(self.records, self.lanes)
        same = turned(lane, self.lanes, self.records, epoch - self.origin)
        piece = (same - epoch * self.records) % self.lanes
        low = piece * least + min(piece, surplus)
        return low, low + least + (piece < surplus)

    def cut(self, lane: int, epoch: int) -> int:
        """Return the number of the epoch's records in the lanes before this one."""
        least, surplus = divmod(self.records, self.lanes)
        begin = epoch * self.records % self.lanes  # the first lane with one record more
        wrapped = max(0, begin + surplus - self.lanes)
        return lane * least + min(max(0, lane - begin), surplus - wrapped) + min(lane, wrapped)
