"""Messages of other programs, valid and invalid."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import DataError
from streamrec.formats.tensor import (
    _PROTO,
    LARGEST_REPETITION,
    parse_tensor,
    serialize_tensor,
)
from streamrec.formats.tensor_types import as_tensor_type

TYPES = ["float32", "int8", "uint64", "bool", "complex64", "float16", "string", "int64"]


def message(out_type: Any, shape: Any = (), **fields: Any) -> bytes:
    proto = _PROTO(dtype=as_tensor_type(out_type).number, **fields)
    for size in shape:
        proto.tensor_shape.dim.add(size=size)
    return bytes(proto.SerializeToString())


@pytest.mark.parametrize(
    ("out_type", "fields", "values"),
    [
        ("float32", {"float_val": [1, 2]}, [1.0, 2, 2]),
        ("float32", {"float_val": [1, 2, 3]}, [1.0, 2, 3]),
        ("float32", {}, [0.0, 0, 0]),
        ("float64", {"double_val": [0.1]}, [0.1, 0.1, 0.1]),
        ("int32", {"int_val": [-1, 2**31 - 1]}, [-1, 2**31 - 1, 2**31 - 1]),
        ("uint8", {"int_val": [255]}, [255, 255, 255]),
        ("int8", {"int_val": [-128, 127]}, [-128, 127, 127]),
        ("int16", {"int_val": [-(2**15)]}, [-(2**15)] * 3),
        ("uint16", {"int_val": [65535]}, [65535] * 3),
        ("int64", {"int64_val": [-5, 2**62]}, [-5, 2**62, 2**62]),
        ("uint32", {"uint32_val": [2**32 - 1]}, [2**32 - 1] * 3),
        ("uint64", {"uint64_val": [2**64 - 1]}, [2**64 - 1] * 3),
        ("bool", {"bool_val": [True, False]}, [True, False, False]),
        ("float16", {"half_val": [0x3C00, 0xBC00]}, [1.0, -1, -1]),
        ("complex64", {"scomplex_val": [1, 2, 3, 4]}, [1 + 2j, 3 + 4j, 3 + 4j]),
        ("complex128", {"dcomplex_val": [1, 2]}, [1 + 2j] * 3),
        ("string", {"string_val": [b"a", b"b\0"]}, [b"a", b"b\0", b"b\0"]),
        ("string", {}, [b"", b"", b""]),
        ("string", {"tensor_content": b"\1\0\2abb"}, [b"a", b"", b"bb"]),
        ("string", {"tensor_content": b"\x81\0\0\0a"}, [b"a", b"", b""]),
        ("int16", {"tensor_content": b"\1\0\2\0\3\0"}, [1, 2, 3]),
        ("bool", {"tensor_content": b"\1\0\1"}, [True, False, True]),
        ("float32", {"float_val": [1], "version_number": 7}, [1.0, 1, 1]),
    ],
)
def test_every_form(out_type: Any, fields: Any, values: Any) -> None:
    array = parse_tensor(message(out_type, (3,), **fields), out_type)
    assert array.dtype == as_tensor_type(out_type).dtype
    assert array.tolist() == values
    assert array.flags.owndata
    assert array.flags.writeable


def test_the_floats_of_ml_dtypes() -> None:
    pytest.importorskip("ml_dtypes")
    data = message("bfloat16", (2,), half_val=[0x3F80])
    assert parse_tensor(data, "bfloat16").astype(float).tolist() == [1.0, 1.0]
    data = message("float8_e5m2", (3,), float8_val=b"\x3c\xbc")
    assert parse_tensor(data, "float8_e5m2").astype(float).tolist() == [1.0, -1.0, -1.0]


def test_a_message_without_a_shape_is_a_scalar() -> None:
    assert parse_tensor(b"\x08\x01", "float32").shape == ()
    assert parse_tensor(message("float32", (), float_val=[3]), "float32") == 3.0


def test_unpacked_lists_and_names_of_dimensions() -> None:
    data = message("int32", (2,)) + b"\x38\x05\x38\x06"
    assert parse_tensor(data, "int32").tolist() == [5, 6]
    named = b"\x08\x03\x12\x07\x12\x05\x08\x01\x12\x01n\x38\x07"
    assert parse_tensor(named, "int32").tolist() == [7]


@pytest.mark.parametrize(
    ("out_type", "shape", "fields", "reason"),
    [
        (
            "float32",
            (1,),
            {"tensor_content": b"abc"},
            r"\(1,\) of float32 takes 4 bytes, but it has 3",
        ),
        ("float32", (0,), {"tensor_content": b"abcd"}, "takes 0 bytes, but it has 4"),
        ("float32", (2**62,), {"tensor_content": b"abcd"}, "but it has 4"),
        ("float32", (2**62, 2**62), {"tensor_content": b"abcd"}, "but it has 4"),
        ("float32", (-1,), {"float_val": [1]}, "unknown dimensions"),
        ("float32", (0, -1), {}, "unknown dimensions"),
        ("float32", (2**62, 2**62, 0), {}, "there is no array of the shape"),
        ("float32", (2,), {"float_val": [1, 2, 3]}, r"\(2,\) takes 2 values, but it has 3"),
        ("float32", (0,), {"float_val": [1]}, "takes 0 values, but it has 1"),
        ("float32", (1,), {"int_val": [3]}, "float32 in float_val, but also values in int_val"),
        (
            "float32",
            (1,),
            {"tensor_content": b"abcd", "float_val": [1]},
            "also values in float_val",
        ),
        ("float32", (1,), {"resource_handle_val": [b""]}, "also values in resource_handle_val"),
        ("uint8", (1,), {"int_val": [256]}, "beyond the range of uint8"),
        ("uint8", (1,), {"int_val": [-1]}, "beyond the range of uint8"),
        ("int8", (2,), {"int_val": [1, 200]}, "beyond the range of int8"),
        ("float16", (1,), {"half_val": [65536]}, "a value in half_val is beyond"),
        ("float16", (1,), {"half_val": [-1]}, "a value in half_val is beyond"),
        ("complex64", (1,), {"scomplex_val": [1]}, "no imaginary part"),
        ("bool", (2,), {"tensor_content": b"\1\2"}, "a bool is neither 0 nor 1"),
        ("string", (2,), {"tensor_content": b"\1"}, "1 bytes cannot hold 2 strings"),
        ("string", (2**60,), {"tensor_content": b"\1"}, "cannot hold"),
        (
            "string",
            (2,),
            {"tensor_content": b"\1\2abbc"},
            "2 strings should have 3 bytes, but there are 4",
        ),
        (
            "string",
            (2,),
            {"tensor_content": b"\1\2ab"},
            "2 strings should have 3 bytes, but there are 2",
        ),
        ("string", (1,), {"tensor_content": b"\xff" * 9}, "length does not end"),
        ("string", (1,), {"tensor_content": b"\xff"}, "length does not end"),
        (
            "string",
            (0,),
            {"tensor_content": b"\0"},
            "0 strings should have 0 bytes, but there are 1",
        ),
    ],
)
def test_refusals(out_type: Any, shape: Any, fields: Any, reason: str) -> None:
    with pytest.raises(DataError, match=f"cannot be parsed: .*{reason}.*; check what wrote it"):
        parse_tensor(message(out_type, shape, **fields), out_type)


@pytest.mark.parametrize("data", [b"\xff", b"text", b"\x08\x01\x12"])
def test_what_is_no_message(data: bytes) -> None:
    with pytest.raises(DataError, match=r"not a serialized tf\.TensorProto"):
        parse_tensor(data, "float32")


@pytest.mark.parametrize(("number", "name"), [(0, "number 0"), (11, "qint8"), (20, "resource")])
def test_types_that_numpy_has_not(number: int, name: str) -> None:
    with pytest.raises(DataError, match=f"the tensor holds {name}, but out_type says float32"):
        parse_tensor(_PROTO(dtype=number).SerializeToString(), "float32")


def test_an_unknown_rank_is_refused() -> None:
    with pytest.raises(DataError, match="its number of dimensions is unknown"):
        parse_tensor(b"\x08\x01\x12\x02\x18\x01", "float32")


class TestRepetition:
    def test_it_is_bounded(self) -> None:
        data = message("float64", (2**20,), double_val=[1.5])
        assert parse_tensor(data, "float64", max_repeated_bytes=2**23).nbytes == 2**23
        with pytest.raises(DataError, match="1 values would be repeated to 8388608 bytes, more"):
            parse_tensor(data, "float64", max_repeated_bytes=2**23 - 1)

    @pytest.mark.parametrize("out_type", TYPES)
    def test_by_default(self, out_type: Any) -> None:
        data = message(out_type, (LARGEST_REPETITION + 1,))
        with pytest.raises(DataError, match="max_repeated_bytes=67108864; raise that if"):
            parse_tensor(data, out_type)

    def test_values_that_are_all_there_are_not_repeated(self) -> None:
        data = message("int64", (3,), int64_val=[1, 2, 3])
        assert parse_tensor(data, "int64", max_repeated_bytes=0).tolist() == [1, 2, 3]
        data = message("int64", (0,))
        assert parse_tensor(data, "int64", max_repeated_bytes=0).tolist() == []


LIMIT = 1 << 16
SHAPES = st.lists(st.integers(-1, 4) | st.sampled_from([2**20, 2**31, 2**62, -(2**63)]), max_size=4)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "tensor_content": st.binary(max_size=20),
        "float_val": st.lists(st.floats(width=32), max_size=4),
        "int_val": st.lists(st.integers(-(2**31), 2**31 - 1), max_size=4),
        "half_val": st.lists(st.integers(-(2**31), 2**31 - 1), max_size=4),
        "string_val": st.lists(st.binary(max_size=4), max_size=4),
        "scomplex_val": st.lists(st.floats(width=32), max_size=4),
        "bool_val": st.lists(st.booleans(), max_size=4),
    },
)


def parses(data: bytes, out_type: str) -> None:
    """Parse it or refuse it, in memory that is in proportion to it."""
    tracemalloc.start()
    try:
        array = parse_tensor(data, out_type, max_repeated_bytes=LIMIT)
        assert array.nbytes <= max(LIMIT, 16 * len(data))
    except DataError as error:
        assert str(error)
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < LIMIT + 200 * len(data) + (1 << 16)


class TestHostile:
    @given(data=st.binary(max_size=60), out_type=st.sampled_from(TYPES))
    def test_any_bytes(self, data: bytes, out_type: str) -> None:
        parses(data, out_type)

    @given(out_type=st.sampled_from(TYPES), shape=SHAPES, fields=FIELDS)
    def test_any_message(self, out_type: str, shape: list[int], fields: dict[str, Any]) -> None:
        parses(message(out_type, shape, **fields), out_type)

    @given(
        places=st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 255)), max_size=3),
        end=st.integers(0, 60),
        array=st.sampled_from(
            [np.arange(4.0), np.zeros((2, 3), np.int8), np.array([b"a", b"bcd"]), np.array(True)]
        ),
    )
    def test_mutations(self, places: list[tuple[int, int]], end: int, array: Any) -> None:
        data = bytearray(serialize_tensor(array))
        for place, octet in places:
            data[place % len(data)] = octet
        parses(bytes(data[:end]), "string" if array.dtype.kind == "S" else array.dtype.name)
