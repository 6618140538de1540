"""The order in which the records of several lanes are delivered.

Record ``i`` of lane ``l`` has the key ``(i, l)``; records are delivered in the order of their keys.
A lane that ended has no more keys. A lane whose next record has not arrived holds back every later
key, so the order never depends on timing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from streamrec.values.columns import rising

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

_NONE = np.empty(0, np.int64)


class Merge(NamedTuple):
    """The rows that can be delivered now."""

    counts: list[int]
    """The number of records that each lane gives."""
    keys: npt.NDArray[np.int64]
    """int64 ``[rows]``: the rows' keys, ``number * lanes + lane``, in ascending order."""
    blocking: int
    """The lane that holds back the next row; -1 when every lane has ended and is empty."""


def merge(
    taken: Sequence[int], available: Sequence[int], ended: Sequence[bool], most: int
) -> Merge:
    """Merge the available records of all lanes, ``most`` rows at most.

    Args:
        taken: Records that each lane has given so far.
        available: Records that each lane can give now.
        ended: ``True`` for each lane of which no more records will follow.
        most: The most rows.
    """
    lanes = list(zip(taken, available, ended, strict=True))
    waiting = [given for given, ready, over in lanes if ready or not over]
    if not waiting:
        return Merge([0] * len(lanes), _NONE, -1)
    # As far as these rows reach if all of these lanes go on; a later call has the rest.
    horizon = min(waiting) + -(-most // len(waiting)) + 1
    missing = [  # each lane's next missing number; an ended, empty lane has none
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
    """Merge as :func:`merge` does, except that no lane holds back the others.

    ``blocking`` is the lane that is furthest behind among those without records.
    """
    lanes = len(taken)
    # As if each lane began here and ended with what it has: then no lane is waited for.
    plan = merge([0] * lanes, available, [True] * lanes, most)
    lacking = [lane for lane in range(lanes) if not (ended[lane] or available[lane])]
    return plan._replace(blocking=min(lacking, key=taken.__getitem__, default=-1))


def first_come_before(keys: npt.NDArray[np.int64], merged: Sequence[int]) -> list[int]:
    """Return the same as :func:`merge_before`, for rows that :func:`first_come` has merged."""
    lanes = len(merged)
    counts = np.bincount(keys % lanes, minlength=lanes)
    return [given - count for given, count in zip(merged, counts.tolist(), strict=True)]


def _below(number: int, lane: int, taken: Sequence[int], most: Sequence[int]) -> list[int]:
    """Return how many records each lane has left below the key of ``number`` and ``lane``."""
    ends = [number + 1] * lane + [number] * (len(taken) - lane)
    return [
        (n if given + n < end else end - given) if given < end else 0
        for end, given, n in zip(ends, taken, most, strict=True)
    ]


def _in_order(
    taken: Sequence[int], available: Sequence[int], most: int, missing: tuple[int, int]
) -> Merge:
    """Merge the first ``most`` of the rows whose keys are below the missing one."""
    lanes, (number, blocking) = len(taken), missing
    counts = _below(number, blocking, taken, available)
    if not (rows := sum(counts)):
        return Merge(counts, _NONE, blocking)
    gives = zip(taken, counts, range(lanes), strict=True)
    begin = min([given * lanes + lane for given, n, lane in gives if n])
    # Fewer rows than keys: some lanes have ended, and leave gaps.
    if rows < number * lanes + blocking - begin:
        return _with_gaps(np.array(taken), np.array(counts), most, blocking)
    if rows > most:
        # Without gaps, this is the key after the last of the rows.
        counts = _below(*divmod(begin + most, lanes), taken, counts)
    return Merge(counts, rising(begin, min(rows, most)), blocking)


def _with_gaps(
    taken: npt.NDArray[np.int64], counts: npt.NDArray[np.int64], most: int, blocking: int
) -> Merge:
    """Merge rows whose keys have gaps where lanes have ended, by a grid of numbers and lanes."""
    gives = counts > 0
    begin = int(taken[gives].min())
    first = taken - begin
    numbers = np.arange(int((first + counts)[gives].max()))[:, None]
    keys = np.flatnonzero((numbers >= first) & (numbers < first + counts))[:most]
    given = np.bincount(keys % len(taken), minlength=len(taken))
    return Merge(given.tolist(), keys + begin * len(taken), blocking)


def merge_before(keys: npt.NDArray[np.int64], merged: Sequence[int]) -> list[int]:
    """Return the number of records that each lane had given before the last merged rows.

    Args:
        keys: int64 ``[rows]``: the keys of the last merged rows; at least one.
        merged: Records of each lane in all merged rows.
    """
    number, first = divmod(keys.item(0), len(merged))
    # A lane has given all of its keys below the first one, unless it ended before.
    return [min(number + (lane < first), given) for lane, given in enumerate(merged)]
