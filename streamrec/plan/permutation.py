"""Seeded permutations that never change.

An order that was saved in a checkpoint must be the same in every later version, on every machine.
NumPy's generators promise no such thing, so the keys come from SplitMix64 (Steele, Lea and Flood,
"Fast splittable pseudorandom number generators", OOPSLA 2014), whose constants are below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["numbers", "permutation", "seed_of", "stratified"]

GOLDEN_GAMMA = 0x9E3779B97F4A7C15
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB
MASK = (1 << 64) - 1
WHOLE = (1 << 63) - 1


def seed_of(*words: int) -> int:
    """Hash integers into one 64-bit seed; their order matters."""
    state = 0
    for word in words:
        state = _mix((state + GOLDEN_GAMMA) & MASK ^ (word & MASK))
    return state


def permutation(n: int, seed: int) -> npt.NDArray[np.int64]:
    """A permutation of ``0 … n-1``: the order of ``n`` successive outputs of SplitMix64."""
    keys = numbers(np.arange(n, dtype=np.uint64), seed)
    return np.argsort(keys, kind="stable").astype(np.int64, copy=False)


def stratified(sizes: npt.NDArray[np.int64], seed: int) -> npt.NDArray[np.int64]:
    """A permutation that draws from all of some groups evenly, wherever it is cut.

    The members of a group of ``n`` are ranked at random, and that of rank ``r`` comes at a random
    point between ``r / n`` and ``(r + 1) / n`` of the whole. So before a point ``x`` come ``n * x``
    of the group's members, at most one more or fewer; and of groups of equal sizes every one has
    given a member before any gives its next. Had a group one point of its own in all strata, groups
    would come in the same order again and again. Points are integers of 63 bits: no machine rounds.

    It takes twice the time of :func:`permutation`: 0.1 ms for 2,700 members of five groups.

    Args:
        sizes: int64 ``[groups]``: how many members each has, at least one, which stand together.
        seed: Of the ranks and points.
    """
    count = int(sizes.sum())
    drawn = numbers(np.arange(2 * count, dtype=np.uint64), seed)
    ranked = np.lexsort((drawn[:count], np.repeat(np.arange(len(sizes)), sizes)))
    ranks = np.arange(count) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    widths = np.repeat(WHOLE // sizes, sizes).astype(np.uint64)
    points = ranks.astype(np.uint64) * widths + drawn[count:] % widths
    return ranked[np.argsort(points, kind="stable")].astype(np.int64, copy=False)


def numbers(places: npt.NDArray[np.uint64], seed: int) -> npt.NDArray[np.uint64]:
    """The outputs of SplitMix64 at these places of its sequence, from 0."""
    keys = (places + np.uint64(1)) * np.uint64(GOLDEN_GAMMA) + np.uint64(seed)
    keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(MIX_1)
    keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(MIX_2)
    keys ^= keys >> np.uint64(31)
    return keys


def _mix(z: int) -> int:
    z = (z ^ (z >> 30)) * MIX_1 & MASK
    z = (z ^ (z >> 27)) * MIX_2 & MASK
    return z ^ (z >> 31)
