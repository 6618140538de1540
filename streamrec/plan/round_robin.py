"""The order in which the records of several lanes are delivered.

Record ``i`` of lane ``l`` has the key ``(i, l)``; records are delivered in the order of their keys.
A lane that ended has no more keys; one that has not landed yet holds back every later key, so that
the order never depends on timing.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    given, ready, over = taken.tolist(), available.tolist(), ended.tolist()
    lanes = len(given)
    waiting = [lane for lane in range(lanes) if ready[lane] or not over[lane]]
    if not waiting:
        return Merge(np.zeros(lanes, np.int64), _NONE, _NONE, -1)
    horizon = min(given[lane] for lane in waiting) + -(-most // len(waiting)) + 1
    first_missing = min(
        (horizon if over[lane] else min(given[lane] + ready[lane], horizon)) * lanes + lane
        for lane in waiting
    )
    counts = _below(first_missing, given, ready)
    return _in_order(given, counts, most, first_missing % lanes)


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


def first_come_before(keys: npt.NDArray[np.int64], merged: Sequence[int]) -> list[int]:
    """As :func:`taken_before`, of what :func:`first_come` has merged."""
    lanes = len(merged)
    counts = np.bincount(keys % lanes, minlength=lanes)
    return [given - count for given, count in zip(merged, counts.tolist(), strict=True)]


def _below(end: int, taken: Sequence[int], most: Sequence[int]) -> list[int]:
    """How many keys below ``end`` each lane has that it has not given, and so many at most."""
    lanes = len(taken)
    return [
        max(0, min(most[lane], (end - lane + lanes - 1) // lanes - taken[lane]))
        for lane in range(lanes)
    ]


def _in_order(taken: list[int], counts: list[int], most: int, blocking: int) -> Merge:
    """The first ``most`` of the rows that the lanes can give."""
    lanes = len(taken)
    gives = [lane for lane in range(lanes) if counts[lane]]
    if not gives:
        return Merge(np.zeros(lanes, np.int64), _NONE, _NONE, blocking)
    begin = min(taken[lane] * lanes + lane for lane in gives)
    end = max((taken[lane] + counts[lane] - 1) * lanes + lane for lane in gives) + 1
    rows = sum(counts)
    if rows == end - begin:
        return _without_gaps(taken, counts, range(begin, begin + min(rows, most)), blocking)
    return _with_gaps(np.array(taken), np.array(counts), most, blocking)


def _without_gaps(taken: list[int], counts: list[int], keys: range, blocking: int) -> Merge:
    """The rows with these keys, every one of which some lane gives."""
    lanes = len(taken)
    counts = _below(keys.stop, taken, counts)
    first, skipped = divmod(keys.start, lanes)
    before = [0, *accumulate(counts)]
    place_of_first = np.array([before[lane] - taken[lane] + first for lane in range(lanes)])
    numbers = np.arange(-(-keys.stop // lanes) - first)[:, None]
    order = (place_of_first + numbers).ravel()[skipped : skipped + len(keys)]
    return Merge(np.array(counts), order, np.arange(keys.start, keys.stop), blocking)


def _with_gaps(
    taken: npt.NDArray[np.int64], counts: npt.NDArray[np.int64], most: int, blocking: int
) -> Merge:
    """The same where lanes have ended: by a grid of numbers and lanes."""
    gives = counts > 0
    begin = int(taken[gives].min())
    first = taken - begin
    numbers = np.arange(int((first + counts)[gives].max()))[:, None]
    keys = np.flatnonzero((numbers >= first) & (numbers < first + counts))[:most]
    number, lane = np.divmod(keys, len(taken))
    counts = np.bincount(lane, minlength=len(taken))
    before = np.cumsum(counts) - counts
    return Merge(counts, (before - first)[lane] + number, keys + begin * len(taken), blocking)


def taken_before(keys: npt.NDArray[np.int64], merged: Sequence[int]) -> list[int]:
    """How many records each lane has given before those that come last.

    Args:
        keys: int64 ``[rows]``: of the last rows that are merged; at least one.
        merged: How many each lane has given to what is merged.
    """
    number, first = divmod(keys.item(0), len(merged))
    return [min(number + (lane < first), given) for lane, given in enumerate(merged)]
