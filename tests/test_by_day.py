from __future__ import annotations

from itertools import combinations, product
from typing import Any

import pytest

from tests.by_day import PROFILE, covering, each_once, pairwise, stops

AXES: tuple[list[Any], ...] = (["a", "b", "c"], [False, True], [0, 1], [None, {}])


@pytest.fixture(params=["day", "night"])
def profile(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(PROFILE, request.param)
    return str(request.param)


@pytest.mark.parametrize("profile", ["day"], indirect=True)
def test_some_places_by_day(profile: str) -> None:
    assert stops(range(1, 11)) == [5, 10]
    assert stops([7, 8]) == [7, 8]
    assert stops(range(10), every=3) == [0, 3, 6, 9]
    assert stops(range(1)) == [0]
    assert stops([]) == []


@pytest.mark.parametrize("profile", ["night"], indirect=True)
def test_all_places_at_night(profile: str) -> None:
    assert stops(range(10)) == list(range(10))


@pytest.mark.parametrize("axes", [AXES, AXES[:3], AXES[:2]])
def test_each_pair_meets(axes: tuple[list[Any], ...]) -> None:
    some = covering(*axes)
    for (i, one), (j, other) in combinations(enumerate(axes), 2):
        for pair in product(one, other):
            assert pair in [(case[i], case[j]) for case in some]
    whole = list(product(*axes))
    assert all(case in whole for case in some)
    assert (len(some) == len(whole)) == (len(axes) == 2)


def test_a_part_by_day_and_all_at_night(profile: str) -> None:
    assert pairwise(*AXES) == (covering(*AXES) if profile == "day" else list(product(*AXES)))


def test_each_value_by_day_and_all_at_night(profile: str) -> None:
    axes = ["a", "b", "c"], [0, 1]
    by_day = [("a", 0), ("b", 1), ("c", 0)]
    assert each_once(*axes) == (by_day if profile == "day" else list(product(*axes)))
