from __future__ import annotations

from typing import Any

import pytest

import streamrec as sr
from streamrec.errors import ConfigError, WrongFeatureType
from streamrec.formats.examples.feature_types import FeatureTypes

pytestmark = pytest.mark.both_kernels


def test_records_are_encoded_with_their_types() -> None:
    types = FeatureTypes()
    values: list[dict[str, Any]] = [{"a": 1}, {"a": 2, "b": ["x", "y"]}, {"b": []}]
    for record, value in enumerate(values):
        assert types.encode(value, record) == sr.encode_example(value)
    assert types.to_dict() == {"a": "int64", "b": "bytes"}
    with pytest.raises(WrongFeatureType, match=r"record 3, feature b: .* is bytes since record 1"):
        types.encode({"a": 1, "b": 1.5}, 3)
    with pytest.raises(WrongFeatureType, match=r"record 4, feature a: .* cannot be encoded"):
        types.encode({"a": object()}, 4)


def test_the_first_record_with_a_feature_decides() -> None:
    types = FeatureTypes()
    types.take([("a", "int64_list", 0), ("b", None, 0)])
    types.take([("a", "int64_list", 1), ("b", "bytes_list", 1)])
    with pytest.raises(
        WrongFeatureType,
        match="record 5, feature b: the value is of type float32, but the feature is bytes since "
        "record 1",
    ):
        types.take([("b", "float_list", 5)])
    assert types.to_dict() == {"a": "int64", "b": "bytes"}


def test_nothing_is_taken_of_values_that_are_refused() -> None:
    types = FeatureTypes()
    with pytest.raises(WrongFeatureType, match="is bytes since record 0"):
        types.take([("new", "bytes_list", 0), ("new", "int64_list", 1)])
    assert types.to_dict() == {}


def test_declared_features_are_all_there_are() -> None:
    specs: dict[str, Any] = {
        "a": sr.FixedLenFeature((), "int64"),
        "s": sr.SparseFeature("index", "value", "float32", 10),
        "i": sr.Image(),
    }
    types = FeatureTypes(specs)
    assert types.to_dict() == {"a": "int64", "i": "bytes", "index": "int64", "value": "float32"}
    with pytest.raises(WrongFeatureType, match="feature c: features does not name it"):
        types.take([("c", "int64_list", 0)])
    with pytest.raises(WrongFeatureType, match="but the feature is int64 in features"):
        types.take([("a", "bytes_list", 0)])


def test_types_of_before() -> None:
    types = FeatureTypes()
    types.update({"a": "float32"})
    with pytest.raises(WrongFeatureType, match="is float32 in the shards written before"):
        types.take([("a", "int64_list", 9)])
    with pytest.raises(ConfigError, match="no type 'text'"):
        types.update({"b": "text"})
