"""Which of many like cases run by day, after every change; elsewhere and at night all of them do.

It imports little, so that programs that tests start can ask too.
"""

from __future__ import annotations

import os
from itertools import combinations, product
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PROFILE = "STREAMREC_TEST_PROFILE"
"""The variable in which ``tests/conftest.py`` tells all processes the profile of the run."""


def is_day() -> bool:
    return os.environ.get(PROFILE) == "day"


def stops(numbers: Iterable[int], every: int | None = None) -> list[int]:
    """Return the places to stop at: each, by day one in the middle and the last.

    Args:
        numbers: All places.
        every: By day, take every so many of them, and the last.
    """
    places = list(numbers)
    if not is_day():
        return places
    some = places[::every] if every else places[(len(places) - 1) // 2 :][:1]
    return sorted({*some, *places[-1:]})


def at_night(*values: Any, id: str | None = None) -> Any:  # noqa: A002 - as of `pytest.param`
    """Return a case of a parametrized test that is left out by day."""
    import pytest

    return pytest.param(*values, id=id, marks=pytest.mark.night)


def pairwise(*axes: Sequence[Any]) -> list[Any]:
    """Return the product of the axes, as cases; by day each pair of values of two axes occurs."""
    return covering(*axes) if is_day() else list(product(*axes))


def each_once(*axes: Sequence[Any]) -> list[Any]:
    """Return the product of the axes, as cases; by day so few that each value occurs."""
    longest = range(max(map(len, axes)))
    by_day = [tuple(axis[i % len(axis)] for axis in axes) for i in longest]
    return by_day if is_day() else list(product(*axes))


def covering(*axes: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return a part of the product of the axes, in which each pair of values of two axes occurs."""
    cases = list(product(*(range(len(axis)) for axis in axes)))
    missing = {pair for case in cases for pair in pairs_of(case)}
    chosen = set()
    while missing:
        best = max(cases, key=lambda case: len(missing & pairs_of(case)))
        missing -= pairs_of(best)
        chosen.add(best)
    return [tuple(axis[i] for axis, i in zip(axes, case, strict=True)) for case in sorted(chosen)]


def pairs_of(case: tuple[int, ...]) -> set[Any]:
    """Return each two values of a case, with their axes."""
    return set(combinations(enumerate(case), 2))
