from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from streamrec.errors import ConfigError
from streamrec.formats.examples.specs import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    RaggedFeature,
    ShapedFeature,
    SparseFeature,
    VarLenFeature,
    as_specs,
)


class DType:
    """A stand-in for ``tf.DType``."""

    def __init__(self, name: str, as_numpy_dtype: Any) -> None:
        self.name = name
        self._as_numpy_dtype = as_numpy_dtype

    @property
    def as_numpy_dtype(self) -> Any:
        return self._as_numpy_dtype


INT64, STRING = DType("int64", np.int64), DType("string", np.object_)


def foreign(name: str, **fields: Any) -> Any:
    """Return a spec of another library's class of the same name."""
    return type(name, (), fields)()


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


@pytest.mark.parametrize("shape", [None, (None,), (-1,), (2.0,), "ab", (True,), 2**63])
def test_other_shapes_are_refused(shape: Any) -> None:
    with pytest.raises(ConfigError, match=r"shape must be .* use VarLenFeature"):
        FixedLenFeature(shape, "int64")


@pytest.mark.parametrize("kind", [FixedLenFeature, FixedLenSequenceFeature])
@pytest.mark.parametrize("shape", [(2**31,), (2**16, 2**15), (2**62, 2**62)])
def test_shapes_that_no_record_can_fill_are_refused(kind: Any, shape: Any) -> None:
    with pytest.raises(ConfigError, match=r"takes more values than the longest record holds"):
        kind(shape, "int64")


def test_sizes_beside_none_have_limits_too() -> None:
    with pytest.raises(ConfigError, match="takes more values"):
        FixedLenFeature((0, 2**62), "int64")


def test_more_dimensions_than_arrays_have_are_refused() -> None:
    FixedLenFeature((1,) * 30, "int64")
    with pytest.raises(ConfigError, match="shape has 31 dimensions"):
        FixedLenFeature((1,) * 31, "int64")


def test_strings_without_a_place_are_refused() -> None:
    with pytest.raises(ConfigError, match="would hold no string"):
        FixedLenFeature((0,), bytes)


