"""Narrower dtypes are put into specs, for all features of a kind or by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import streamrec as sr
from streamrec.errors import ConfigError
from streamrec.formats.examples.descriptions import describe, from_description
from streamrec.formats.examples.narrowing import dtype_names, narrowed

FEATURES = {
    "tokens": sr.RaggedFeature("int64"),
    "label": sr.FixedLenFeature((), "int64", default_value=-1),
    "weight": sr.VarLenFeature("float32"),
    "name": sr.FixedLenFeature((), bytes),
    "grid": sr.FixedLenFeature((2,), "int64", raw=True),
    "shaped": sr.ShapedFeature(("n",), "int16", raw=True),
    "picture": sr.Image(),
}


def dtypes_of(specs: Any) -> dict[str, str]:
    return {name: spec.dtype for name, spec in specs.items() if hasattr(spec, "dtype")}


def changed(dtypes: Any, features: Any = FEATURES) -> Any:
    plain = describe(features)
    assert plain is not None
    return from_description(narrowed(plain, dtype_names(dtypes)))


def test_one_is_for_all_features_that_hold_such_numbers() -> None:
    found = dtypes_of(changed(np.int32))
    assert found == {**dtypes_of(FEATURES), "tokens": "int32", "label": "int32"}


def test_two_are_for_integers_and_for_floats() -> None:
    found = dtypes_of(changed(["int32", "float16"]))
    assert (found["label"], found["weight"], found["name"]) == ("int32", "float16", "bytes")


def test_a_name_is_for_its_feature_alone() -> None:
    found = dtypes_of(changed({"tokens": "uint16"}))
    assert found == {**dtypes_of(FEATURES), "tokens": "uint16"}


def test_fixed_size_bytes_keep_their_dtype() -> None:
    assert changed("int32")["grid"].dtype == "int64"
    assert changed("int32")["shaped"].dtype == "int16"


def test_the_other_arguments_stay() -> None:
    assert changed("int32")["label"] == sr.FixedLenFeature((), "int32", default_value=-1)
    assert changed("int32")["picture"] == sr.Image()


def test_a_pair_is_narrowed_in_both_parts() -> None:
    pair = ({"id": sr.FixedLenFeature((), "int64")}, {"x": sr.VarLenFeature("int64")})
    found = changed({"id": "int32", "x": "uint8"}, pair)
    assert (found.context["id"].dtype, found.sequence["x"].dtype) == ("int32", "uint8")


def test_twice_is_as_once() -> None:
    plain = describe(FEATURES)
    assert plain is not None
    once = narrowed(plain, ["int32"])
    assert narrowed(once, ["int32"]) == once


@pytest.mark.parametrize(
    ("dtypes", "says"),
    [
        ("int23", "did you mean 'int32'"),
        (["int32", "uint8"], "two of them are for the same features"),
        ({"lable": "int32"}, "'lable', but the features are 'grid', 'label'"),
        ({"label": "float16"}, "'label' the dtype 'float16', but it holds int64"),
        ({"name": "int32"}, "'name' the dtype 'int32', but it holds bytes"),
        ({"name": "bytes"}, "'name' the dtype 'bytes', but it holds bytes"),
        ({"picture": "int32"}, "'picture' the dtype 'int32', but it holds pictures"),
        ({"grid": "int32"}, "'grid' the dtype 'int32', but it holds int64"),
        ({"label": "uint8"}, "label"),  # its default, -1, does not fit
    ],
)
def test_what_cannot_be_is_refused(dtypes: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        changed(dtypes)
