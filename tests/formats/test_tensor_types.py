from __future__ import annotations

import sys
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import ConfigError, DataError
from streamrec.formats.tensor_types import (
    as_tensor_type,
    decode_raw,
    name_of_number,
    type_of_dtype,
)
from streamrec.values.columns import BytesColumn

pytestmark = pytest.mark.both_kernels

NUMBERS = "bhilqBHILQefdFD"


def objects(strings: Any) -> Any:
    array = np.empty(np.shape(strings), object)
    array[...] = strings
    return array


@pytest.mark.parametrize("data", [b"\1\0\2\1", bytearray(b"\1\0\2\1"), memoryview(b"\1\0\2\1")])
def test_one_string(data: Any) -> None:
    array = decode_raw(data, "int16")
    assert array.dtype == np.int16
    assert array.tolist() == [1, 258]


@pytest.mark.parametrize(
    ("data", "values"),
    [
        ([b"\1\0", b"\2\0"], [[1], [2]]),
        ((b"\1\0",), [[1]]),
        (BytesColumn.of([b"\1\0", b"\2\0"]), [[1], [2]]),
        (BytesColumn.of([b"\1\0", b"\2\0", b"\3\0", b"\4\0"], (2,)), [[[1], [2]], [[3], [4]]]),
        (BytesColumn(np.arange(9, dtype=np.uint8), np.array([1, 3, 5])), [[513], [1027]]),
        (objects([[b"\1\0"], [b"\2\0"]]), [[[1]], [[2]]]),
        (objects(b"\1\0"), [1]),
        ([], np.zeros((0, 0)).tolist()),
        ([b"", b""], [[], []]),
        (b"", []),
    ],
    ids=repr,
)
def test_batches(data: Any, values: Any) -> None:
    assert decode_raw(data, "int16").tolist() == values


def test_the_shape_of_an_empty_batch() -> None:
    assert decode_raw([], "int16").shape == (0, 0)
    assert decode_raw([], "int16", (2, 3)).shape == (0, 2, 3)
    assert decode_raw([b"", b""], "int16").shape == (2, 0)


