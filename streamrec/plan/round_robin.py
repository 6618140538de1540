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

__all__ = ["Merge", "first_come", "first_come_before", "merge", "taken_before"]

_NONE = np.empty(0, np.int64)


class Merge(NamedTuple):
    """What can be delivered now."""

    counts: npt.NDArray[np.int64]
    """int64 ``[lanes]``: how many records each lane gives."""
    order: npt.NDArray[np.int64]
    """int64 ``[rows]``: the delivery order, as indices into the lanes' records end to end."""
    keys: npt.NDArray[np.int64]
    """int64 ``[rows]``: the rows' keys, ``number * lanes + lane``, which rise."""
    blocking: int
    """The lane that holds back what follows; -1 when every lane has ended and is empty."""


def merge(
    taken: npt.NDArray[np.int64],
    available: npt.NDArray[np.int64],
    ended: npt.NDArray[np.bool_],
    most: int,
) -> Merge:
    """Merge what the lanes have, ``most`` rows at most.

    Args:
        taken: int64 ``[lanes]``: how many records each lane has given so far.
        available: int64 ``[lanes]``: how many more it has at hand.
        ended: bool ``[lanes]``: whether nothing will follow these.
        most: Rows wanted.
    """
    lanes = len(taken)
    numbers = np.arange(lanes)
    waiting = np.flatnonzero(~ended | (available > 0))
    if not len(waiting):
        return Merge(np.zeros(lanes, np.int64), _NONE, _NONE, -1)
    horizon = int(taken[waiting].min()) + -(-most // len(waiting)) + 1
    edge = np.where(ended, horizon, np.minimum(taken + available, horizon)) * lanes + numbers
    first_missing = int(edge[waiting].min())
    counts = np.clip((first_missing - numbers + lanes - 1) // lanes - taken, 0, available)
    return _in_order(taken, counts.astype(np.int64, copy=False), most, first_missing % lanes)


def first_come(
    taken: npt.NDArray[np.int64],
    available: npt.NDArray[np.int64],
    ended: npt.NDArray[np.bool_],
    most: int,
) -> Merge:
    """Merge what the lanes have, as :func:`merge`, but let none of them hold back the others.

    ``blocking`` is the lane that is furthest behind of those that lack records.
    """
    nobody_waits = np.ones(len(taken), np.bool_)
    plan = merge(np.zeros(len(taken), np.int64), available, nobody_waits, most)
    lacking = np.flatnonzero(~ended & (available == 0))
    behind = int(lacking[np.argmin(taken[lacking])]) if len(lacking) else -1
    return plan._replace(blocking=behind)


def first_come_before(
    keys: npt.NDArray[np.int64], merged: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """As :func:`taken_before`, of what :func:`first_come` has merged."""
    lanes = len(merged)
    return merged - np.bincount(keys % lanes, minlength=lanes)


def _in_order(
    taken: npt.NDArray[np.int64], counts: npt.NDArray[np.int64], most: int, blocking: int
) -> Merge:
    """The first ``most`` of the rows that the lanes can give, by a grid of numbers and lanes."""
    gives = counts > 0
    if not gives.any():
        return Merge(counts, _NONE, _NONE, blocking)
    begin = int(taken[gives].min())
    first = taken - begin
    numbers = np.arange(int((first + counts)[gives].max()))[:, None]
    keys = np.flatnonzero((numbers >= first) & (numbers < first + counts))[:most]
    number, lane = np.divmod(keys, len(taken))
    counts = np.bincount(lane, minlength=len(taken))
    before = np.cumsum(counts) - counts
    return Merge(counts, (before - first)[lane] + number, keys + begin * len(taken), blocking)


def taken_before(
    keys: npt.NDArray[np.int64], merged: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """How many records each lane has given before those that come last.

    Args:
        keys: int64 ``[rows]``: of the last rows that are merged; at least one.
        merged: int64 ``[lanes]``: how many each lane has given to what is merged.
    """
    number, lane = divmod(int(keys[0]), len(merged))
    taken: npt.NDArray[np.int64] = np.minimum(number + (np.arange(len(merged)) < lane), merged)
    return taken
