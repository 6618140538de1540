from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import streamrec as sr
from streamrec.errors import WrongFeatureType
from streamrec.shard_tools.sources.table_columns import (
    RowError,
    TableRows,
    as_value,
    encode_table,
    join_types,
    type_of,
)


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        ("9007199254740993", "int64", 9007199254740993),
        (2.0, "int64", 2),
        (True, "int64", 1),
        ("-1e3", "float32", -1000.0),
        ("é", "bytes", "é".encode()),
        (7, "bytes", b"7"),
    ],
)
def test_values(value: Any, dtype: str, expected: Any) -> None:
    assert as_value(value, dtype) == expected


@pytest.mark.parametrize(
    ("value", "dtype"),
    [("1_0", "int64"), ("1.5", "int64"), (1.5, "int64"), (1 << 63, "int64"), ("1e39", "float32"),
     ("1_0", "float32"), ("x", "float32"), ([1], "bytes")],
)  # fmt: skip
def test_values_of_other_types(value: Any, dtype: str) -> None:
    with pytest.raises(RowError, match=f"which is no {dtype}; correct it"):
        as_value(value, dtype)


def test_types() -> None:
    assert [type_of(value) for value in (1, True, 1.5, "x", None, [], [1, 2.5])] == [
        "int64", "int64", "float32", "bytes", None, None, "float32",
    ]  # fmt: skip
    assert join_types(["int64", "bytes", None]) == "bytes"
    with pytest.raises(RowError, match="one list of values"):
        type_of([[1]])


def test_what_is_missing_is_not_in_the_record() -> None:
    rows = TableRows({"a": "int64", "b": "bytes", "c": "float32"}, frozenset("c"))
    given: list[dict[str, Any]] = [{"a": 1, "b": "x"}, {"c": [1, 2]}, {}, {"a": 4, "c": 5}]
    for row in given:
        rows.add(row)
    records, keys = encode_table(*rows.columns(), None)
    assert keys is None
    expected: list[dict[str, Any]] = [
        {"a": 1, "b": b"x"},
        {"c": [1.0, 2.0]},
        {},
        {"a": 4, "c": [5.0]},
    ]
    wanted = [sr.encode_example(row) for row in expected]
    assert records.to_list() == [*wanted[:2], b"\n\x00", wanted[3]]


def test_a_row_that_is_refused_is_not_there() -> None:
    rows = TableRows({"a": "int64", "b": "int64"})
    with pytest.raises(RowError, match="column 'b' holds 'x', which is no int64"):
        rows.add({"a": 1, "b": "x"})
    columns, _ = rows.columns()
    assert len(columns["a"]) == len(columns["b"]) == 0


def test_keys() -> None:
    columns: dict[str, Any] = {"a": np.array([1, 2]), "b": sr.encode_examples({"x": [1, 2]})}
    assert encode_table(columns, {}, "a")[1] == [b"1", b"2"]
    assert encode_table(columns, {}, "b")[1] == columns["b"].to_list()
    with pytest.raises(WrongFeatureType, match="record 1, feature a: the row has no key"):
        encode_table(columns, {"a": np.array([False, True])}, "a")
