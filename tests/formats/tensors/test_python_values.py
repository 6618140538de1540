from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from streamrec.errors import WrongFeatureType
from streamrec.formats.tensors.python_values import array_of_python
from streamrec.formats.tensors.tensor import parse_tensor, serialize_tensor


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
    ],
    ids=repr,
)
def test_what_is_refused(value: Any, reason: str) -> None:
    with pytest.raises(WrongFeatureType, match=reason):
        serialize_tensor(value)
