from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import MalformedPosition, OtherVersion, StateError
from streamrec.plan.state.position import LARGEST, LAST_EPOCH, Position
from streamrec.plan.state.resume_point import (
    MOST_CHANGES,
    Beginning,
    change_from,
    for_rank,
    read_changes,
    read_resume_point,
)
from tests.plan.state.test_position import FINGERPRINT, JSON, positions

BEGINNINGS = st.one_of(
    st.integers(0, LAST_EPOCH).map(Beginning),
    st.integers(0, LARGEST).map(lambda step: Beginning(step=step)),
)


@given(st.one_of(BEGINNINGS, positions()))
def test_round_trip_through_json(resume_point: Any) -> None:
    assert read_resume_point(json.loads(json.dumps(resume_point.to_dict()))) == resume_point


def test_the_beginning_of_all() -> None:
    assert Beginning().to_dict() == {"version": 3, "step": 0}
    assert Beginning(3).to_dict() == {"version": 3, "step": 0, "epoch": 3}
    assert (Beginning(3).step, Beginning(3).run_epoch) == (0, 3)


@given(JSON)
def test_hostile_data_is_refused(data: Any) -> None:
    with pytest.raises(StateError):
        read_resume_point(data)


@given(st.one_of(BEGINNINGS, positions()), st.data())
def test_damage_is_refused_or_read(resume_point: Any, data: st.DataObject) -> None:
    """A field replaced, left out or added: a StateError, or one that can be written again."""
    fields = resume_point.to_dict()
    name = data.draw(st.sampled_from([*fields, "epoch", "more"]))
    if data.draw(st.booleans()):
        fields.pop(name, None)
    else:
        fields[name] = data.draw(JSON)
    try:
        again = read_resume_point(fields)
    except StateError:
        return
    assert read_resume_point(again.to_dict()) == again


@given(positions(), st.data())
def test_damage_deep_inside(resume_point: Position, data: st.DataObject) -> None:
    """One number of one lane, or one field of the fingerprint."""
    fields = resume_point.to_dict()
    inner = data.draw(st.sampled_from([v for v in fields.values() if isinstance(v, list | dict)]))
    keys = list(inner) if isinstance(inner, dict) else range(len(inner))
    inner[data.draw(st.sampled_from(keys))] = data.draw(JSON)
    try:
        again = read_resume_point(fields)
    except StateError:
        return
    assert read_resume_point(again.to_dict()) == again


@pytest.mark.parametrize("lanes", [24, 1 << 16, 1 << 40])
def test_a_claim_of_many_lanes_costs_nothing(lanes: int) -> None:
    """Nothing is made from the number alone."""
    start = Position.start(FINGERPRINT, range(12), rank=0, world_size=1)
    fields = start.to_dict()
    fields["fingerprint"]["lanes"] = lanes
    with pytest.raises(MalformedPosition, match=r"lanes"):
        read_resume_point(fields)


@pytest.mark.parametrize("version", [4, 9])
def test_a_later_version(version: int) -> None:
    with pytest.raises(OtherVersion, match=f"version {version}, .* upgrade"):
        read_resume_point({"version": version, "whatever": {}})


@pytest.mark.parametrize("version", [0, 1, 2])
def test_an_earlier_version(version: int) -> None:
    with pytest.raises(OtherVersion, match=f"version {version}, and .* or begin without"):
        read_resume_point({"version": version})


@pytest.mark.parametrize("version", [-1, True, 1.0, "1", None])
def test_a_version_that_is_not_a_number(version: Any) -> None:
    with pytest.raises(MalformedPosition, match="version"):
        read_resume_point({"version": version})


