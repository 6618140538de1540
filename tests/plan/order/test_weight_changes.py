from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import MalformedPosition
from streamrec.plan.order.weight_changes import MOST_CHANGES, change_from, read_changes

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
