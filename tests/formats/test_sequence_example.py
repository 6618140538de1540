from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import WrongFeatureType
from streamrec.formats.examples import example as example_module
from streamrec.formats.examples.coerce import FIRST, SECOND, frame_bytes
from streamrec.formats.examples.example import (
    Example,
    Feature,
    SequenceExample,
    encode_example,
    encode_sequence_example,
)
from streamrec.kernel.messages import MESSAGES
from streamrec.values.columns import BytesColumn, Ragged

pytestmark = pytest.mark.both_kernels

FeatureList, Int64List = MESSAGES["FeatureList"], MESSAGES["Int64List"]
INTS = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1)
FLOATS = st.lists(st.floats(width=32, allow_nan=False), min_size=1)
STRINGS = st.lists(st.binary(), min_size=1)
VALUES = st.one_of(INTS, FLOATS, STRINGS)
NAMES = st.text(max_size=4)


def values_of(feature: Any) -> list[Any] | None:
    kind = feature.WhichOneof("kind")
    return list(getattr(feature, kind).value) if kind else None


def steps_of(data: bytes, name: str) -> list[Any]:
    lists = SequenceExample.FromString(data).feature_lists.feature_list
    return [values_of(step) for step in lists[name].feature]


@pytest.mark.parametrize(
    ("steps", "values"),
    [
        ([1, 2], [[1], [2]]),
        ((b"a", "ü"), [[b"a"], ["ü".encode()]]),
        ([[1, 2], [], [3]], [[1, 2], None, [3]]),
        ([[0.5], [1.5, 2]], [[0.5], [1.5, 2.0]]),
        ([1, b"x"], [[1], [b"x"]]),
        (np.arange(3), [[0], [1], [2]]),
        (np.arange(4).reshape(2, 2), [[0, 1], [2, 3]]),
        (np.zeros((2, 0), np.int64), [[], []]),
        (BytesColumn.of([b"a", b"b"]), [[b"a"], [b"b"]]),
        (Ragged(np.arange(3), np.array([0, 2, 2, 3])), [[0, 1], [], [2]]),
        (iter([[1], [2]]), [[1], [2]]),
        (FeatureList(feature=[Feature(int64_list=Int64List(value=[5])), Feature()]), [[5], None]),
        ([Feature(int64_list=Int64List(value=[5]))], [[5]]),
        ([], []),
    ],
)
def test_steps(steps: Any, values: list[Any]) -> None:
    assert steps_of(encode_sequence_example({}, {"x": steps}), "x") == values


def test_the_context_is_an_example_s_features() -> None:
    context = {"id": b"x", "n": [1, 2], "none": []}
    message = SequenceExample.FromString(encode_sequence_example(context, {}))
    assert message.context == Example.FromString(encode_example(context)).features
    assert not message.feature_lists.feature_list


def test_nothing_at_all_is_no_bytes() -> None:
    assert encode_sequence_example(None, {}) == encode_sequence_example({}, {}) == b""


def test_a_list_without_steps_is_there() -> None:
    data = encode_sequence_example(None, {"x": []})
    assert list(SequenceExample.FromString(data).feature_lists.feature_list) == ["x"]


@given(
    context=st.dictionaries(NAMES, VALUES, max_size=3),
    lists=st.dictionaries(NAMES, st.lists(VALUES, max_size=3), max_size=3),
)
def test_round_trip(context: dict[str, Any], lists: dict[str, Any]) -> None:
    data = encode_sequence_example(context, lists)
    message = SequenceExample.FromString(data)
    assert {name: values_of(f) for name, f in message.context.feature.items()} == context
    assert {name: steps_of(data, name) for name in message.feature_lists.feature_list} == lists
    again = encode_sequence_example(dict(reversed(context.items())), dict(reversed(lists.items())))
    assert again == data


@given(names=st.sets(NAMES, min_size=1))
def test_names_are_in_the_order_of_their_bytes(names: set[str]) -> None:
    feature = Feature(int64_list=Int64List(value=[1])).SerializeToString()
    entries = [
        FIRST + frame_bytes(FIRST + frame_bytes(name) + SECOND + frame_bytes(feature))
        for name in sorted(name.encode() for name in names)
    ]
    assert encode_example(dict.fromkeys(names, 1)) == FIRST + frame_bytes(b"".join(entries))


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ([1, None], "step 1: None is not a value"),
        ([1, 2, 2**63], "step 2: an integer is beyond the range of int64"),
        ([[1, "a"]], "step 0: a list mixes strings and numbers"),
        (b"abc", "a bytes is not a sequence of steps"),
        ("abc", "a str is not a sequence of steps"),
        (3, "an int is not a sequence of steps"),
        ({"a": 1}, "a dict is not a sequence of steps"),
        ({1, 2}, "a set is not a sequence of steps"),
        (np.array(3), "0-d array"),
        (None, "a NoneType is not a sequence of steps"),
        (Feature(), "a Feature is not a sequence of steps"),
    ],
)
def test_refusals_name_the_feature_and_the_step(steps: Any, reason: str) -> None:
    with pytest.raises(
        WrongFeatureType, match=f"feature x: the value cannot be encoded: .*{reason}"
    ):
        encode_sequence_example({"good": 1}, {"good": [1], "x": steps})


def test_a_refusal_in_the_context_names_the_feature() -> None:
    with pytest.raises(
        WrongFeatureType, match="feature c: the value cannot be encoded: None is not a value"
    ):
        encode_sequence_example({"c": None}, {})


@pytest.mark.parametrize("name", [3, None, b"x"])
def test_a_name_is_a_str(name: Any) -> None:
    with pytest.raises(WrongFeatureType, match="a feature's name must be a str, not"):
        encode_sequence_example({name: 1}, {})
    with pytest.raises(WrongFeatureType, match="a feature's name must be a str, not"):
        encode_sequence_example({}, {name: [1]})


def test_a_name_without_utf_8_is_refused() -> None:
    with pytest.raises(WrongFeatureType, match=r"the name cannot be encoded: .*surrogates"):
        encode_example({"\ud800": 1})


def test_a_record_that_no_reader_takes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.array([b"0123456789"], object)  # which the kernel leaves to protobuf
    record = encode_example({"x": values})
    monkeypatch.setattr(example_module, "LARGEST_MESSAGE", len(record))
    assert encode_example({"x": values}) == record
    with pytest.raises(WrongFeatureType, match=f"{len(record) + 1} bytes, but a message .* split"):
        encode_example({"x": values + b"+"})
    with pytest.raises(WrongFeatureType, match="split it"):
        encode_sequence_example({}, {"x": [b"0123456789+"]})
