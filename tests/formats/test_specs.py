from __future__ import annotations

import json
import tomllib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamrec.formats.specs as sr
from streamrec.errors import ConfigError
from streamrec.formats.specs import (
    FixedLenFeature,
    VarLenFeature,
    as_python,
    as_specs,
    describe,
    from_description,
)
from streamrec.kernel.contract import ColumnPlan, DataType, Kind


class DType:
    """What a ``tf.DType`` looks like."""

    def __init__(self, name: str, as_numpy_dtype: Any) -> None:
        self.name = name
        self.as_numpy_dtype = as_numpy_dtype


INT64, STRING = DType("int64", np.int64), DType("string", np.object_)


def foreign(name: str, **fields: Any) -> Any:
    """A spec of another library's class of the same name."""
    return type(name, (), fields)()


class Named:
    """A dtype of another library, that has only a name."""

    name = "float32"


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        ("int64", "int64"),
        (np.int64, "int64"),
        (np.dtype("int64"), "int64"),
        (int, "int64"),
        (INT64, "int64"),
        ("float32", "float32"),
        (np.float32, "float32"),
        (float, "float32"),
        (Named(), "float32"),
        ("bytes", "bytes"),
        ("string", "bytes"),
        (bytes, "bytes"),
        (str, "bytes"),
        (object, "bytes"),
        (np.bytes_, "bytes"),
        (np.str_, "bytes"),
        (np.dtype("S7"), "bytes"),
        (STRING, "bytes"),
    ],
)
def test_dtypes(dtype: Any, name: str) -> None:
    assert FixedLenFeature((), dtype).dtype == name
    assert VarLenFeature(dtype) == VarLenFeature(name)


@pytest.mark.parametrize(
    ("dtype", "hint"),
    [
        ("in64", "did you mean 'int64'"),
        ("float", "did you mean 'float32'"),
        (np.float64, "did you mean"),
        ("uint8", "int64, float32 and bytes"),
        (np.bool_, "convert the parsed column"),
        (complex, "int64, float32 and bytes"),
        (None, "int64, float32 and bytes"),
        (object(), "int64, float32 and bytes"),
    ],
)
def test_other_dtypes_are_refused(dtype: Any, hint: str) -> None:
    with (
        pytest.raises(ConfigError, match=hint) if dtype is not None else pytest.raises(ConfigError)
    ):
        VarLenFeature(dtype)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((), ()),
        ([], ()),
        (3, (3,)),
        ([2, 3], (2, 3)),
        (np.array([4]), (4,)),
        ((np.int64(2),), (2,)),
    ],
)
def test_shapes(shape: Any, expected: tuple[int, ...]) -> None:
    spec = FixedLenFeature(shape, "int64")
    assert spec.shape == expected
    assert all(type(size) is int for size in spec.shape)


@pytest.mark.parametrize("shape", [None, (None,), (-1,), (2.0,), "ab", (True,)])
def test_other_shapes_are_refused(shape: Any) -> None:
    with pytest.raises(ConfigError, match=r"shape is .* use VarLenFeature"):
        FixedLenFeature(shape, "int64")


def test_strings_without_a_place_are_refused() -> None:
    with pytest.raises(ConfigError, match="holds no string"):
        FixedLenFeature((0,), bytes)


@pytest.mark.parametrize(
    ("shape", "dtype", "default", "expected"),
    [
        ((), int, 3, 3),
        ((), int, [3], 3),
        ((), int, True, 1),
        ((), int, np.int32(4), 4),
        ((2,), int, (1, 2), (1, 2)),
        ((2, 2), int, [[1, 2], [3, 4]], (1, 2, 3, 4)),
        ((2, 2), int, [1, 2, 3, 4], (1, 2, 3, 4)),
        ((2,), float, np.array([1, 0.5]), (1.0, 0.5)),
        ((), float, 7, 7.0),
        ((), float, float("inf"), float("inf")),
        ((), bytes, "ü", "ü".encode()),
        ((2,), bytes, [b"\xff", "a"], (b"\xff", b"a")),
        ((0,), int, [], ()),
    ],
)
def test_defaults(shape: Any, dtype: Any, default: Any, expected: Any) -> None:
    assert FixedLenFeature(shape, dtype, default).default_value == expected