@pytest.mark.parametrize(
    ("shape", "dtype", "default", "expected"),
    [
        ((), int, 3, 3),
        ((), int, [3], 3),
        ((), int, True, 1),
        ((2,), bool, [True, 0], (True, False)),
        ((), "uint64", 2**63 - 1, 2**63 - 1),
        ((), "float16", 65504, 65504.0),
        ((), "float64", 1e38, 1e38),
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
        ((), int, 0.5, "0.5 is not of type int64"),
        ((), int, 2**63, "is not of type int64"),
        ((), int, "a", "'a' is not of type int64"),
        ((), float, 1e39, "is not of type float32"),
        ((), "float64", 1e39, "is not of type float64"),
        ((), "float16", 65520, "is not of type float16"),
        ((), "uint8", 256, "256 is not of type uint8"),
        ((), "uint8", -1, "-1 is not of type uint8"),
        ((), "uint64", 2**63, "is not of type uint64"),
        ((), bool, 2, "2 is not of type bool"),
        ((), bool, 1.0, "1.0 is not of type bool"),
        ((), float, "a", "is not of type float32"),
        ((), bytes, 3, "3 is not of type bytes"),
        ((), bytes, "\udcff", "is not of type bytes"),
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


class TestSequence:
    def test_arguments(self) -> None:
        spec = FixedLenSequenceFeature([2], "string", True, "-")
        assert spec == FixedLenSequenceFeature((2,), bytes, allow_missing=True, default_value=b"-")
        assert FixedLenSequenceFeature((), int).default_value is None

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (((0,), int), "would hold no value; use VarLenFeature"),
            (((), int, 1), "allow_missing must be True or False, not 1"),
            (((2,), int, True, [1, 2]), r"holds 2 values, but shape \(\) takes 1"),
        ],
    )
    def test_what_is_refused(self, arguments: Any, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            FixedLenSequenceFeature(*arguments)


class TestRaw:
    def test_defaults_are_little_endian_bytes(self) -> None:
        assert FixedLenFeature((2,), "int16", [1, -2], raw=True).default_value == b"\1\0\xfe\xff"
        assert FixedLenFeature((2,), "int16", b"abcd", raw=True).default_value == b"abcd"
        assert FixedLenFeature((), "uint8", "a", raw=True).default_value == b"a"
        assert FixedLenFeature((), "bool", True, raw=True).default_value == b"\1"
        assert FixedLenFeature((), "complex64", raw=True).default_value is None

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (((2,), "int16", b"abc"), r"has 3 bytes, but shape \(2,\) of int16 takes 4"),
            (((2,), "int16", [1]), r"holds 1 values, but shape \(2,\) takes 2"),
            (((), "uint8", 256), "256 is not of type uint8"),
            (((), "uint8", [None]), "is not of type uint8"),
            (((), bytes, None), "dtype 'bytes', as bytes decode to numbers"),
        ],
    )
    def test_what_is_refused(self, arguments: tuple[Any, Any, Any], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            FixedLenFeature(arguments[0], arguments[1], arguments[2], raw=True)


class TestRagged:
    def test_arguments(self) -> None:
        spec = RaggedFeature("int64", "v", [RaggedFeature.RowSplits("s")], np.int64, True)
        assert spec.partitions == (RaggedFeature.RowSplits("s"),)
        assert spec.row_splits_dtype == "int64"
        assert RaggedFeature(int) == RaggedFeature("int64", None, (), "int32", False)
        assert len({RaggedFeature.RowSplits("s"), RaggedFeature.RowLengths("s")}) == 2
        assert hash(spec) == hash(
            RaggedFeature(int, "v", (RaggedFeature.RowSplits("s"),), int, True)
        )

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"value_key": ""}, "value_key must be the name of a feature, not ''"),
            ({"value_key": 3}, "value_key must be the name of a feature, not 3"),
            ({"value_key": "\ud800"}, "value_key must be the name of a feature"),
            ({"partitions": "s"}, "partitions must be a list of partitions, not 's'"),
            ({"partitions": ["s"]}, "a partition must be one of RowSplits.*, not str"),
            ({"row_splits_dtype": "float32"}, "must be 'int32' or 'int64', not 'float32'"),
            ({"validate": None}, "validate must be True or False, not None"),
        ],
    )
    def test_what_is_refused(self, arguments: Any, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            RaggedFeature("int64", **arguments)

    @pytest.mark.parametrize("length", [0, -1, True, 1.0, "2", 2**31])
    def test_uniform_lengths(self, length: Any) -> None:
        with pytest.raises(ConfigError, match="a number from 1 to"):
            RaggedFeature.UniformRowLength(length)

    def test_a_uniform_length_of_numpy(self) -> None:
        assert type(RaggedFeature.UniformRowLength(np.int64(2)).length) is int

    def test_keys_of_partitions(self) -> None:
        with pytest.raises(ConfigError, match="a partition's key must be the name"):
            RaggedFeature.RowStarts(3)  # type: ignore[arg-type]


class TestSparse:
    def test_one_dimension_or_several(self) -> None:
        one, several = SparseFeature("i", "v", int, 5), SparseFeature(["i", "j"], "v", int, [5, 6])
        assert (one.index_keys, one.sizes) == (("i",), (5,))
        assert (several.index_keys, several.sizes) == (("i", "j"), (5, 6))
        assert (one.index_key, one.size) == ("i", 5)
        assert several == SparseFeature(("i", "j"), "v", int, (5, 6))
        assert hash(several) == hash(SparseFeature(("i", "j"), "v", int, (5, 6)))

    def test_sizes_of_numpy(self) -> None:
        assert SparseFeature("i", "v", int, np.int64(5)) == SparseFeature("i", "v", int, 5)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("i", "v", int, [5]), "or both must be lists"),
            ((["i"], "v", int, 5), "or both must be lists"),
            (([], "v", int, []), "or both must be lists"),
            ((["i", "j"], "v", int, [5]), "names 2 features, but size has 1"),
            (("i", "", int, 5), "value_key must be the name of a feature"),
            (([3], "v", int, [5]), "index_key must be the name of a feature, not 3"),
            (("i", "v", int, -5), "shape must be"),
            (("i", "v", int, 2**63), "shape must be"),
            (("i", "v", int, 5, "yes"), "already_sorted must be True or False"),
        ],
    )
    def test_what_is_refused(self, arguments: Any, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            SparseFeature(*arguments)


class TestShaped:
    def test_names_and_sizes(self) -> None:
        spec = ShapedFeature(["height", "width", np.int64(3)], np.uint8, raw=True)
        assert spec.shape == ("height", "width", 3)
        assert type(spec.shape[2]) is int
        assert (spec.dtype, spec.shape_keys, spec.value_key) == ("uint8", ("height", "width"), None)

    def test_one_name(self) -> None:
        spec = ShapedFeature("shape", "int32", "values", rank=3)
        assert (spec.shape, spec.rank, spec.shape_keys) == ("shape", 3, ("shape",))

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (((2, 3), "uint8"), r"must name the features that hold it.*not \(2, 3\).*FixedLen"),
            (((), "uint8"), "must name the features"),
            ((3, "uint8"), "must name the features"),
            ((None, "uint8"), "must name the features"),
            (("shape", "uint8"), "rank is None beside shape='shape'; give the number of"),
            ((("h",), "uint8", None, False, 1), "rank is 1 beside"),
            (("shape", "uint8", None, False, 0), "1 to 30 dimensions, not 0"),
            (("shape", "uint8", None, False, 31), "1 to 30 dimensions, not 31"),
            (("shape", "uint8", None, False, True), "1 to 30 dimensions, not True"),
            (("shape", "uint8", None, False, "3"), "1 to 30 dimensions, not '3'"),
            ((["h"] * 31, "uint8"), "1 to 30 dimensions, not 31"),
            ((("h", -1), "uint8"), "sizes from 0 up"),
            ((("h", 2.0), "uint8"), "sizes from 0 up"),
            ((("h", 2**31), "uint8"), "more values than the longest record"),
            ((("h", ""), "uint8"), "shape must be the name of a feature"),
            (("", "uint8", None, False, 3), "shape must be the name of a feature"),
            ((("h",), "uint8", ""), "value_key must be the name of a feature"),
            ((("h",), "uint8", None, 1), "raw must be True or False"),
            ((("h",), bytes), "makes arrays of numbers, and its dtype is 'bytes'; give"),
            ((("h",), bytes, None, True), "no feature can have the dtype 'bytes'"),
            ((("h",), "complex64"), "no feature can have the dtype 'complex64'"),
        ],
    )
    def test_what_is_refused(self, arguments: Any, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            ShapedFeature(*arguments)

    def test_another_librarys_class_of_this_name_is_no_spec(self) -> None:
        with pytest.raises(ConfigError, match="the spec must be one of"):
            as_specs({"x": foreign("ShapedFeature", shape=("h",), dtype=INT64)})


class TestAsSpecs:
    def test_another_librarys_class_of_this_name_is_no_spec(self) -> None:
        with pytest.raises(ConfigError, match="the spec must be one of"):
            as_specs({"a": foreign("Image", shape=(1, 2), channels=3)})

    def test_takes_classes_of_the_same_name(self) -> None:
        features = {
            "a": foreign("FixedLenFeature", shape=[2], dtype=INT64, default_value=None),
            "b": foreign("VarLenFeature", dtype=STRING),
        }
        assert as_specs(features) == {"a": FixedLenFeature(2, int), "b": VarLenFeature(bytes)}

    def test_takes_every_class(self) -> None:
        splits = foreign("RowSplits", key="s")
        ragged = {"dtype": INT64, "value_key": "v", "partitions": [splits]}
        features = {
            "a": foreign(
                "SparseFeature",
                index_key="i",
                value_key="v",
                dtype=INT64,
                size=5,
                already_sorted=True,
            ),
            "b": foreign(
                "FixedLenSequenceFeature",
                shape=[],
                dtype=INT64,
                allow_missing=True,
                default_value=-1,
            ),
            "c": foreign("RaggedFeature", **ragged, row_splits_dtype=INT64, validate=False),
        }
        assert as_specs(features) == {
            "a": SparseFeature("i", "v", int, 5, already_sorted=True),
            "b": FixedLenSequenceFeature((), int, True, -1),
            "c": RaggedFeature(int, "v", [RaggedFeature.RowSplits("s")], int),
        }

    @pytest.mark.parametrize(
        ("features", "message"),
        [
            (
                {"a": 3},
                "feature 'a': the spec must be one of FixedLenFeature.* Image, not int",
            ),
            ({"a": "int64"}, "not str"),
            ([1], "features must be a mapping .* not list"),
            ({3: VarLenFeature(int)}, "name must be a str, not 3"),
            ({"\ud800": VarLenFeature(int)}, "name must be text that UTF-8 can hold"),
            (
                {"a": foreign("VarLenFeature", dtype="x")},
                "feature 'a': no feature can have the dtype 'x'",
            ),
            ({"a": foreign("VarLenFeature", b="x")}, "feature 'a': "),
        ],
    )
    def test_others_are_refused(self, features: Any, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            as_specs(features)
