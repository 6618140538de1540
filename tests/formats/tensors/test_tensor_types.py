from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from streamrec.errors import ConfigError
from streamrec.formats.tensors.tensor_types import as_tensor_type, name_of_number, type_of_dtype


class Tf:
    """A stand-in for ``tf.DType``."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.as_numpy_dtype = object

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
