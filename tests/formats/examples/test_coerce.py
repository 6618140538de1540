"""Conversions that test_example.py leaves out: values of this package and of ml_dtypes."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

import streamrec as sr
from streamrec.errors import WrongFeatureType
from streamrec.formats.examples.coerce import (
    as_array,
    as_feature,
    as_float32,
    as_int64,
    frame_bytes,
    is_floats,
    is_integers,
    varint,
)
from streamrec.formats.examples.feature_types import FeatureTypes
from streamrec.values.columns import BytesColumn, Ragged


@pytest.mark.parametrize(
    ("value", "octets"),
    [
        (0, b"\0"),
        (127, b"\x7f"),
        (128, b"\x80\1"),
        (300, b"\xac\2"),
        (2**35, bytes([128] * 5) + b"\1"),
    ],
)
def test_a_varint(value: int, octets: bytes) -> None:
    assert varint(value) == octets


def test_framed() -> None:
    assert frame_bytes(b"") == b"\0"
    assert frame_bytes(b"x" * 200) == b"\xc8\1" + b"x" * 200


def held(value: Any) -> tuple[str | None, list[Any]]:
    feature = as_feature(value)
    kind = feature.WhichOneof("kind")
    return kind, list(getattr(feature, kind).value) if kind else []


def ragged(values: Any, *splits: int) -> Ragged:
    return Ragged(values, np.array(splits, np.int64))


@pytest.mark.skipif(not hasattr(np.dtypes, "StringDType"), reason="NumPy before 2 has no such type")
def test_strings_of_numpy_2() -> None:
    rows = np.array([["a", "bc"], ["", "ü"]], np.dtypes.StringDType())
    assert held(rows) == ("bytes_list", [b"a", b"bc", b"", "ü".encode()])
    for column in (rows, rows[0], rows[:0]):
        each = [sr.encode_example({"x": row}) for row in column]
        assert sr.encode_examples({"x": column}).to_list() == each
    missing = np.array(["a", None], np.dtypes.StringDType(na_object=None))
    with pytest.raises(WrongFeatureType, match="None is not a value"):
        sr.encode_example({"x": missing})


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (BytesColumn.of([b"a", b"", b"c\0"]), ("bytes_list", [b"a", b"", b"c\0"])),
        (BytesColumn.of([b"a", b"b", b"c", b"d"], (2,)), ("bytes_list", [b"a", b"b", b"c", b"d"])),
        (BytesColumn.of([]), (None, [])),
        (ragged(np.arange(9), 2, 4, 4, 7), ("int64_list", [2, 3, 4, 5, 6])),
        (
            ragged(ragged(np.arange(9.0), 0, 1, 5, 9), 1, 2, 3),
            ("float_list", [1, 2, 3, 4, 5, 6, 7, 8]),
        ),
        (ragged(BytesColumn.of([b"a", b"b", b"c"]), 1, 2, 3), ("bytes_list", [b"b", b"c"])),
        (ragged(np.array([], np.int64), 0), ("int64_list", [])),
    ],
)
def test_columns_are_stored_flat(value: Any, expected: Any) -> None:
    assert held(value) == expected


def test_a_nan_keeps_its_bits() -> None:
    octets = struct.pack("<2I", 0x7FA00001, 0xFFC12345)
    feature = as_feature(np.frombuffer(octets, np.float32))
    assert feature.SerializeToString().endswith(octets)


def test_other_byte_orders() -> None:
    assert held(np.array([1, 300], ">i4")) == ("int64_list", [1, 300])
    assert held(np.array([0.5, -2], ">f8")) == ("float_list", [0.5, -2.0])
    assert held(np.array([0.5, -2], ">f4")) == ("float_list", [0.5, -2.0])


def test_floats_are_rounded_to_the_nearest() -> None:
    assert as_float32(np.array([1 + 2**-24, 1 + 2**-23])).tolist() == [1.0, 1 + 2**-23]
    largest = float(np.finfo(np.float32).max)
    assert as_float32(np.array([largest])).tolist() == [largest]
    with pytest.raises(OverflowError, match="range of float32"):
        as_float32(np.array([0.0, largest * (1 + 2**-24)]))


def test_integers_are_not_wrapped() -> None:
    assert as_int64(np.array([2**63 - 1], np.uint64)).tolist() == [2**63 - 1]
    assert as_int64(np.array([True, False])).tolist() == [1, 0]
    with pytest.raises(OverflowError, match="range of int64"):
        as_int64(np.array([1, 2**63], np.uint64))


@pytest.mark.parametrize("dtype", ["V4", "datetime64[s]", "c8", "U1", "O", [("a", "i4")]])
def test_neither_integers_nor_floats(dtype: Any) -> None:
    assert not is_integers(np.dtype(dtype))
    assert not is_floats(np.dtype(dtype))


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_the_floats_of_ml_dtypes(name: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.array([0.5, -1.0, 2.0]).astype(getattr(ml_dtypes, name))
    assert held(array) == held(array[:]) == ("float_list", [0.5, -1.0, 2.0])


def test_the_integers_of_ml_dtypes() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    assert held(np.array([-3, 7]).astype(ml_dtypes.int4)) == ("int64_list", [-3, 7])


def test_a_tensor_that_gives_no_array_but_a_scalar() -> None:
    class Scalar:
        def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
            return np.int16(5)

        def numpy(self) -> Any:
            return np.int16(5)

    assert as_array(Scalar()) == 5
    assert held(Scalar()) == ("int64_list", [5])
    del Scalar.numpy
    with pytest.raises(ValueError, match="__array__"):
        as_array(Scalar())


class TestWhatIsMissing:
    """It has no value, and NumPy would give one."""

    def test_masked_arrays(self) -> None:
        masked = np.ma.array([1, 2], mask=[False, True])
        for value in (masked, masked[1], np.ma.array([[1.5]], mask=True)):
            with pytest.raises(WrongFeatureType, match="a value is missing in it"):
                sr.encode_example({"x": value})
            with pytest.raises(WrongFeatureType, match="a value is missing in it"):
                FeatureTypes().encode({"x": value}, 0)
        with pytest.raises(WrongFeatureType) as caught:
            sr.encode_examples({"x": masked})
        assert caught.value.record == 1
        whole = np.ma.array([1, 2], mask=False)
        assert sr.encode_example({"x": whole}) == sr.encode_example({"x": [1, 2]})

    def test_series_and_arrays_of_others(self) -> None:
        pandas = pytest.importorskip("pandas")
        polars = pytest.importorskip("polars")
        pyarrow = pytest.importorskip("pyarrow")
        some = [16777217, None]
        for value in (
            pandas.Series(some, dtype="Int64"),
            pandas.Series(["a", None]),
            pandas.Series(pandas.Categorical(["a", None])),
            polars.Series(some),
            pyarrow.array(some),
            pyarrow.chunked_array([some]),
        ):
            with pytest.raises(WrongFeatureType, match="a value is missing in it"):
                sr.encode_example({"x": value})
            with pytest.raises(WrongFeatureType) as caught:
                sr.encode_examples({"x": value})
            assert caught.value.record == 1
        for value in (pandas.Series([7, 8], dtype="Int64"), polars.Series([7, 8])):
            assert sr.encode_example({"x": value}) == sr.encode_example({"x": [7, 8]})
        number = sr.encode_example({"x": pandas.Series([1.5, None])})  # NaN is what it holds
        assert number == sr.encode_example({"x": [1.5, float("nan")]})


@pytest.mark.parametrize("as_value", [lambda tensor: tensor, list, lambda tensor: [tensor]])
def test_tensors_with_gradients(as_value: Any) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    value = as_value(torch.tensor([0.5, 2.0], requires_grad=True))
    assert sr.encode_example({"x": value}) == sr.encode_example({"x": [0.5, 2.0]})
    assert sr.parse_tensor(sr.serialize_tensor(value), "float32").ravel().tolist() == [0.5, 2.0]


def test_tensors_that_numpy_does_not_have() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    words = r"convert it before, as with float\(\) or"
    for value in (torch.ones(2, dtype=torch.bfloat16), torch.eye(2).to_sparse()):
        given: dict[str, Any] = {"x": value}
        with pytest.raises(WrongFeatureType, match=words):
            sr.encode_example(given)
        with pytest.raises(WrongFeatureType, match=words):
            sr.encode_examples(given)
        with pytest.raises(WrongFeatureType, match=words):
            sr.serialize_tensor(value)


def test_what_pandas_has_for_no_value_and_for_times() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    for value in (pandas.NA, [1, pandas.NA], pandas.NaT):
        with pytest.raises(
            WrongFeatureType, match="is not a value; leave the feature out where it"
        ):
            sr.encode_example({"x": value})
    for value in (pandas.Timestamp("2020-01-01"), [pandas.Timedelta("1s")]):
        with pytest.raises(WrongFeatureType, match=r"feature x: .* has no type for times; give a"):
            sr.encode_example({"x": value})
    with pytest.raises(WrongFeatureType, match="an object is not a value of a feature"):
        sr.encode_example({"x": object()})


def test_whole_numbers_beside_floats_keep_their_digits() -> None:
    for values in ([16777217, 0.5], (0.5, -(2**53) - 1), [2**64 + 1, 0.5]):
        with pytest.raises(WrongFeatureType, match="would lose digits as float32"):
            sr.encode_example({"x": values})
        with pytest.raises(WrongFeatureType, match="would lose digits as float32"):
            FeatureTypes().encode({"x": values}, 0)
        with pytest.raises(WrongFeatureType, match="would lose digits as float32"):
            sr.encode_examples({"x": [values]})
    assert sr.encode_example({"x": [16777218, 0.5]}) == sr.encode_example({"x": [16777218.0, 0.5]})
