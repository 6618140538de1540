from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from streamrec.errors import ConfigError
from streamrec.formats.examples.dtypes import (
    HELD_AS,
    RAW,
    Overflow,
    dtype_name,
    narrow,
    numpy_dtype,
    range_of,
)
from streamrec.kernel.contract import DataType

INTEGERS = [name for name, held in HELD_AS.items() if held is DataType.INT64]


class DType:
    """A stand-in for ``tf.DType``."""

    def __init__(self, name: str, as_numpy_dtype: Any) -> None:
        self.name = name
        self._as_numpy_dtype = as_numpy_dtype

    @property
    def as_numpy_dtype(self) -> Any:
        if self._as_numpy_dtype is None:
            raise KeyError(20)  # as TensorFlow's of types that NumPy does not have
        return self._as_numpy_dtype


INT64, STRING = DType("int64", np.int64), DType("string", np.object_)


class TorchDType:
    """A stand-in for ``torch.dtype``."""

    def __repr__(self) -> str:
        return "torch.float32"


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
        (TorchDType(), "float32"),
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
        (bool, "bool"),
        (np.bool_, "bool"),
        ("uint8", "uint8"),
        (np.uint64, "uint64"),
        (np.float16, "float16"),
        (np.float64, "float64"),
    ],
)
def test_dtypes(dtype: Any, name: str) -> None:
    assert dtype_name(dtype) == name


@pytest.mark.parametrize(
    ("dtype", "hint"),
    [
        ("in64", "did you mean 'int64'"),
        ("float", "did you mean 'float32'"),
        ("uint9", "did you mean 'uint8'"),
        (complex, "int64, float32 and bytes"),
        (np.datetime64, "there are int64, float32"),
        (None, "int64, float32 and bytes"),
        (object(), "int64, float32 and bytes"),
        (DType("resource", None), "the dtype 'resource'"),
        (list, "the dtype 'list'"),
    ],
)
def test_other_dtypes_are_refused(dtype: Any, hint: str) -> None:
    with pytest.raises(ConfigError, match=hint):
        dtype_name(dtype)


def test_raw_bytes_hold_other_dtypes() -> None:
    assert dtype_name(np.complex128, raw=True) == "complex128"
    assert {dtype_name(name, raw=True) for name in RAW if name != "bfloat16"} == {*RAW} - {
        "bfloat16"
    }
    with pytest.raises(ConfigError, match="bytes decode to numbers; there are int64"):
        dtype_name(bytes, raw=True)


def test_bfloat16_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(ConfigError, match="pip install -U ml_dtypes, or use 'float16'"):
        dtype_name("bfloat16")


def test_bfloat16_where_it_is_installed() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    assert dtype_name(ml_dtypes.bfloat16) == "bfloat16"
    assert range_of("bfloat16")[1] == float(ml_dtypes.finfo(ml_dtypes.bfloat16).max)
    values = np.array([1.00390625, -0.5, np.inf, range_of("bfloat16")[1]], np.float32)
    assert narrow(values, "bfloat16").astype(np.float32).tolist()[:3] == [1.0, -0.5, np.inf]
    with pytest.raises(Overflow):
        narrow(np.array([np.finfo(np.float32).max]), "bfloat16")


def test_ranges() -> None:
    assert range_of("bool") == (0, 1)
    assert range_of("int8") == (-128, 127)
    assert range_of("float16") == (-65504.0, 65504.0)


@given(name=st.sampled_from(INTEGERS), values=st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_integers(name: str, values: list[int]) -> None:
    least, greatest = range_of(name)
    wrong = [index for index, value in enumerate(values) if not least <= value <= greatest]
    if wrong:
        with pytest.raises(Overflow) as caught:
            narrow(np.array(values, np.int64), name)
        assert (caught.value.index, caught.value.value) == (wrong[0], values[wrong[0]])
    else:
        narrowed = narrow(np.array(values, np.int64), name)
        assert narrowed.dtype == numpy_dtype(name)
        assert narrowed.tolist() == values


@pytest.mark.parametrize("name", INTEGERS)
def test_the_edges_of_integers(name: str) -> None:
    least, greatest = range_of(name)
    edges = [least, min(greatest, 2**63 - 1)]
    assert narrow(np.array(edges, np.int64), name).tolist() == edges
    beyond = [value for value in (least - 1, greatest + 1) if -(2**63) <= value < 2**63]
    for value in beyond:
        with pytest.raises(Overflow):
            narrow(np.array([*edges, value], np.int64), name)


@given(values=npst.arrays(np.float32, st.integers(0, 6)))
def test_float16(values: Any) -> None:
    with np.errstate(over="ignore"):
        wanted = values.astype(np.float16)
    wrong = np.isinf(wanted) & np.isfinite(values)
    if wrong.any():
        with pytest.raises(Overflow) as caught:
            narrow(values, "float16")
        assert caught.value.index == int(wrong.argmax())
    else:
        np.testing.assert_array_equal(narrow(values, "float16"), wanted)


@given(values=npst.arrays(np.float32, st.integers(0, 6)))
def test_float64_holds_all(values: Any) -> None:
    np.testing.assert_array_equal(narrow(values, "float64"), values.astype(np.float64))


def test_the_same_dtype_is_no_copy() -> None:
    values = np.arange(3)
    assert narrow(values, "int64") is values


@pytest.mark.parametrize("wrong", [-129, 128])
def test_the_first_value_beyond_a_type_is_named_and_not_its_bounds(wrong: int) -> None:
    with pytest.raises(Overflow) as caught:
        narrow(np.array([-128, 127, wrong, wrong], np.int64), "int8")
    assert caught.value.args == (2, wrong)
