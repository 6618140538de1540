from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from streamrec.values.columns import Arrays, BytesColumn, Ragged, Sparse
from streamrec.values.given_columns import as_delivered, fault_of, is_number

NUMBERS = np.arange(3)
TEXT = np.zeros(3, np.uint8)
SHAPES = np.array([[1], [2]])


def splits(*numbers: int) -> np.ndarray[Any, Any]:
    return np.array(numbers)


@pytest.mark.parametrize("name", ["bool", "int8", "uint64", "float16", "float64", "complex128"])
def test_numbers(name: str) -> None:
    assert is_number(np.dtype(name))
    assert is_number(np.dtype(name).newbyteorder(">"))


def test_those_of_another_package() -> None:
    assert is_number(np.dtype(ml_dtypes.bfloat16))
    assert is_number(np.dtype(ml_dtypes.float8_e4m3fn))


@pytest.mark.parametrize("dtype", [object, "U3", "S3", "M8[s]", "V4", [("a", "i4")], "g", "G"])
def test_what_is_no_number(dtype: Any) -> None:
    assert not is_number(np.dtype(dtype))


@pytest.mark.parametrize(
    "column",
    [
        NUMBERS,
        Ragged(NUMBERS, splits(0, 1, 1, 3)),
        Ragged(NUMBERS, splits(1, 2)),  # a part of a longer column
        Ragged(Ragged(NUMBERS, splits(0, 3)), splits(0, 0, 1)),
        BytesColumn(TEXT, splits(0, 1, 3)),
        BytesColumn(TEXT, splits(0), (0,), 2),
        Arrays(NUMBERS, splits(0, 1, 3), SHAPES),
        Sparse(np.array([[0, 1], [1, 0]]), NUMBERS[:2], (2, 2)),
        Sparse(np.zeros((0, 2), np.int64), NUMBERS[:0], (2, 2)),
    ],
)
def test_columns_without_fault(column: Any) -> None:
    assert fault_of(column) is None


@pytest.mark.parametrize(
    ("column", "fault"),
    [
        (Ragged(NUMBERS, splits(0, 4)), "row_splits"),
        (Ragged(NUMBERS, splits(0, 2, 1)), "row_splits"),
        (Ragged(NUMBERS, splits(-1, 1)), "row_splits"),
        (Ragged(NUMBERS, splits()), "row_splits"),
        (Ragged(NUMBERS, np.zeros(2)), "row_splits"),  # type: ignore[arg-type]
        (Ragged(NUMBERS, [0, 1]), "row_splits"),  # type: ignore[arg-type]
        (Ragged(Ragged(NUMBERS, splits(0, 9)), splits(0, 1)), "row_splits"),
        (BytesColumn(TEXT, splits(0, 4)), "offsets"),
        (Arrays(NUMBERS, splits(0, 2, 3), SHAPES), "offsets"),
        (Arrays(NUMBERS, splits(0, 1, 3), -SHAPES), "offsets"),
        (Sparse(np.array([[0, 2]]), NUMBERS[:1], (2, 2)), "indices"),
        (Sparse(np.array([[0, 1]]), NUMBERS, (2, 2)), "indices"),
    ],
)
def test_columns_that_would_be_read_beyond_their_end(column: Any, fault: str) -> None:
    assert str(fault_of(column)).startswith(fault)


@pytest.mark.parametrize(
    "array",
    [
        np.broadcast_to(np.float32(1), (2, 3)),
        np.ones(3, ">f4"),
        np.ones((2, 4))[:, ::2],
        np.asfortranarray(np.ones((2, 3))),
        np.ones((2, 2)).view(np.recarray),
    ],
)
def test_an_array_becomes_one_as_batches_have_it(array: Any) -> None:
    plain = as_delivered(array)
    assert type(plain) is np.ndarray
    assert plain.flags.carray
    assert plain.dtype.isnative
    assert plain.tolist() == array.tolist()


def test_so_do_the_arrays_of_a_column() -> None:
    given = Ragged(np.broadcast_to(1, 3), np.array([0, 1, 3], np.int32))
    column = as_delivered(given)
    assert column.to_list() == [[1], [1, 1]]
    assert isinstance(column.values, np.ndarray)
    assert column.values.flags.writeable
    assert column.row_splits.dtype == np.int64


def test_what_is_so_already_is_not_copied() -> None:
    for column in (NUMBERS, Ragged(NUMBERS, splits(0, 1)), BytesColumn(TEXT, splits(0, 3))):
        assert as_delivered(column) is column
