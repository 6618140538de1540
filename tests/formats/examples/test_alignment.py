"""Every column that is parsed begins at a multiple of 64 bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamrec as sr
from streamrec.values.aligned import ALIGNMENT
from streamrec.values.columns import Arrays, BytesColumn, Ragged, Sparse

pytestmark = pytest.mark.both_kernels

ROW = st.fixed_dictionaries(
    {
        "numbers": st.lists(st.integers(0, 100), max_size=40),
        "floats": st.lists(st.floats(-9, 9, width=16), max_size=40),
        "strings": st.lists(st.binary(max_size=9), max_size=5),
    }
)
COLUMN: dict[str, Any] = {
    "fixed": sr.FixedLenFeature((3,), "int64"),
    "narrow": sr.FixedLenFeature((3,), "int8"),
    "half": sr.FixedLenFeature((), "float16", 0.5),
    "raw": sr.FixedLenFeature((2, 2), "uint8", raw=True),
    "name": sr.FixedLenFeature((), bytes),
    "numbers": sr.VarLenFeature("int64"),
    "narrow_numbers": sr.VarLenFeature("int16"),
    "floats": sr.VarLenFeature("float32"),
    "strings": sr.VarLenFeature(bytes),
    "padded": sr.FixedLenSequenceFeature((), "int64", allow_missing=True, default_value=-1),
    "padded_strings": sr.FixedLenSequenceFeature(
        (), bytes, allow_missing=True, default_value="none"
    ),
    "pairs": sr.RaggedFeature("int64", "even", [sr.RaggedFeature.UniformRowLength(2)]),
    "sparse": sr.SparseFeature("numbers", "numbers", "int16", 101),
    "sorted": sr.SparseFeature("numbers", "numbers", "int64", 101, already_sorted=True),
    "picture": sr.Image((2, 2)),
    "pictures": sr.Image(),
}
PICTURE = sr.encode_png(np.zeros((2, 2, 3), np.uint8))


def record(row: dict[str, list[Any]]) -> bytes:
    copies = {"narrow_numbers": row["numbers"], "even": row["numbers"] * 2}
    padded = {"padded": row["numbers"], "padded_strings": row["strings"]}
    lists = {key: values for key, values in {**row, **copies, **padded}.items() if values}
    pictures = {"picture": PICTURE, "pictures": PICTURE}
    fixed = {"fixed": [1, 2, 3], "narrow": [1, 2, 3], "raw": b"abcd", "name": b"x"}
    return sr.encode_example({**fixed, **pictures, **lists})


def arrays_of(column: Any) -> list[np.ndarray[Any, Any]]:
    """Return the arrays that hold a column's values."""
    match column:
        case BytesColumn() | Arrays() | Ragged():
            return arrays_of(column.values)
        case Sparse():
            return [column.indices, *arrays_of(column.values)]
    return [column]


def unaligned(columns: Any) -> list[str]:
    return [
        name
        for name, column in columns.items()
        for array in arrays_of(column)
        if array.size and array.ctypes.data % ALIGNMENT
    ]


@given(
    rows=st.lists(ROW, min_size=1, max_size=30),
    names=st.sets(st.sampled_from([*COLUMN]), min_size=1),
)
def test_columns_of_examples(rows: list[dict[str, list[Any]]], names: set[str]) -> None:
    specs = {name: COLUMN[name] for name in names}
    columns = sr.parse_example([record(row) for row in rows], specs)
    assert unaligned(columns) == []
    assert all(array.flags.writeable for column in columns.values() for array in arrays_of(column))


@given(rows=st.lists(st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=4), min_size=1))
def test_columns_of_sequence_examples(rows: list[list[list[int]]]) -> None:
    records = [
        sr.encode_sequence_example({"c": 1}, {"v": row, "w": [[1]] * len(row)}) for row in rows
    ]
    context, sequences, lengths = sr.parse_sequence_example(
        records,
        {"c": sr.FixedLenFeature((), "int32")},
        {"v": sr.VarLenFeature("int64"), "w": sr.FixedLenSequenceFeature((), "int64", True)},
    )
    assert unaligned({**context, **sequences, "lengths": lengths["w"]}) == []


def test_columns_beside_large_ones() -> None:
    rows = 50
    specs = {
        "small": sr.FixedLenFeature((), "int64"),
        "large": sr.FixedLenFeature((1000,), "int64"),
        "last": sr.FixedLenFeature((), "float32"),
    }
    columns = {"small": np.arange(rows), "large": np.ones((rows, 1000), np.int64)}
    last = {"last": np.arange(rows, dtype=np.float32)}
    found = sr.parse_example(sr.encode_examples({**columns, **last}), specs)
    assert unaligned(found) == []
    for name, values in {**columns, **last}.items():
        np.testing.assert_array_equal(found[name], values)


def test_a_column_that_is_kept_keeps_little_of_the_others() -> None:
    specs = {f"{number}": sr.FixedLenFeature((1000,), "int64") for number in range(40)}
    found = sr.parse_example([sr.encode_example(dict.fromkeys(specs, [1] * 1000))] * 5, specs)
    assert unaligned(found) == []
    kept: Any = found["0"]
    while isinstance(kept.base, np.ndarray):
        kept = kept.base
    assert kept.nbytes < 70_000
    assert all((column == 1).all() for column in found.values())
