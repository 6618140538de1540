from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import ConfigError, DataError
from streamrec.formats.tensors.raw import decode_raw
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
