"""The order in which the records of several lanes are delivered.

Record ``i`` of lane ``l`` has the key ``(i, l)``; records are delivered in the order of their keys.
A lane that ended has no more keys; one that has not landed yet holds back every later key, so that
the order never depends on timing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from streamrec.columns import rising

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

__all__ = ["Merge", "first_come", "first_come_before", "merge", "taken_before"]

_NONE = np.empty(0, np.int64)


class Merge(NamedTuple):
    """What can be delivered now."""

    counts: list[int]
    """How many records each lane gives."""
    keys: npt.NDArray[np.int64]
    """int64 ``[rows]``: the rows' keys, ``number * lanes + lane``, which rise."""
    blocking: int
    """The lane that holds back what follows; -1 when every lane has ended and is empty."""


def merge(
    taken: Sequence[int], available: Sequence[int], ended: Sequence[bool], most: int
) -> Merge:
    """Merge what the lanes have, ``most`` rows at most.

    Args:
        taken: How many records each lane has given so far.
        available: How many more it has at hand.
        ended: Whether nothing will follow these.
        most: Rows wanted.
    """
    lanes = list(zip(taken, available, ended, strict=True))
    waiting = [given for given, ready, over in lanes if ready or not over]
    if not waiting:
        return Merge([0] * len(lanes), _NONE, -1)
    horizon = min(waiting) + -(-most // len(waiting)) + 1
    missing = [  # of each lane; one that has ended and is empty misses nothing
        (horizon if ready else horizon + 1)
        if over
        else (given + ready if given + ready < horizon else horizon)  # noqa: FURB136 - calls cost
        for given, ready, over in lanes
    ]
    number = min(missing)
    return _in_order(taken, available, most, (number, missing.index(number)))


def first_come(
    taken: Sequence[int], available: Sequence[int], ended: Sequence[bool], most: int
) -> Merge:
    """Merge what the lanes have, as :func:`merge`, but let none of them hold back the others.

    ``blocking`` is the lane that is furthest behind of those that lack records.
    """
    lanes = len(taken)
    plan = merge([0] * lanes, available, [True] * lanes, most)
    lacking = [lane for lane in range(lanes) if not (ended[lane] or available[lane])]
    return plan._replace(blocking=min(lacking, key=taken.__getitem__, default=-1))


def first_come_before(keys: npt.NDArray[np.int64], merged: Sequence[int]) -> list[int]:
    """As :func:`taken_before`, of what :func:`first_come` has merged."""
    lanes = len(merged)
    counts = np.bincount(keys % lanes, minlength=lanes)
    return [given - count for given, count in zip(merged, counts.tolist(), strict=True)]


def _below(number: int, lane: int, taken: Sequence[int], most: Sequence[int]) -> list[int]:
    """How many keys below one each lane has that it has not given, and so many at most."""
    ends = [number + 1] * lane + [number] * (len(taken) - lane)
    return [
        (n if given + n < end else end - given) if given < end else 0
        for end, given, n in zip(ends, taken, most, strict=True)
    ]


def _in_order(
    taken: Sequence[int], available: Sequence[int], most: int, missing: tuple[int, int]
) -> Merge:
    """The first ``most`` of the rows with keys below the one that is missing."""
    lanes, (number, blocking) = len(taken), missing
    counts = _below(number, blocking, taken, available)
    if not (rows := sum(counts)):
        return Merge(counts, _NONE, blocking)
    gives = zip(taken, counts, range(lanes), strict=True)
    begin = min([given * lanes + lane for given, n, lane in gives if n])
    if rows < number * lanes + blocking - begin:
        return _with_gaps(np.array(taken), np.array(counts), most, blocking)
    if rows > most:
        counts = _below(*divmod(begin + most, lanes), taken, counts)
    return Merge(counts, rising(begin, min(rows, most)), blocking)


def _with_gaps(
    taken: npt.NDArray[np.int64], counts: npt.NDArray[np.int64], most: int, blocking: int
) -> Merge:
    """The same where lanes have ended: by a grid of numbers and lanes."""
    gives = counts > 0
    begin = int(taken[gives].min())
    first = taken - begin
    numbers = np.arange(int((first + counts)[gives].max()))[:, None]
    keys = np.flatnonzero((numbers >= first) & (numbers < first + counts))[:most]
    given = np.bincount(keys % len(taken), minlength=len(taken))
    return Merge(given.tolist(), keys + begin * len(taken), blocking)


def taken_before(keys: npt.NDArray[np.int64], merged: Sequence[int]) -> list[int]:
    """How many records each lane has given before those that come last.

    Args:
        keys: int64 ``[rows]``: of the last rows that are merged; at least one.
        merged: How many each lane has given to what is merged.
    """
    number, first = divmod(keys.item(0), len(merged))
    return [min(number + (lane < first), given) for lane, given in enumerate(merged)]
