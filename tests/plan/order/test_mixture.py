from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.plan.order.mixture import Draws, component_seed, draws_of, lasting_text, text_of
from tests.plan.oracle import plainly_drawn

WEIGHTS = st.lists(
    st.one_of(st.just(0.0), st.floats(1e-3, 1e3), st.integers(1, 9).map(float)),
    min_size=3,
    max_size=3,
).filter(any)
PHASES = st.lists(
    st.tuples(st.integers(1, 400), WEIGHTS.map(tuple)), max_size=3, unique_by=lambda phase: phase[0]
)


def drawing(
    first: tuple[float, ...],
    later: list[tuple[int, tuple[float, ...]]] | None = None,
    *,
    lanes: int = 4,
    seed: int = 7,
) -> Draws:
    return Draws(((0, first), *sorted(later or [])), lanes, seed)


@given(
    WEIGHTS.map(tuple),
    PHASES,
    st.integers(1, 6),
    st.integers(0, 5),
    st.integers(0, 2),
    st.integers(0, 150),
    st.sets(st.integers(0, 2)),
)
def test_is_what_the_oracle_draws(
    weights: tuple[float, ...],
    later: list[tuple[int, tuple[float, ...]]],
    lanes: int,
    lane: int,
    epoch: int,
    first: int,
    ended: set[int],
) -> None:
    draws, lane = drawing(weights, later, lanes=lanes), lane % lanes
    drawn = draws.choices(lane, epoch, first, 60, ended).tolist()
    assert drawn == [plainly_drawn(draws, lane, epoch, first + i, ended) for i in range(60)]


@given(WEIGHTS.map(tuple), st.sets(st.integers(0, 2)), st.integers(0, 2))
def test_an_end_changes_the_draws_of_that_component_alone(
    weights: tuple[float, ...], ended: set[int], another: int
) -> None:
    draws = drawing(weights)
    before = draws.choices(1, 0, 0, 100, ended)
    after = draws.choices(1, 0, 0, 100, ended | {another})
    assert (before[before != another] == after[before != another]).all()
    assert another not in after


def test_the_shares_are_those_asked_for() -> None:
    draws = drawing((0.7, 0.2, 0.1))
    drawn = np.bincount(draws.choices(0, 0, 0, 100_000), minlength=3)
    expected = np.array([70_000, 20_000, 10_000])
    assert ((drawn - expected) ** 2 / expected).sum() < 20  # 2 degrees of freedom
    rest = np.bincount(draws.choices(0, 0, 0, 100_000, {0}), minlength=3)
    expected = np.array([66_667, 33_333])
    assert ((rest[1:] - expected) ** 2 / expected).sum() < 20
    assert draws.shares(0, 5) == pytest.approx([0.7, 0.2, 0.1])


def test_a_phase_begins_with_that_record_of_all_lanes() -> None:
    """Record ``g`` in the round robin is record ``g // lanes`` of lane ``g % lanes``."""
    draws = drawing((1.0, 0.0), [(10, (0.0, 1.0))], lanes=4)
    lanes = [draws.choices(lane, 0, 0, 5).tolist() for lane in range(4)]
    in_order = [lanes[g % 4][g // 4] for g in range(20)]
    assert in_order == [0] * 10 + [1] * 10
    assert [draws.shares(2, n) for n in (1, 2)] == [[1.0, 0.0], [0.0, 1.0]]
    assert draws.shares(1, 2) == [1.0, 0.0]


@given(WEIGHTS.map(tuple), PHASES, st.integers(0, 5), st.integers(0, 120))
def test_what_has_a_weight_is_what_may_be_drawn(
    weights: tuple[float, ...], later: list[tuple[int, tuple[float, ...]]], lane: int, first: int
) -> None:
    draws = drawing(weights, later, lanes=6)
    weighted = draws.weighted(lane, first, 40)
    for place in range(40):
        shares = draws.shares(lane, first + place)
        assert weighted[:, place].tolist() == [share > 0 for share in shares]
    drawn = draws.choices(lane, 0, first, 40)
    assert weighted[drawn, np.arange(40)].all()


def test_lanes_epochs_and_seeds_draw_apart() -> None:
    draws, other = drawing((1.0, 1.0)), drawing((1.0, 1.0), seed=8)
    sequences = [
        tuple(one.choices(lane, epoch, 0, 64).tolist())
        for one in (draws, other)
        for lane in range(4)
        for epoch in range(3)
    ]
    assert len(set(sequences)) == len(sequences)


def test_neighbours_are_independent() -> None:
    """Chi-square over 2 x 2 cells of neighbouring draws within a lane, and of two lanes."""
    draws = drawing((1.0, 1.0))
    one, two = draws.choices(0, 0, 0, 40_001), draws.choices(1, 0, 0, 40_001)
    for a, b in ((one[:-1], one[1:]), (one[:-1], two[:-1])):
        cells = np.bincount(2 * a + b, minlength=4)
        assert ((cells - 10_000) ** 2 / 10_000).sum() < 25


def test_never_changes() -> None:
    """These draws are in people's checkpoints."""
    drawn = drawing((0.5, 0.3, 0.2)).choices(2, 1, 1000, 16).tolist()
    assert drawn == [2, 1, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 1, 0, 0]
    assert component_seed(7, 1) == 5086406420183561247


def test_places_far_away() -> None:
    """Hostile positions reach any number; they draw something."""
    assert len(drawing((1.0, 2.0)).choices(0, 1 << 31, (1 << 63) - 1, 3)) == 3


def test_settings_name_the_components() -> None:
    weights = [(0, {"web": 0.75, "code": 0.25}), (50, {"code": 1.0, "web": 0.0})]
    draws = draws_of(weights, 4, 9)
    assert draws.phases == ((0, (0.25, 0.75)), (50, (1.0, 0.0)))
    assert (draws.lanes, draws.seed) == (4, 9)
    assert text_of(weights, "repeat") == (
        'from 0: {"code": 0.25, "web": 0.75}; from 50: {"code": 1.0, "web": 0.0}; repeat'
    )


def test_the_text_of_a_mix_without_what_may_join() -> None:
    two = [(0, {"a; from": 1.0, 'b"': 2.0}), (50, {"a; from": 3.0, 'b"': 0.0})]
    three = [(first, {**parts, "z": 0.0}) for first, parts in two]
    plain = text_of(two, "repeat")
    assert lasting_text(plain) == (plain, ())
    assert lasting_text(text_of(three, "repeat")) == (plain, ("z",))
    for other in ("", "from 0: ", "from 0: {", "from x", "anything"):
        assert lasting_text(other) == (other, ())