@given(data=st.data(), code=st.sampled_from(NUMBERS), rows=st.integers(1, 3))
def test_what_numpy_reads(data: st.DataObject, code: str, rows: int) -> None:
    size = np.dtype(code).itemsize * data.draw(st.integers(0, 3))
    strings = data.draw(
        st.lists(st.binary(min_size=size, max_size=size), min_size=rows, max_size=rows)
    )
    orders: list[tuple[bool, Literal["<", ">"]]] = [(True, "<"), (False, ">")]
    for little_endian, order in orders:
        array = decode_raw(strings, code, little_endian=little_endian)
        expected = np.frombuffer(b"".join(strings), np.dtype(code).newbyteorder(order))
        assert array.dtype == np.dtype(code)
        assert array.dtype.isnative
        assert array.tobytes() == expected.astype(code).tobytes() or code in "efdFD"
        np.testing.assert_array_equal(array.ravel(), expected)
        assert array.shape == (rows, size // np.dtype(code).itemsize)


@pytest.mark.parametrize(
    ("shape", "full"),
    [
        (None, (2, 12)),
        (12, (2, 12)),
        ((3, 4), (2, 3, 4)),
        ([2, -1], (2, 2, 6)),
        (np.array([4, 3]), (2, 4, 3)),
        ((-1, 3, 1), (2, 4, 3, 1)),
    ],
)
def test_the_shape_is_that_of_one_string(shape: Any, full: Any) -> None:
    column = BytesColumn.of([bytes(range(12)), bytes(range(12, 24))])
    array = decode_raw(column, np.uint8, shape)
    assert array.shape == full
    assert array.ravel().tolist() == list(range(24))


def test_a_scalar_shape() -> None:
    assert decode_raw(b"\5\0", "int16", ()).shape == ()
    assert decode_raw([b"\5\0", b"\6\0"], "int16", ()).tolist() == [5, 6]


def test_the_memory_is_the_caller_s() -> None:
    column = BytesColumn.of([b"\1\0", b"\2\0"])
    array = decode_raw(column, "int16")
    assert array.flags.owndata
    assert array.flags.writeable
    assert array.flags.aligned
    array[:] = 9
    assert column.to_list() == [b"\1\0", b"\2\0"]


def test_bools_are_0_or_1() -> None:
    array = decode_raw(b"\0\1\2\xff", bool)
    assert array.tolist() == [False, True, True, True]
    assert array.view(np.uint8).tolist() == [0, 1, 1, 1]


def test_a_fixed_length_cuts_and_fills() -> None:
    strings = [b"abcde", b"a", b""]
    array = decode_raw(strings, "uint8", fixed_length=3)
    assert array.tolist() == [[97, 98, 99], [97, 0, 0], [0, 0, 0]]
    assert decode_raw(b"ab", "int16", fixed_length=4).tolist() == [25185, 0]
    assert decode_raw([], "int16", fixed_length=4).shape == (0, 2)
    assert decode_raw([b"\0\1"], "int16", little_endian=False, fixed_length=4).tolist() == [[1, 0]]


def test_bfloat16() -> None:
    pytest.importorskip("ml_dtypes")
    assert decode_raw(b"\x80\x3f", "bfloat16").astype(float).tolist() == [1.0]
    assert decode_raw(b"\x3f\x80", "bfloat16", None, False).astype(float).tolist() == [1.0]


@pytest.mark.parametrize(
    ("data", "out_type", "options", "reason"),
    [
        (
            [b"ab", b"ab", b"abc"],
            "uint8",
            {},
            "record 2: the string has 3 bytes, but the first one has 2;",
        ),
        (b"abc", "int16", {}, "3 bytes are not a whole number of int16 values, which have 2 each"),
        (b"abcd", "uint8", {"shape": (3,)}, r"holds 4 numbers, which shape \(3,\) does not take"),
        (b"abcd", "uint8", {"shape": (3, -1)}, "does not take"),
        (b"abcd", "uint8", {"shape": (0, -1)}, "does not take"),
        (b"abcd", "int32", {"fixed_length": 6}, "6 bytes are not a whole number"),
    ],
)
def test_data_that_does_not_fit(data: Any, out_type: Any, options: Any, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        decode_raw(data, out_type, **options)


@pytest.mark.parametrize(
    ("data", "out_type", "options", "reason"),
    [
        (b"a", bytes, {}, "strings have no raw form"),
        (b"a", "qint8", {}, "did you mean"),
        ("text", "uint8", {}, "data must be bytes or a batch of them, not str"),
        (3, "uint8", {}, "not int"),
        ([b"a", "b"], "uint8", {}, "a batch of them, not of str"),
        (np.arange(3), "uint8", {}, "a batch of them, not of int"),
        (b"a", "uint8", {"shape": (-1, -1)}, "of which one may be -1"),
        (b"a", "uint8", {"shape": (-2,)}, "sizes from 0 up"),
        (b"a", "uint8", {"shape": (1.5,)}, "sizes from 0 up"),
        (b"a", "uint8", {"shape": "ab"}, "sizes from 0 up"),
        (b"a", "uint8", {"fixed_length": 0}, "from 1 up, not 0"),
    ],
)
def test_wrong_arguments(data: Any, out_type: Any, options: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        decode_raw(data, out_type, **options)


class Tf:
    """A stand-in for ``tf.DType``."""

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def as_numpy_dtype(self) -> Any:
        raise KeyError(20)  # as TensorFlow's of types that NumPy does not have

    def __repr__(self) -> str:  # a test's name, the same in every process
        return f"tf.{self.name}"


@pytest.mark.parametrize(
    ("out_type", "name"),
    [
        ("float32", "float32"),
        ("float", "float32"),
        ("double", "float64"),
        ("half", "float16"),
        ("<i2", "int16"),
        (">i2", "int16"),
        ("bfloat16", "bfloat16"),
        ("string", "string"),
        ("bytes", "string"),
        ("object", "string"),
        (float, "float32"),
        (int, "int64"),
        (bool, "bool"),
        (bytes, "string"),
        (str, "string"),
        (object, "string"),
        (np.float64, "float64"),
        (np.uint16, "uint16"),
        (np.longlong, "int64"),
        (np.bytes_, "string"),
        (np.dtype("c8"), "complex64"),
        (np.dtype(float), "float64"),
        (np.dtype("S5"), "string"),
        (np.dtype("U5"), "string"),
        (Tf("bfloat16"), "bfloat16"),
        (Tf("string"), "string"),
        (Tf("int32"), "int32"),
    ],
    ids=repr,
)
def test_what_callers_say(out_type: Any, name: str) -> None:
    assert as_tensor_type(out_type).name == name


@pytest.mark.parametrize(
    ("out_type", "hint"),
    [
        ("flaot32", "'flaot32' .* did you mean 'float32'"),
        ("datetime64[s]", "name one such as"),
        (Tf("qint8"), "'qint8' .* did you mean 'int8'"),
        (Tf("resource"), "'resource'"),
        (np.longdouble, "'float128'|'longdouble'"),
        (np.dtype("V4"), "'void32'"),
        (None, "'None'"),
        (list, "'list'"),
        (3, "'3'"),
    ],
    ids=repr,
)
def test_refusals_say_what_is_near(out_type: Any, hint: str) -> None:
    with pytest.raises(ConfigError, match=f"out_type .*{hint}"):
        as_tensor_type(out_type)


@pytest.mark.parametrize("code", "?bhilqBHILQefdFDSUO")
def test_each_of_numpy_s_dtypes_has_a_type(code: str) -> None:
    kind = type_of_dtype(np.dtype(code))
    assert kind is not None
    assert as_tensor_type(np.dtype(code)) == kind
    assert name_of_number(kind.number) == kind.name
    assert kind.dtype == (np.dtype(object) if code in "SUO" else np.dtype(code))


def test_others_have_none() -> None:
    assert type_of_dtype(np.dtype("M8[s]")) is None
    assert type_of_dtype(np.dtype([("a", "i4")])) is None


def test_numbers_of_types_that_numpy_has_not() -> None:
    assert name_of_number(11) == "qint8"
    assert name_of_number(101) == "number 101"


def test_ml_dtypes_are_taken_where_they_are() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for name in ("bfloat16", "float8_e5m2", "float8_e4m3fn"):
        dtype = np.dtype(getattr(ml_dtypes, name))
        assert as_tensor_type(name).dtype == dtype
        assert type_of_dtype(dtype) == as_tensor_type(dtype) == as_tensor_type(name)


def test_ml_dtypes_are_asked_for_where_they_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(ConfigError, match=r"'bfloat16' needs the package ml_dtypes, .* install it"):
        _ = as_tensor_type("bfloat16").dtype
