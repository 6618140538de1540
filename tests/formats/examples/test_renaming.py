from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamrec as sr
from streamrec.errors import ConfigError, MalformedImage, MissingFeature, WrongFeatureType
from streamrec.formats.examples.descriptions import describe, from_description, narrow
from streamrec.formats.examples.features import FeatureParser
from streamrec.formats.examples.renaming import Renames, new_names, rename_specs
from streamrec.formats.images.image import encode_png
from streamrec.measure.simulation import sample_records
from streamrec.values.record_rows import RecordRows

pytestmark = pytest.mark.both_kernels

PHOTO = np.arange(8 * 6 * 3, dtype=np.uint8).reshape(8, 6, 3)
RECORD = sr.encode_example(
    {
        "image/encoded": encode_png(PHOTO),
        "label": [7],
        "numbers": [1, 2, 3, 4],
        "words": [b"a", b"bc"],
        "raw": np.arange(4, dtype=np.int16).tobytes(),
        "place": [1],
        "value": [0.5],
    }
)
SPECS: dict[str, tuple[Any, Any]] = {
    "image": (sr.Image(key="image/encoded"), [PHOTO]),
    "fixed": (sr.FixedLenFeature((), "int64", key="label"), [7]),
    "narrow": (sr.FixedLenFeature((4,), "int8", key="numbers"), [[1, 2, 3, 4]]),
    "strings": (sr.FixedLenFeature((2,), bytes, key="words"), [[b"a", b"bc"]]),
    "raw": (sr.FixedLenFeature((2, 2), "int16", raw=True, key="raw"), [[[0, 1], [2, 3]]]),
    "default": (sr.FixedLenFeature((), "int64", 3, key="nothing"), [3]),
    "varlen": (sr.VarLenFeature("int64", key="numbers"), [[1, 2, 3, 4]]),
    "sequence": (
        sr.FixedLenSequenceFeature((2,), "int64", allow_missing=True, key="numbers"),
        [[[1, 2], [3, 4]]],
    ),
    "ragged": (
        sr.RaggedFeature("int64", partitions=[sr.RaggedFeature.RowLengths("two")], key="numbers"),
        [[[1, 2, 3, 4]]],
    ),
    "shaped": (sr.ShapedFeature(("label", 1), "int64", key="seven"), [[[0]] * 7]),
}


parse_sequence_example: Any = sr.parse_sequence_example


def plain(column: Any) -> Any:
    listed = column.to_list() if hasattr(column, "to_list") else column.tolist()
    return [each.tolist() if isinstance(each, np.ndarray) else each for each in listed]


@pytest.mark.parametrize("name", SPECS)
def test_every_spec_renames(name: str) -> None:
    spec, wanted = SPECS[name]
    more = sr.encode_example({"two": [4], "seven": [0] * 7})
    columns: dict[str, Any] = dict(sr.parse_example([RECORD + more], {"column": spec}))
    assert list(columns) == ["column"]
    assert plain(columns["column"]) == [
        getattr(each, "tolist", lambda e=each: e)() for each in wanted
    ]
    assert from_description(describe({"column": spec}) or {}) == {"column": spec}


def test_one_feature_makes_several_columns_that_share_no_memory() -> None:
    specs = {
        "photo": sr.Image(key="image/encoded"),
        "thumbnail": sr.Image(resize=(2, 3), key="image/encoded"),
        "image/encoded": sr.FixedLenFeature((), bytes),
        "again": sr.FixedLenFeature((), bytes, key="image/encoded"),
        "a": sr.VarLenFeature("int64", key="numbers"),
        "b": sr.VarLenFeature("int64", key="numbers"),
        "c": sr.RaggedFeature("int32", "numbers"),
        "d": sr.FixedLenFeature((4,), "int16", raw=True, key="raw"),
        "e": sr.FixedLenFeature((2, 2), "int16", raw=True, key="raw"),
    }
    specs["d"] = sr.FixedLenFeature((2, 2), "int16", raw=True, key="raw")
    columns: dict[str, Any] = dict(sr.parse_example([RECORD, RECORD], specs))
    assert columns["photo"][1].shape == (8, 6, 3)
    assert columns["thumbnail"].shape == (2, 2, 3, 3)
    assert columns["again"][1] == columns["image/encoded"][0] == encode_png(PHOTO)
    columns["a"].values[:] = 0
    columns["again"].values[:] = 0
    columns["d"][:] = 9
    assert columns["b"].to_list() == columns["c"].to_list() == [[1, 2, 3, 4]] * 2
    assert columns["image/encoded"][0] == encode_png(PHOTO)
    assert columns["e"].tolist() == [[[0, 1], [2, 3]]] * 2


def test_sequences() -> None:
    record = sr.encode_sequence_example(
        {"id": 3}, {"places": [[0.5, 1.0], [2.0, 3.0]], "frames": [encode_png(PHOTO)]}
    )
    context, sequences, lengths = parse_sequence_example(
        [record],
        {"number": sr.FixedLenFeature((), "int64", key="id")},
        {
            "xy": sr.FixedLenSequenceFeature((2,), "float32", key="places"),
            "film": sr.Image(key="frames"),
        },
    )
    assert context["number"].tolist() == [3]
    assert sequences["xy"].tolist() == [[[0.5, 1.0], [2.0, 3.0]]]
    assert lengths["xy"].tolist() == [2]
    assert plain(sequences["film"].values) == [PHOTO.tolist()]


