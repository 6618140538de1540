from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.devstore.refusals import (
    NO_EFFECTS,
    FaultEffects,
    FaultRule,
    Faults,
    Step,
    flip_byte,
    sending_steps,
)
from streamrec.errors import ConfigError

RANGE = "bytes=100-199"


def hits(fault: FaultRule, requests: int, seed: int = 0) -> list[int]:
    """Return the numbers, from 1, of the requests that the rule changes."""
    faults = Faults([fault], seed)
    return [
        number
        for number in range(1, requests + 1)
        if faults.choose("GET", "/b/k", RANGE) is not NO_EFFECTS
    ]


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (FaultRule(status=503), [1, 2, 3, 4, 5, 6]),
        (FaultRule(status=503, nth=2), [2]),
        (FaultRule(status=503, every=3), [3, 6]),
        (FaultRule(status=503, first=2), [1, 2]),
        (FaultRule(status=503, first=0), []),
        (FaultRule(status=503, every=2, first=4), [2, 4]),
        (FaultRule(status=503, probability=0), []),
        (FaultRule(status=503, probability=1), [1, 2, 3, 4, 5, 6]),
    ],
)
def test_selection(fault: FaultRule, expected: list[int]) -> None:
    assert hits(fault, 6) == expected


@pytest.mark.parametrize(
    ("match", "matches"),
    [
        ({}, True),
        ({"method": "GET"}, True),
        ({"method": "PUT"}, False),
        ({"path": "train-0000[3-5]"}, True),
        ({"path": "^/bucket/train"}, True),
        ({"path": "valid"}, False),
        ({"ranged": True}, True),
        ({"ranged": False}, False),
        ({"holding": 99}, False),
        ({"holding": 100}, True),
        ({"holding": 199}, True),
        ({"holding": 200}, False),
        ({"method": "GET", "path": "valid"}, False),
    ],
)
def test_matching(match: dict[str, Any], matches: bool) -> None:
    faults = Faults([FaultRule(refuse=True, **match)])
    effects = faults.choose("GET", "/bucket/train-00003", RANGE)
    assert effects.refuse is matches
    assert faults.applied == [int(matches)]


@pytest.mark.parametrize(
    ("range_header", "matches"),
    [
        (None, False),
        ("bytes=7-", True),
        ("bytes=8-", False),
        ("bytes=-7", False),
        ("bytes=-0", False),
        ("bytes=9-3", False),
        ("lines=0-9", False),
    ],
)
def test_what_holds_a_byte(range_header: str | None, matches: bool) -> None:
    effects = Faults([FaultRule(refuse=True, holding=7)]).choose("GET", "/", range_header)
    assert effects.refuse is matches


def test_only_matching_requests_are_counted() -> None:
    faults = Faults([FaultRule(method="GET", nth=2, refuse=True)])
    methods = ["GET", "PUT", "HEAD", "GET", "GET"]
    assert [faults.choose(m, "/", None).refuse for m in methods] == [
        False, False, False, True, False
    ]  # fmt: skip


def test_probability_follows_the_seed() -> None:
    fault = FaultRule(status=503, probability=0.3)
    assert hits(fault, 200, seed=1) == hits(fault, 200, seed=1)
    assert hits(fault, 200, seed=1) != hits(fault, 200, seed=2)
    assert 30 < len(hits(fault, 200, seed=1)) < 90


def test_rules_add_up_and_the_later_one_wins() -> None:
    rules = [
        FaultRule(latency=1.0, reset_after=5),
        FaultRule(latency=2.0, etag="x"),
        FaultRule(nth=9, stall=1),
    ]
    effects = Faults(rules).choose("GET", "/", None)
    assert effects == FaultEffects(latency=2.0, reset_after=5, etag="x")


def test_an_effect_set_to_its_default_overrides_too() -> None:
    effects = Faults([FaultRule(refuse=True), FaultRule(refuse=False)]).choose("GET", "/", None)
    assert not effects.refuse


def test_without_rules_nothing_happens() -> None:
    assert Faults().choose("GET", "/", None) is NO_EFFECTS
    assert list(sending_steps(10, NO_EFFECTS)) == [Step("send", 0, 10)]


@pytest.mark.parametrize(
    ("plain", "sentence"),
    [
        ({}, "a list of JSON objects"),
        ([1], "a list of JSON objects"),
        ([{"status": 503}, {"statsu": 503}], "fault 1.*did you mean 'status'"),
        ([{"status": 99}], "fault 0.*status"),
        ([{"probability": 2}], "probability"),
        ([{"nth": 0}], "nth"),
    ],
)
def test_wrong_rules_are_refused(plain: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        FaultRule.from_json(plain)


def test_rules_from_plain_data() -> None:
    plain = [{"method": "GET", "nth": 3, "status": 429, "retry_after": 2}]
    assert FaultRule.from_json(plain) == [FaultRule(method="GET", nth=3, status=429, retry_after=2)]


def test_a_path_that_is_no_expression_is_refused() -> None:
    with pytest.raises(ConfigError, match="not a regular expression"):
        Faults([FaultRule(path="(")])


PLACES = st.none() | st.integers(0, 30)


@given(st.integers(0, 20), PLACES, PLACES, PLACES)
def test_a_script_sends_each_byte_once_up_to_the_cut(
    size: int, reset: int | None, truncate: int | None, stall: int | None
) -> None:
    effects = FaultEffects(reset_after=reset, truncate_after=truncate, stall_after=stall, stall=1.5)
    steps = list(sending_steps(size, effects))
    sent = [at for step in steps if step.act == "send" for at in range(step.start, step.stop)]
    cut = min(size if reset is None else reset, size if truncate is None else truncate, size)
    assert sent == list(range(cut))
    ends = [step.act for step in steps if step.act in ("reset", "close")]
    assert len(ends) == (cut < size or reset is not None)
    assert not ends or steps[-1].act == ends[0]
    assert all(step.start < step.stop for step in steps if step.act == "send")


def test_what_interrupts_a_body_comes_in_its_place() -> None:
    effects = FaultEffects(stall_after=3, stall=9.0, reset_after=7)
    assert list(sending_steps(10, effects)) == [
        Step("send", 0, 3), Step("stall", seconds=9.0), Step("send", 3, 7), Step("reset")
    ]  # fmt: skip


def test_a_stall_may_come_before_the_first_byte_and_after_the_last() -> None:
    assert [step.act for step in sending_steps(4, FaultEffects(stall_after=0))] == ["stall", "send"]
    assert [step.act for step in sending_steps(4, FaultEffects(stall_after=99))] == [
        "send",
        "stall",
    ]


def test_a_body_cannot_be_cut_short_past_its_end() -> None:
    assert list(sending_steps(4, FaultEffects(truncate_after=4))) == [Step("send", 0, 4)]


@given(st.binary(max_size=20), st.integers(-5, 25))
def test_one_byte_is_flipped(data: bytes, at: int) -> None:
    result = bytes(flip_byte(memoryview(data), at))
    changed = [n for n, (a, b) in enumerate(zip(data, result, strict=True)) if a != b]
    assert changed == ([at] if 0 <= at < len(data) else [])
    assert bytes(flip_byte(result, at)) == data
