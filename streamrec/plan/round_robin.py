"""The order in which the records of several lanes are delivered.

Record ``i`` of lane ``l`` has the key ``(i, l)``; records are delivered in the order of their keys.
A lane that ended has no more keys; one that has not landed yet holds back every later key, so that
the order never depends on timing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Merge", "merge"]


class Merge(NamedTuple):
    """What can be delivered now."""

    counts: npt.NDArray[np.int64]
    """int64 ``[lanes]``: how many records each lane gives."""
    order: npt.NDArray[np.int64]
    """int64 ``[rows]``: the delivery order, as indices into the lanes' records end to end."""
    blocking: int
    """The lane whose next record is needed next; -1 when every lane has ended and is empty."""


def merge(
    taken: npt.NDArray[np.int64],
    available: npt.NDArray[np.int64],
    ended: npt.NDArray[np.bool_],
    most: int,
) -> Merge:
    """Merge what the lanes have, up to about ``most`` rows.

    Args:
        taken: int64 ``[lanes]``: how many records each lane has given so far.
        available: int64 ``[lanes]``: how many more it has at hand.
        ended: bool ``[lanes]``: whether nothing will follow these.
        most: Rows wanted; whole rounds are merged, so up to ``lanes`` more may come.
    """
    lanes = len(taken)
    numbers = np.arange(lanes)
    waiting = np.flatnonzero(~ended | (available > 0))
    if not len(waiting):
        return Merge(np.zeros(lanes, np.int64), np.empty(0, np.int64), -1)
    horizon = int(taken[waiting].min()) + -(-most // len(waiting)) + 1
    edge = np.where(ended, horizon, np.minimum(taken + available, horizon)) * lanes + numbers
    first_missing = int(edge[waiting].min())
    counts = np.clip((first_missing - numbers + lanes - 1) // lanes - taken, 0, available)
    counts = counts.astype(np.int64, copy=False)
    return Merge(counts, _delivery_order(taken, counts), first_missing % lanes)


def _delivery_order(
    taken: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    starts = np.cumsum(counts) - counts
    lane = np.repeat(np.arange(len(counts)), counts)
    number = np.arange(len(lane)) - starts[lane] + taken[lane]
    return np.argsort(number * len(counts) + lane, kind="stable")