@pytest.mark.parametrize(
    ("shape", "dtype", "default", "message"),
    [
        ((3,), int, 7, r"holds 1 values, but shape \(3,\) takes 3"),
        ((), int, [1, 2], r"holds 2 values, but shape \(\) takes 1"),
        ((), int, 0.5, "0.5 is no int64"),
        ((), int, 2**63, "is no int64"),
        ((), int, "a", "'a' is no int64"),
        ((), float, 1e39, "is no float32"),
        ((), float, "a", "is no float32"),
        ((), bytes, 3, "3 is no bytes"),
    ],
)
def test_other_defaults_are_refused(shape: Any, dtype: Any, default: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FixedLenFeature(shape, dtype, default)


def test_specs_are_values() -> None:
    spec = FixedLenFeature([2], "string", ["a", "b"])
    assert spec == FixedLenFeature((2,), bytes, [b"a", b"b"])
    assert hash(spec) == hash(FixedLenFeature((2,), bytes, [b"a", b"b"]))
    with pytest.raises(AttributeError):
        spec.shape = ()  # type: ignore[misc]


def test_plans() -> None:
    assert FixedLenFeature((), int, 3).plan("a") == ColumnPlan(
        "a", Kind.FIXED, DataType.INT64, (), (3,)
    )
    assert FixedLenFeature((2,), float).plan("a").default is None
    assert FixedLenFeature((2, 3), float).plan("a").count == 6
    assert VarLenFeature(bytes).plan("b") == ColumnPlan("b", Kind.VARLEN, DataType.BYTES)


VALUES = {"int64": st.integers(-(2**63), 2**63 - 1), "bytes": st.binary(max_size=5)}
VALUES["float32"] = st.floats(width=32, allow_nan=False, allow_infinity=False)


@st.composite
def specs(draw: st.DrawFn) -> Any:
    dtype = draw(st.sampled_from(sorted(VALUES)))
    if draw(st.booleans()):
        return VarLenFeature(dtype)
    shape = draw(st.lists(st.integers(1, 3), max_size=2))
    count = int(np.prod(shape, dtype=int))
    values = st.lists(VALUES[dtype], min_size=count, max_size=count)
    return FixedLenFeature(shape, dtype, draw(st.none() | values))


FEATURES = st.dictionaries(st.text(max_size=5), specs(), max_size=4)


class TestPlainForm:
    @given(features=FEATURES)
    def test_round_trip(self, features: dict[str, Any]) -> None:
        plain = describe(features)
        assert plain is not None
        assert from_description(json.loads(json.dumps(plain))) == features

    def test_raw_records_have_none(self) -> None:
        assert describe(None) is None

    def test_reads_well(self) -> None:
        assert describe(
            {
                "a": FixedLenFeature((), int),
                "b": FixedLenFeature((2,), bytes, ["ü", b"\xff"]),
                "c": VarLenFeature(float),
            }
        ) == {
            "a": {"kind": "fixed", "shape": [], "dtype": "int64"},
            "b": {
                "kind": "fixed",
                "shape": [2],
                "dtype": "bytes",
                "default": ["ü", {"base64": "/w=="}],
            },
            "c": {"kind": "varlen", "dtype": "float32"},
        }

    def test_comes_from_toml(self) -> None:
        plain = tomllib.loads(
            """
            image = { dtype = "bytes" }
            label = { kind = "fixed", shape = [], dtype = "int64", default = -1 }
            tokens = { kind = "varlen", dtype = "int64" }
            """
        )
        assert from_description(plain) == {
            "image": FixedLenFeature((), bytes),
            "label": FixedLenFeature((), int, -1),
            "tokens": VarLenFeature(int),
        }

    @pytest.mark.parametrize(
        ("plain", "message"),
        [
            ({"a": {"kind": "fixd", "dtype": "int64"}}, "no kind 'fixd'; did you mean 'fixed'"),
            ({"a": {"kind": "x", "dtype": "int64"}}, "there are fixed, varlen"),
            ({"a": {"kind": [], "dtype": "int64"}}, "no kind"),
            ({"a": {"dtyp": "int64"}}, "no key 'dtyp'; did you mean 'dtype'"),
            ({"a": {"kind": "varlen", "dtype": "int64", "shape": []}}, "no key 'shape'"),
            ({"a": {"kind": "fixed"}}, "the key 'dtype' is missing"),
            ({"a": {"dtype": "int46"}}, "feature 'a': dtype 'int46'.* 'int64'"),
            ({"a": {"dtype": "int64", "shape": [-1]}}, "feature 'a': shape"),
            ({"a": {"dtype": "bytes", "default": {"base64": "?"}}}, "feature 'a'"),
            ({"a": "int64"}, "a table with kind and dtype"),
            ({3: {"dtype": "int64"}}, "name is a str"),
            ([], "a table of features"),
        ],
    )
    def test_faults_name_the_feature(self, plain: Any, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            from_description(plain)


class TestAsSpecs:
    def test_takes_classes_of_the_same_name(self) -> None:
        features = {
            "a": foreign("FixedLenFeature", shape=[2], dtype=INT64, default_value=None),
            "b": foreign("VarLenFeature", dtype=STRING),
        }
        assert as_specs(features) == {"a": FixedLenFeature(2, int), "b": VarLenFeature(bytes)}

    @pytest.mark.parametrize(
        ("features", "message"),
        [
            ({"a": 3}, "feature 'a': the spec is a FixedLenFeature or a VarLenFeature, not int"),
            ({"a": "int64"}, "not str"),
            ([1], "features is a mapping .* not list"),
            ({3: VarLenFeature(int)}, "name is a str, not 3"),
            ({"a": foreign("VarLenFeature", dtype="x")}, "feature 'a': dtype 'x'"),
            ({"a": foreign("VarLenFeature", b="x")}, "feature 'a': "),
        ],
    )
    def test_others_are_refused(self, features: Any, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            as_specs(features)


class TestAsPython:
    def test_reads_well(self) -> None:
        features = {"id": FixedLenFeature((), int, 3), "x y": VarLenFeature(bytes)}
        assert as_python(features) == (
            "features = {\n"
            "    'id': sr.FixedLenFeature((), 'int64', default_value=3),\n"
            "    'x y': sr.VarLenFeature('bytes'),\n"
            "}"
        )

    @given(features=FEATURES)
    def test_evaluates_to_the_same(self, features: dict[str, Any]) -> None:
        scope: dict[str, Any] = {"sr": sr}
        exec(as_python(features), scope)
        assert scope["features"] == features
