"""RaggedFeature with partitions and SparseFeature; TensorFlow's answers: test_differential."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import streamrec as sr
from streamrec.errors import ConfigError, DataError, MissingFeature, WrongFeatureType
from streamrec.formats.examples.dtypes import HELD_AS, RAW
from streamrec.formats.examples.example import encode_example

pytestmark = pytest.mark.both_kernels

DTYPES = sorted(set(RAW) - {"bfloat16"})
LISTED = [name for name in DTYPES if name in HELD_AS]
RAW_GRID = sr.ShapedFeature(("h", "w", 3), "float32", "v", raw=True)
GRID = sr.ShapedFeature("s", "int32", "v", rank=2)


def finite(dtype: str) -> st.SearchStrategy[Any]:
    """Draw numbers that a list holds just as they are."""
    if dtype == "uint64":
        return st.integers(0, 2**63 - 1)
    return npst.from_dtype(np.dtype("float32" if dtype == "float64" else dtype), allow_nan=False)


def numbers(dtypes: list[str]) -> st.SearchStrategy[Any]:
    shapes = npst.array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=4)
    return st.sampled_from(dtypes).flatmap(
        lambda dtype: st.lists(npst.arrays(dtype, shapes, elements=finite(dtype)), min_size=1)
    )


def same(column: Any, arrays: list[Any]) -> None:
    assert isinstance(column, sr.Arrays)
    assert column.shapes.tolist() == [list(array.shape) for array in arrays]
    assert column.values.flags.writeable
    for got, array in zip(column, arrays, strict=True):
        assert got.dtype == array.dtype
        np.testing.assert_array_equal(got, array)


@given(arrays=numbers(DTYPES))
def test_byte_strings_are_what_tobytes_wrote(arrays: list[Any]) -> None:
    records = [
        sr.encode_example(
            {"v": array.astype(array.dtype.newbyteorder("<")).tobytes(), "h": len(array)}
            | {"w": array.shape[1]}
        )
        for array in arrays
    ]
    spec = sr.ShapedFeature(("h", "w"), arrays[0].dtype, "v", raw=True)
    same(sr.parse_example(records, {"x": spec})["x"], arrays)


@given(arrays=numbers(LISTED))
def test_lists_are_what_ravel_gave(arrays: list[Any]) -> None:
    records = [sr.encode_example({"v": array.ravel(), "s": list(array.shape)}) for array in arrays]
    spec = sr.ShapedFeature("s", arrays[0].dtype, "v", rank=2)
    same(sr.parse_example(records, {"x": spec})["x"], arrays)


def test_the_values_are_those_of_the_specs_own_name() -> None:
    record = sr.encode_example({"x": [1.5, 2.5], "n": 2})
    features = {"x": sr.ShapedFeature(("n",), "float32"), "n": sr.FixedLenFeature((), "int64")}
    row = sr.parse_single_example(record, features)
    assert (row["x"].tolist(), row["n"]) == ([1.5, 2.5], 2)


def test_the_shape_may_be_a_column_too_and_is_not_shared() -> None:
    record = sr.encode_example({"v": [7, 8, 9], "s": [1, 3]})
    columns: Any = sr.parse_example([record], {"x": GRID, "s": sr.FixedLenFeature((2,), "int64")})
    columns["s"][:] = 5
    assert columns["x"][0].tolist() == [[7, 8, 9]]


def test_no_records_make_a_column_of_the_same_form() -> None:
    for spec in (RAW_GRID, GRID):
        column: Any = sr.parse_example([], {"x": spec})["x"]
        assert (len(column), column.shapes.shape[1]) == (0, 3 if spec is RAW_GRID else 2)
        assert column.values.dtype == np.dtype(spec.dtype)


def test_a_list_of_no_values_may_be_absent() -> None:
    row = sr.parse_single_example(sr.encode_example({"s": [4, 0]}), {"x": GRID})
    assert row["x"].shape == (4, 0)


def test_in_the_context_of_a_sequence() -> None:
    record = sr.encode_sequence_example({"v": [1, 2], "s": [2, 1]}, {"t": [[1]]})
    got: Any = sr.parse_sequence_example([record], {"x": GRID}, {"t": sr.VarLenFeature("int64")})
    assert got.context["x"][0].tolist() == [[1], [2]]


def test_a_feature_list_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be read by a ShapedFeature"):
        sr.parse_sequence_example([], None, {"x": GRID})


@pytest.mark.parametrize("spec", [RAW_GRID, GRID])
def test_a_spec_of_the_same_feature_in_another_way_is_refused(spec: Any) -> None:
    features = {"x": spec, "v": sr.FixedLenFeature((2,), "int64")}
    with pytest.raises(ConfigError, match=r"feature 'v' is needed as .* and as fixed int64"):
        sr.parse_example([], features)


def refusal_shaped_columns(spec: Any, **values: Any) -> DataError:
    """Return the error for the second of two records."""
    fill = math.prod((1, 2, 3)) * 4
    good = {"h": 1, "w": 2, "v": bytes(fill)} if spec.raw else {"s": [1, 2], "v": [1, 2]}
    records = [sr.encode_example(good), sr.encode_example({**good, **values})]
    with pytest.raises(DataError) as caught:
        sr.parse_example(records, {"x": spec})
    assert caught.value.record == 1
    return caught.value


@pytest.mark.parametrize(
    ("values", "feature", "words"),
    [
        ({"h": 2}, "v", "(2, 2, 3) of 'h' and 'w' takes 48 bytes of float32, but the record holds"),
        ({"v": b"abc"}, "v", "takes 24 bytes of float32, but the record holds 3; correct the spec"),
        ({"h": -1}, "v", "the shape (-1, 2, 3) of 'h' and 'w' fits no array"),
        ({"h": -1, "w": -2}, "v", "(-1, -2, 3) of 'h' and 'w' fits no array; correct the"),
        ({"h": 2**62, "w": 2**62}, "v", "fits no array"),
        ({"h": 2**62, "w": 4, "v": b""}, "v", "fits no array"),
        ({"h": 2**62, "w": 0, "v": b""}, "v", "fits no array"),
        ({"h": 2**31, "w": 1}, "v", "fits no array"),
        ({"h": [1, 1]}, "h", "the record holds 2 numbers, but a shape takes 1 int64; correct the"),
        ({"w": 2.0}, "w", "the record holds float32, but a shape takes 1 int64"),
        ({"v": [b"a", b"b"]}, "v", "the record holds 2 byte strings, but raw=True takes one"),
        ({"v": [1.0]}, "v", "the record holds float32, but raw=True takes one byte string; leave"),
    ],
)
def test_byte_strings_that_the_shape_does_not_fit(values: Any, feature: str, words: str) -> None:
    error = refusal_shaped_columns(RAW_GRID, **values)
    assert isinstance(error, WrongFeatureType)
    assert error.feature == feature
    assert words in str(error)


@pytest.mark.parametrize(
    ("values", "feature", "words"),
    [
        ({"s": [1, 3]}, "v", "(1, 3) of 's' takes 3 values, but the record holds 2; correct the"),
        ({"v": []}, "v", "takes 2 values, but the record holds 0"),
        ({"s": [-2, -1]}, "v", "the shape (-2, -1) of 's' fits no array; correct the record"),
        ({"s": [2**63 - 1, 2**63 - 1]}, "v", "fits no array"),
        ({"s": [1, 2, 1]}, "s", "holds 3 numbers, but a shape takes 2 int64; correct the shape"),
        ({"s": b"12"}, "s", "the record holds bytes, but a shape takes 2 int64"),
        ({"v": [1, 2**31]}, "v", "the record holds 2147483648, but int32 is"),
        ({"v": b"12"}, "v", "the record holds bytes, but the spec says int32"),
    ],
)
def test_lists_that_the_shape_does_not_fit(values: Any, feature: str, words: str) -> None:
    error = refusal_shaped_columns(GRID, **values)
    assert isinstance(error, WrongFeatureType)
    assert error.feature == feature
    assert words in str(error)


@pytest.mark.parametrize(("spec", "name"), [(RAW_GRID, "h"), (RAW_GRID, "v"), (GRID, "s")])
def test_what_is_missing(spec: Any, name: str) -> None:
    error = refusal_shaped_columns(spec, **{name: []})
    assert isinstance(error, MissingFeature)
    assert error.feature == name
    assert "leave the spec out" in str(error)


def test_as_many_dimensions_as_arrays_have() -> None:
    spec = sr.ShapedFeature("s", "int64", "v", rank=30)
    record = sr.encode_example({"s": [1] * 30, "v": [5]})
    assert sr.parse_single_example(record, {"x": spec})["x"].shape == (1,) * 30
    hostile = sr.encode_example({"s": [2**63 - 1] * 30, "v": [5]})
    with pytest.raises(WrongFeatureType, match="fits no array"):
        sr.parse_single_example(hostile, {"x": spec})


def test_bools_are_0_or_1() -> None:
    spec = sr.ShapedFeature(("n",), "bool", "v", raw=True)
    records = [sr.encode_example({"n": 2, "v": octets}) for octets in (b"\x00\x01", b"\x01\x02")]
    assert sr.parse_single_example(records[0], {"x": spec})["x"].tolist() == [False, True]
    with pytest.raises(
        WrongFeatureType, match="byte string holds 2, but a bool is 0 or 1"
    ) as caught:
        sr.parse_example(records, {"x": spec})
    assert caught.value.record == 1


Part = sr.RaggedFeature


def refusal(record: bytes, spec: Any, good: bytes = b"") -> WrongFeatureType:
    with pytest.raises(WrongFeatureType) as caught:
        sr.parse_example([good, record], {"x": spec})
    return caught.value


class TestRagged:
    def test_nested(self) -> None:
        spec = Part("uint8", "v", [Part.RowSplits("s2"), Part.RowSplits("s1")])
        records = [
            encode_example({"v": [3, 1, 4, 1, 5, 9], "s1": [0, 2, 3, 3, 6], "s2": [0, 2, 3, 4]}),
            encode_example({"v": [2, 7, 1, 8, 2, 8, 1], "s1": [0, 3, 4, 5, 7], "s2": [0, 1, 1, 4]}),
        ]
        column: Any = sr.parse_example(records, {"x": spec})["x"]
        assert column.to_list() == [
            [[[3, 1], [4]], [[]], [[1, 5, 9]]],
            [[[2, 7, 1]], [], [[8], [2], [8, 1]]],
        ]
        assert column.values.values.values.dtype == np.uint8
        assert sr.parse_single_example(records[1], {"x": spec})["x"].to_list() == [
            *([[[2, 7, 1]], []]),
            [[8], [2], [8, 1]],
        ]

    @pytest.mark.parametrize(
        ("numbers", "words"),
        [
            ([1, 2], "the first split is not 0"),
            ([0, 1], "the rows take another number of values"),
            ([0, 2**62], "a number is negative, or beyond the values"),
            ([0, 2, 1, 2], "the numbers go down"),
        ],
    )
    def test_what_does_not_fit(self, numbers: list[int], words: str) -> None:
        record = encode_example({"v": ["a", "b"], "s": numbers})
        error = refusal(record, Part(bytes, "v", [Part.RowSplits("s")]))
        assert error.fields() == {"record": 1, "feature": "s"}
        assert f"does not partition feature 'v': {words}; correct the partitions" in str(error)

    def test_values_that_make_no_uniform_rows(self) -> None:
        record = encode_example({"x": [1, 2, 3]})
        error = refusal(record, Part(int, partitions=[Part.UniformRowLength(2)]))
        assert error.fields() == {"record": 1, "feature": "x"}
        assert "the number of values is not a multiple of 2" in str(error)

    def test_one_number_cannot_ask_for_any_memory(self) -> None:
        record = encode_example({"v": [1], "s": [2**40]})
        error = refusal(record, Part(int, "v", [Part.ValueRowIds("s")]))
        assert "beyond the values" in str(error)

    def test_partitions_of_another_kind(self) -> None:
        record = encode_example({"v": [1], "s": [0.5]})
        error = refusal(record, Part(int, "v", [Part.RowLengths("s")]))
        assert error.fields() == {"record": 1, "feature": "s"}
        assert "the record holds float32, but the spec says int64" in str(error)


@st.composite
def cells(draw: st.DrawFn) -> dict[tuple[int, int], int]:
    places = st.tuples(st.integers(0, 3), st.integers(0, 2))
    return draw(st.dictionaries(places, st.integers(1, 9)))


class TestSparse:
    @given(records=st.lists(cells(), max_size=4), already_sorted=st.booleans())
    def test_to_dense(
        self, records: list[dict[tuple[int, int], int]], already_sorted: bool
    ) -> None:
        spec = sr.SparseFeature(["i", "j"], "v", "int8", [4, 3], already_sorted)
        serialized = [
            encode_example(
                {
                    "i": np.array([i for i, _ in record], int),
                    "j": np.array([j for _, j in record], int),
                    "v": np.array(list(record.values()), int),
                }
            )
            for record in records
        ]
        column: Any = sr.parse_example(serialized, {"x": spec})["x"]
        assert (len(column), column.dense_shape) == (len(records), (len(records), 4, 3))
        assert column.values.dtype == np.int8
        wanted = np.zeros(column.dense_shape, np.int8)
        for row, record in enumerate(records):
            for place, value in record.items():
                wanted[(row, *place)] = value
        assert column.to_dense().tolist() == wanted.tolist()
        assert [row.to_dense().tolist() for row in column] == wanted.tolist()
        places = [tuple(place) for place in column.indices.tolist()]
        stored = [(row, *place) for row, record in enumerate(records) for place in record]
        assert places == (stored if already_sorted else sorted(stored))

    def test_strings_go_with_their_places(self) -> None:
        record = encode_example({"i": [2, 0, 1], "v": ["c", "a", "b"]})
        column: Any = sr.parse_example([record], {"x": sr.SparseFeature("i", "v", bytes, 3)})["x"]
        assert column.values.to_list() == [b"a", b"b", b"c"]
        assert column.to_dense().tolist() == [[b"a", b"b", b"c"]]
        assert sr.parse_single_example(record, {"x": sr.SparseFeature("i", "v", bytes, 3)})[
            "x"
        ].to_dense().tolist() == [b"a", b"b", b"c"]

    @pytest.mark.parametrize(
        ("record", "feature", "words"),
        [
            (
                {"i": [0, 3], "v": [1, 2]},
                "i",
                "holds place 3, but the spec's size is 3; correct the size",
            ),
            ({"i": [0, -1], "v": [1, 2]}, "i", "holds place -1, but the spec's size is 3"),
            ({"i": [0], "v": [1, 2]}, "i", "holds 1 places for 2 values; write one place for each"),
            ({"v": [1, 2]}, "i", "holds 0 places for 2 values"),
            ({"i": [0], "v": [300]}, "v", "holds 300, but uint8 is 0 to 255"),
            ({"i": [0], "v": ["x"]}, "v", "holds bytes, but the spec says uint8"),
        ],
    )
    def test_what_does_not_fit(self, record: Any, feature: str, words: str) -> None:
        error = refusal(encode_example(record), sr.SparseFeature("i", "v", "uint8", 3))
        assert error.fields() == {"record": 1, "feature": feature}
        assert words in str(error)
