from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import streamrec as sr
from streamrec.errors import WrongFeatureType
from streamrec.sources.table_columns import DTYPES, TableRows, encode_table
from streamrec.sources.table_values import JsonNumber, RowError, as_value, is_nan, is_part


def fail(_place: Any, error: RowError) -> None:
    raise error


def test_what_is_missing_is_not_in_the_record() -> None:
    rows = TableRows({"a": "int64", "b": "bytes", "c": "float32"}, frozenset("c"))
    given: list[dict[str, Any]] = [{"a": 1, "b": "x"}, {"c": [1, 2]}, {}, {"a": 4, "c": 5}]
    for place, row in enumerate(given):
        rows.add(place, row)
    columns, missing, places = rows.columns(fail)
    records, keys = encode_table(columns, missing, None)
    assert keys is None
    assert places == [0, 1, 2, 3]
    expected: list[dict[str, Any]] = [
        {"a": 1, "b": b"x"},
        {"c": [1.0, 2.0]},
        {},
        {"a": 4, "c": [5.0]},
    ]
    wanted = [sr.encode_example(row) for row in expected]
    assert records.to_list() == [*wanted[:2], b"\n\x00", wanted[3]]


def test_rows_that_are_wrong_are_told_in_order_and_not_there() -> None:
    rows = TableRows({"a": "int64", "b": "int64"})
    rows.add("first", {"a": 1, "b": "x"})
    rows.add("second", {"a": 2, "b": 3})
    rows.add("third", RowError("is no row"))
    rows.add("fourth", {"a": [4], "b": 5})
    told: list[tuple[str, str]] = []
    columns, _, places = rows.columns(lambda place, error: told.append((place, str(error)[:34])))
    assert {name: column.tolist() for name, column in columns.items()} == {"a": [2], "b": [3]}
    assert places == ["second"]
    assert told == [
        ("first", "column 'b' holds 'x', which is not"),
        ("third", "is no row"),
        ("fourth", "column 'a' holds [4], which is not"),
    ]


def test_texts_that_stand_for_no_value() -> None:
    rows = TableRows({"a": "int64", "b": "bytes"}, null={"a": frozenset({"", "NA"})})
    for place, row in enumerate([("1", ""), ("NA", "NA"), ("", "x")]):
        rows.add(place, dict(zip("ab", row, strict=True)))
    columns, missing, _ = rows.columns(fail)
    assert columns["a"].tolist() == [1, 0, 0]
    assert columns["b"].to_list() == [b"", b"NA", b"x"]
    assert list(missing) == ["a"]
    assert missing["a"].tolist() == [False, True, True]


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 64), 1 << 64),
    st.floats(),
    st.floats(width=32),
    st.integers().map(str),
    st.floats().map(str),
    st.sampled_from(["", "1_0", " 7 ", "1e39", "-0", "x", "é", "\ud800", [], {}, 10**400]),
    st.sampled_from(["007", "+7", "7.0", "16777217", "16777217.0", 16777217, 16777217.0, "nan"]),
    st.sampled_from(
        [
            (1 << 60) + 1,
            str((1 << 60) + 1),
            "1e400",
            "-inf",
            "\N{ARABIC-INDIC DIGIT SEVEN}",
            float("inf"),
        ]
    ),
    st.sampled_from(["NaN", "1e400", "Infinity", "1.50"]).map(JsonNumber),
    st.text(max_size=3),
    st.binary(max_size=3),
)


@given(
    st.one_of(st.lists(VALUES), *(st.lists(st.from_type(kind)) for kind in (int, float, str))),
    st.sampled_from(["bytes", "int64", "float32"]),
    st.booleans(),
)
@example([(1 << 53) + 1], "float32", False)
@example([str((1 << 53) + 1)], "float32", False)
@example([16777217.0, 0.5], "float32", False)
def test_a_column_is_what_each_value_is(values: list[Any], dtype: str, is_given: bool) -> None:
    good, errors = [], []
    has_parts = any(map(is_part, values))
    for value in values:
        is_gap = value is None or (is_given and dtype == "int64" and is_nan(value))
        try:
            good.append(None if is_gap else as_value(value, dtype, is_given=is_given))
        except RowError as error:
            errors.append(str(error.of_column("a", has_parts=has_parts)))
    rows = TableRows({"a": dtype}, given=frozenset("a" if is_given else ()))
    for place, value in enumerate(values):
        rows.add(place, {"a": value})
    told: list[str] = []
    columns, missing, _ = rows.columns(lambda _, error: told.append(str(error)))
    assert told == errors
    nothing: Any = b"" if dtype == "bytes" else 0
    wanted: Any = [nothing if value is None else value for value in good]
    found = columns["a"]
    if dtype == "bytes":
        assert found.to_list() == wanted
    else:
        np.testing.assert_array_equal(found, np.array(wanted, DTYPES[dtype]), strict=True)
    absent = missing.get("a", np.zeros(len(good), np.bool_))
    assert absent.tolist() == [value is None for value in good]


@given(st.lists(st.one_of(VALUES, st.lists(VALUES, max_size=3))))
def test_lists_are_those_of_their_values(values: list[Any]) -> None:
    lists: list[Any] = []
    for value in values:
        items = value if isinstance(value, list) else [] if value is None else [value]
        with suppress(RowError):
            if not any(item is None or isinstance(item, list | dict) for item in items):
                lists.append([as_value(item, "float32") for item in items])
    rows = TableRows({"a": "float32"}, frozenset("a"), given=frozenset("a"))
    for place, value in enumerate(values):
        rows.add(place, {"a": value})
    columns, _, _ = rows.columns(lambda *_: None)
    np.testing.assert_array_equal(
        columns["a"].values, np.array([item for one in lists for item in one], np.float32)
    )
    assert np.diff(columns["a"].row_splits).tolist() == [len(one) for one in lists]


def test_keys() -> None:
    columns: dict[str, Any] = {"a": np.array([1, 2]), "b": sr.encode_examples({"x": [1, 2]})}
    assert encode_table(columns, {}, "a")[1] == [b"1", b"2"]
    assert encode_table(columns, {}, "b")[1] == columns["b"].to_list()
    with pytest.raises(WrongFeatureType, match="record 1, feature a: the row has no key"):
        encode_table(columns, {"a": np.array([False, True])}, "a")