class TestForRank:
    def test_a_beginning_serves_everyone(self) -> None:
        assert for_rank([Beginning(2)], 5, 8) == Beginning(2)
        assert for_rank([Beginning(2)] * 3, 5, 8) == Beginning(2)

    def test_its_own_position_stays_as_it_is(self) -> None:
        own = Position.start(FINGERPRINT, [0] * 6, rank=1, world_size=2)
        assert for_rank([own], 1, 2) is own

    def test_those_of_all_ranks(self) -> None:
        halves = [Position.start(FINGERPRINT, [r] * 6, rank=r, world_size=2) for r in (0, 1)]
        whole = for_rank(halves, 0, 1)
        assert isinstance(whole, Position)
        assert whole.lanes["extent"].tolist() == [0, 1] * 6

    @pytest.mark.parametrize("epochs", [(0, 1), (None, 1)])
    def test_what_does_not_belong_together(self, epochs: tuple[int | None, int]) -> None:
        start = Position.start(FINGERPRINT, [0] * 12, rank=0, world_size=1)
        resume_points = [start if epoch is None else Beginning(epoch) for epoch in epochs]
        with pytest.raises(MalformedPosition, match="same step"):
            for_rank(resume_points, 0, 1)


def test_a_step_from_the_very_start() -> None:
    assert Beginning(step=5).to_dict() == {"version": 3, "step": 5}
    assert (Beginning(step=5).epoch, Beginning(step=5).step) == (0, 5)
    for wrong in (-1, 1.5, True, LARGEST + 1):
        with pytest.raises(MalformedPosition, match="there is no step"):
            read_resume_point({"version": 3, "step": wrong})
    with pytest.raises(MalformedPosition, match="not both"):
        read_resume_point({"version": 3, "step": 1, "epoch": 1})


@pytest.mark.parametrize("data", [{"step": 3}, {}, {"rank 0 of 2": "{}"}])
def test_a_mapping_of_something_else_is_not_a_state(data: dict[str, Any]) -> None:
    with pytest.raises(MalformedPosition, match="not a state of streamrec: it has no 'version'"):
        read_resume_point(data)


WEIGHTS = st.dictionaries(st.text(), st.floats(0, 1e9), min_size=1).filter(
    lambda weights: any(weights.values())
)


@given(st.lists(st.tuples(st.integers(0, 20), WEIGHTS)))
def test_a_change_takes_the_place_of_later_ones(calls: list[Any]) -> None:
    text, expected = "", dict[int, Any]()
    for step, weights in calls:
        text = change_from(text, step, weights)
        expected = {s: w for s, w in expected.items() if s < step} | {step: weights}
        assert [(s, dict(w)) for s, w in read_changes(text)] == list(expected.items())


def test_the_text_is_the_same_for_the_same_changes() -> None:
    assert change_from("", 5, {"web": 1.0, "code": 2.0}) == '[[5, {"code": 2.0, "web": 1.0}]]'
    assert not read_changes("")


@pytest.mark.parametrize(
    "text",
    [
        "[",
        "[]",
        "{}",
        "[[1, 2, 3]]",
        '[[1, {"a": 1}]]',
        '[[1, {"a": -1.0}]]',
        '[[1, {"a": NaN}]]',
        '[[1, {"a": 0.0}]]',
        '[[1, {"a": 1e308, "b": 1e308}]]',
        '[[true, {"a": 1.0}]]',
        '[[-1, {"a": 1.0}]]',
        '[[281474976710656, {"a": 1.0}]]',
        '[[2, {"a": 1.0}], [1, {"a": 1.0}]]',
        '[[1,{"a": 1.0}]]',
        "[" * 100_000,
        json.dumps([[step, {"a": 1.0}] for step in range(MOST_CHANGES + 1)]),
        None,
        7,
    ],
)
def test_what_is_refused(text: Any) -> None:
    with pytest.raises(MalformedPosition, match="changes of weights in the state cannot be read"):
        read_changes(text)


def test_too_many_changes() -> None:
    text = json.dumps([[step, {"a": 1.0}] for step in range(MOST_CHANGES)])
    assert len(read_changes(change_from(text, MOST_CHANGES - 1, {"a": 2.0}))) == MOST_CHANGES
    with pytest.raises(MalformedPosition, match=f"have changed {MOST_CHANGES} times"):
        change_from(text, MOST_CHANGES, {"a": 2.0})
