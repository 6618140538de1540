"""The turns of lanes: from epoch to epoch each has another part of the dataset."""

from __future__ import annotations

from math import gcd


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
