"""Arrays to messages and back; what hostile messages do is in test_tensor_messages.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import ConfigError, WrongFeatureType
from streamrec.formats import tensor
from streamrec.formats.tensor import array_of_python, parse_tensor, serialize_tensor


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (1, "int32"),
        (2**31, "int64"),
        (-(2**63), "int64"),
        (1.5, "float32"),
        (True, "bool"),
        (1j, "complex128"),
        ([1, 2], "int32"),
        ((1, 2**40), "int64"),
        (range(3), "int32"),
        ([1, 2.5], "float32"),
        ([1.5, 2], "float32"),
        ([2, True], "int32"),
        ([True, False], "bool"),
        ([1j, 1], "complex128"),
        ([], "float32"),
        ([[], []], "float32"),
        ([[1, 2], [3, 4]], "int32"),
        ([[[1.0]], [[2.0]]], "float32"),
        ([np.float64(1), 2.0], "float64"),
        ([np.float16(1)], "float16"),
        ([1, np.float64(2)], "float32"),
        ([np.int64(1), 2], "int32"),
        ([np.array([1, 2]), [3, 4]], "int32"),
        ([np.array([1.0])], "float64"),
    ],
    ids=repr,
)
def test_the_types_that_tensorflow_gives(value: Any, dtype: str) -> None:
    array = array_of_python(value)
    assert array.dtype == dtype
    assert array.shape == np.shape(value)
    np.testing.assert_array_equal(array, np.asarray(value, dtype))
    np.testing.assert_array_equal(parse_tensor(serialize_tensor(value), dtype), array)


def test_strings() -> None:
    assert array_of_python(["a", b"b"]).tolist() == ["a", b"b"]
    assert parse_tensor(serialize_tensor([["a"], [b"b\0"]]), bytes).tolist() == [[b"a"], [b"b\0"]]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([True, 2], "a bool beside an int"),
        ([True, 1.5], "a bool beside a float"),
        (["a", 1], "a str beside an int"),
        ([1, None], "an int beside a NoneType"),
        ([1, 1j], "an int beside a complex"),
        ([1, np.bool_(True)], "an int beside a bool"),
        ({"a": 1}, "hold a dict; give values"),
        ([[1], [2, 3]], "differ in length"),
        ([[1], 2], "differ in length"),
        ([1, [2]], "differ in length"),
        ([[], [1]], "differ in length"),
        (2**63, "beyond int64"),
        (-(2**63) - 1, "beyond int64"),
        (1e39, "beyond float32"),
        ([np.float16(1), 1e6], "beyond float16"),
    ],
    ids=repr,
)
def test_what_is_refused(value: Any, reason: str) -> None:
    with pytest.raises(WrongFeatureType, match=reason):
        serialize_tensor(value)


NUMBERS = "?bhilqBHILQefdFD"
SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    """Arrays of any numbers, by their bytes."""
    dtype = np.dtype(draw(st.sampled_from(NUMBERS)))
    shape = draw(SHAPES)
    size = int(np.prod(shape, dtype=int)) * dtype.itemsize
    octets = draw(st.binary(min_size=size, max_size=size))
    array = np.frombuffer(bytes(b & 1 for b in octets) if dtype.kind == "b" else octets, dtype)
    return array.reshape(shape)


# What tf.io.serialize_tensor of TensorFlow 2.21 gave.
@pytest.mark.parametrize(
    ("array", "data"),
    [
        (np.array(3.5), b'\x08\x02\x12\x00"\x08\x00\x00\x00\x00\x00\x00\x0c@'),
        (np.float64(2), b'\x08\x02\x12\x00"\x08\x00\x00\x00\x00\x00\x00\x00@'),
        (np.zeros((0, 3), np.int16), b"\x08\x05\x12\x06\x12\x00\x12\x02\x08\x03"),
        (np.array([1, 2], ">i4"), b'\x08\x03\x12\x04\x12\x02\x08\x02"\x08\x01\0\0\0\x02\0\0\0'),
        (np.array(b"ab"), b"\x08\x07\x12\x00B\x02ab"),
        (
            np.array([[b"a\0"], [b""]]),
            b"\x08\x07\x12\x08\x12\x02\x08\x02\x12\x02\x08\x01B\x01aB\x00",
        ),
        (np.array(["ü", "a"]), b"\x08\x07\x12\x04\x12\x02\x08\x02B\x02\xc3\xbcB\x01a"),
        (np.array(["a", b"\xff"], object), b"\x08\x07\x12\x04\x12\x02\x08\x02B\x01aB\x01\xff"),
        (np.array([], "S3"), b"\x08\x07\x12\x02\x12\x00"),
        (b"ab", b"\x08\x07\x12\x00B\x02ab"),
        ("ü", b"\x08\x07\x12\x00B\x02\xc3\xbc"),
        (b"a\0", b"\x08\x07\x12\x00B\x02a\0"),
    ],
    ids=repr,
)
def test_the_bytes_are_tensorflow_s(array: Any, data: bytes) -> None:
    assert serialize_tensor(array) == data


@given(array=arrays())
def test_round_trip(array: Any) -> None:
    back = parse_tensor(serialize_tensor(array), array.dtype)
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    assert back.tobytes() == array.tobytes()
    assert back.flags.owndata
    assert back.flags.writeable
    assert back.flags.c_contiguous


@given(strings=st.lists(st.binary(max_size=200), max_size=6))
def test_strings_round_trip(strings: list[bytes]) -> None:
    array = np.empty(len(strings), object)
    array[:] = strings
    back = parse_tensor(serialize_tensor(array), bytes)
    assert back.dtype == object
    assert back.tolist() == strings
    assert back.flags.owndata


@pytest.mark.parametrize("order", ["C", "F"])
def test_the_memory_s_order_does_not_matter(order: Any) -> None:
    array = np.arange(24).reshape(2, 3, 4)
    data = serialize_tensor(np.asarray(array, order=order))
    assert data == serialize_tensor(array)
    assert parse_tensor(serialize_tensor(array[::2, :, ::-2]), int).tolist() == (
        array[::2, :, ::-2].tolist()
    )


def test_a_tensor_of_another_library() -> None:
    class Tensor:
        def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
            return np.array([1, 2], np.int16)

    assert serialize_tensor(Tensor()) == serialize_tensor(np.array([1, 2], np.int16))


@pytest.mark.parametrize("name", ["bfloat16", "float8_e5m2", "float8_e4m3fn", "float8_e4m3fnuz"])
def test_ml_dtypes_round_trip(name: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.array([[0.5, -1.0], [2.0, 0.0]]).astype(getattr(ml_dtypes, name))
    back = parse_tensor(serialize_tensor(array), name)
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)


@pytest.mark.parametrize(
    "data", [bytes, bytearray, memoryview, lambda data: np.array(data, object)]
)
def test_any_bytes_are_parsed(data: Any) -> None:
    message = serialize_tensor(np.array([1.5, 2]))
    assert parse_tensor(data(message), np.float64).tolist() == [1.5, 2.0]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "cannot hold a NoneType; give values of one type"),
        (np.array(["2020"], "M8[D]"), "cannot hold datetime64"),
        (np.array([(1,)], [("a", "i4")]), "cannot hold"),
        (np.array([1, 2], object), "holds bytes and str, not int"),
        (np.array([b"a", None], object), "holds bytes and str, not NoneType"),
        (np.array(["\ud800"], object), "no UTF-8 form"),
    ],
    ids=repr,
)
def test_what_cannot_be_serialized(value: Any, reason: str) -> None:
    with pytest.raises(WrongFeatureType, match=reason):
        serialize_tensor(value)


def test_what_no_message_holds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor, "LARGEST_MESSAGE", 1024 + 40)
    assert len(serialize_tensor(np.zeros(5))) > 40
    with pytest.raises(WrongFeatureType, match=r"takes 48 bytes, more than .* in parts"):
        serialize_tensor(np.zeros(6))
    with pytest.raises(WrongFeatureType, match="more than a message can hold"):
        serialize_tensor(b"x" * 41)


def test_another_type_than_the_tensor_s() -> None:
    data = serialize_tensor(np.zeros(2, np.float32))
    with pytest.raises(WrongFeatureType, match="holds float32, but out_type says float64; give"):
        parse_tensor(data, np.float64)
    with pytest.raises(WrongFeatureType, match="holds float32, but out_type says string"):
        parse_tensor(data, bytes)


@pytest.mark.parametrize("data", ["text", 3, None, [b"x"], np.array([b"x"], object)])
def test_what_is_no_serialized_tensor(data: Any) -> None:
    with pytest.raises(ConfigError, match="data must be one serialized tensor, as bytes, not"):
        parse_tensor(data, int)