@pytest.mark.parametrize(
    ("spec", "record", "kind", "words"),
    [
        (sr.Image(key="p"), {"p": b"junk"}, MalformedImage, "do not begin as a picture"),
        (sr.Image(key="p"), {"q": 1}, MissingFeature, "has no such feature"),
        (sr.FixedLenFeature((), "int8", key="p"), {"p": 300}, WrongFeatureType, "int8 is -128"),
        (sr.VarLenFeature("int64", key="p"), {"p": b"x"}, WrongFeatureType, "holds bytes"),
        (sr.RaggedFeature("int64", key="p"), {"p": b"x"}, WrongFeatureType, "holds bytes"),
    ],
)
def test_errors_name_both(spec: Any, record: Any, kind: Any, words: str) -> None:
    with pytest.raises(kind, match=f"record 0, feature p: column 'photo': .*{words}") as caught:
        sr.parse_example([sr.encode_example(record)], {"photo": spec})
    assert caught.value.feature == "p"


def test_the_same_feature_in_two_ways_is_refused() -> None:
    specs = {"a": sr.VarLenFeature("int64", key="n"), "b": sr.FixedLenFeature((), "int64", key="n")}
    with pytest.raises(ConfigError, match="feature 'n' is needed as"):
        sr.parse_example([RECORD], specs)


@pytest.mark.parametrize(
    "make",
    [
        lambda key: sr.Image(key=key),
        lambda key: sr.FixedLenFeature((), "int64", key=key),
        lambda key: sr.FixedLenSequenceFeature((), "int64", key=key),
        lambda key: sr.VarLenFeature("int64", key=key),
        lambda key: sr.RaggedFeature("int64", key=key),
        lambda key: sr.ShapedFeature(("a",), "int64", key=key),
    ],
)
@pytest.mark.parametrize("key", ["", 7, "\ud800"])
def test_a_key_is_a_name(make: Any, key: Any) -> None:
    with pytest.raises(ConfigError, match="key must be the name of a feature"):
        make(key)


def test_two_names_for_the_values() -> None:
    with pytest.raises(ConfigError, match="key='a' and value_key='b' both name"):
        sr.RaggedFeature("int64", "b", key="a")
    assert sr.RaggedFeature("int64", key="a") == sr.RaggedFeature("int64", "a")


def test_dtypes_go_by_the_column() -> None:
    features = describe({"n": sr.FixedLenFeature((), "int64", key="label")}) or {}
    column = from_description(narrow(features, {"n": "int8"}))["n"]
    assert column == sr.FixedLenFeature((), "int8", key="label")


def test_a_writer_takes_the_types_by_the_names_in_the_records(tmp_path: Any) -> None:
    specs = {"n": sr.FixedLenFeature((), "int64", key="label")}
    path = tmp_path / "a.tfrecord"
    with sr.ShardedWriter(str(path), shards=1, features=specs, index=False) as writer:
        writer.write({"label": 3})
        with pytest.raises(WrongFeatureType):
            writer.write({"label": b"x"})
    with sr.open(f"{tmp_path}/a*", specs, batch_size=1, engine="thread") as stream:
        assert [batch["n"].tolist() for batch in stream] == [[3]]


@given(components=st.lists(st.integers(0, 2), max_size=6))
def test_records_of_components_are_parsed_as_those_of_one(components: list[int]) -> None:
    names = [
        {},
        {"n": "numbers", "two": "label"},
        {"numbers": "values/numbers", "values/numbers": "numbers"},
    ]
    specs = {
        "numbers": sr.FixedLenSequenceFeature((), "int64", allow_missing=True),
        "words": sr.VarLenFeature(bytes),
        "label": sr.FixedLenFeature((2,), bytes),
        "deep": sr.RaggedFeature(
            "int64", "values/numbers", [sr.RaggedFeature.RowLengths("values/lengths")]
        ),
    }
    alike, stored = [], []
    for number, component in enumerate(components):
        values = {
            "numbers": list(range(number)),
            "words": [b"w"] * number,
            "label": [b"a", b"%d" % number],
            "values/numbers": [number] * 3,
            "values/lengths": [1, 2],
        }
        old = {new: name for name, new in names[component].items()}
        alike.append(sr.encode_example(values))
        stored.append(sr.encode_example({old.get(name, name): values[name] for name in values}))
    rows = replace(RecordRows.of(stored), shards=2 * np.array(components, np.int32) + 1)
    parser = FeatureParser(specs, renames=Renames((0, 2, 4), tuple(names)))
    found, wanted = parser.parse(rows), FeatureParser(specs).parse(RecordRows.of(alike))
    assert {name: plain(found[name]) for name in found} == {n: plain(wanted[n]) for n in wanted}


def test_the_name_of_a_group_stands_for_all_below_it() -> None:
    names = {"a/b": "x", "a/b/c": "y/z", "d": "e"}
    stored = ["a/b", "a/b/f", "a/b/c/g", "a/bc", "d/h/i", "j"]
    assert [*new_names(stored, names).values()] == ["x", "x/f", "y/z/g", "a/bc", "e/h/i", "j"]
    specs = {
        "a/b": {
            "kind": "ragged",
            "partitions": [{"row_lengths": "a/b/0"}, {"uniform_row_length": 2}],
        },
        "d": {"kind": "shaped", "shape": ["d/h", 3], "value_key": "d/v"},
    }
    assert rename_specs(specs, {"a/b": "x", "d": "e"}) == {
        "x": {"kind": "ragged", "partitions": [{"row_lengths": "x/0"}, {"uniform_row_length": 2}]},
        "e": {"kind": "shaped", "shape": ["e/h", 3], "value_key": "e/v"},
    }  # fmt: skip
    with pytest.raises(ConfigError, match="'j' and 'd' of the records one name"):
        new_names(["j", "d"], {"d": "j"})


def test_made_up_records_have_the_features_names() -> None:
    specs = {"n": sr.FixedLenFeature((), "int64", key="label"), "p": sr.Image(key="image/encoded")}
    columns = sr.parse_example(sample_records(specs, 2), specs)
    assert len(columns["p"]) == 2
