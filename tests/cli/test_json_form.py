from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.cli.json_form import Examples, raw_line, text_or_base64
from streamrec.datasets.survey import PlacedRecord
from streamrec.errors import MalformedExample, MissingFeature
from streamrec.formats.examples.example import Example, encode_example, encode_sequence_example

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


def record(payload: bytes = b"", **features: Any) -> PlacedRecord:
    return PlacedRecord(payload or encode_example(features), "s3://bucket/shard", 7)


def parsed(**features: Any) -> Any:
    return json.loads(Examples().line(record(**features)))


@given(st.binary())
def test_bytes_come_back(value: bytes) -> None:
    form = text_or_base64(value)
    back = form.encode() if isinstance(form, str) else base64.b64decode(form["base64"])
    assert back == value


@given(st.text())
def test_text_steers_no_terminal(text: str) -> None:
    form = text_or_base64(text.encode())
    if isinstance(form, str):
        assert not any(ord(c) < 32 and c not in "\t\n\r" for c in form)
        assert not any(127 <= ord(c) < 160 for c in form)


@pytest.mark.parametrize("text", ["", "käse", "日本語\n", "tab\t", "\ufeff"])
def test_text_is_text(text: str) -> None:
    assert text_or_base64(text.encode()) == text


@pytest.mark.parametrize("value", [b"\0", b"\xff", b"\x1b[2J", "\x9b".encode(), b"\x7f"])
def test_other_bytes_are_base64(value: bytes) -> None:
    assert text_or_base64(value) == {"base64": base64.b64encode(value).decode()}


@given(st.lists(FLOATS, min_size=1))
def test_floats_come_back(values: list[float]) -> None:
    form = parsed(f=np.array(values, np.float32))["f"]
    assert np.array(form, np.float32).tobytes() == np.array(values, np.float32).tobytes()


def test_floats_are_short() -> None:
    assert '"f": [0.1, 1e-45]' in Examples().line(record(f=np.array([0.1, 1e-45], np.float32)))


def test_what_json_has_no_number_for() -> None:
    assert parsed(f=[np.nan, np.inf, -np.inf])["f"] == ["NaN", "Infinity", "-Infinity"]


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1))
def test_integers_come_back(values: list[int]) -> None:
    assert parsed(n=values)["n"] == values


def test_features_are_sorted_and_may_lack_a_kind() -> None:
    example = Example()
    example.features.feature["b"].int64_list.SetInParent()
    example.features.feature["a"].SetInParent()
    assert Examples().line(record(example.SerializeToString())) == '{"a": null, "b": []}'


def test_names_choose_and_order() -> None:
    assert Examples(["b", "a"]).line(record(a=1, b=2, c=3)) == '{"b": [2], "a": [1]}'


def test_a_name_may_be_missing_in_some_records() -> None:
    examples = Examples(["a"])
    assert [examples.line(record(b=1)), examples.line(record(a=1))] == ["{}", '{"a": [1]}']
    examples.finish()


def test_a_name_that_no_record_has() -> None:
    examples = Examples(["lable"])
    examples.line(record(label=1))
    with pytest.raises(MissingFeature, match="did you mean 'label'") as caught:
        examples.finish()
    assert (caught.value.url, caught.value.feature) == ("s3://bucket/shard", "lable")


def test_a_name_where_nothing_has_a_name() -> None:
    examples = Examples(["a"])
    examples.line(PlacedRecord(b"", "shard", 0))
    with pytest.raises(MissingFeature, match="there is none"):
        examples.finish()


def test_names_without_records() -> None:
    Examples(["a"]).finish()


def test_no_example() -> None:
    with pytest.raises(MalformedExample, match="--raw") as caught:
        Examples().line(record(b"\xff\xff"))
    assert (caught.value.url, caught.value.record) == ("s3://bucket/shard", 7)


@given(st.binary())
def test_raw(payload: bytes) -> None:
    assert base64.b64decode(json.loads(raw_line(PlacedRecord(payload, "shard", 0)))) == payload


def test_a_sequence_example_has_its_frames() -> None:
    payload = encode_sequence_example({"id": "v1"}, {"rgb": [[b"f0"], [b"f1"]], "n": [[1, 2], []]})
    record = PlacedRecord(payload, "x", 0)
    assert json.loads(Examples().line(record)) == {
        "context": {"id": ["v1"]},
        "feature_lists": {"n": [[1, 2], None], "rgb": [["f0"], ["f1"]]},
    }
    chosen = Examples(["rgb"])
    assert json.loads(chosen.line(record)) == {
        "context": {},
        "feature_lists": {"rgb": [["f0"], ["f1"]]},
    }
    chosen.finish()
    with pytest.raises(MissingFeature, match="did you mean 'rgb'"):
        _finished(Examples(["rgp"]), record)


def _finished(form: Examples, record: PlacedRecord) -> None:
    form.line(record)
    form.finish()
