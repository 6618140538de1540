from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.values.columns import Arrays, BytesColumn, Ragged, Sparse, pick_rows
from streamrec.values.rows import join_columns, row_of

COLUMNS: dict[str, Any] = {
    "array": np.arange(12, dtype=np.float32).reshape(3, 2, 2),
    "bytes": BytesColumn.of([b"one", b"", b"three"]),
    "pairs": BytesColumn.of([b"a", b"bc", b"", b"d", b"efg", b"h"], (2,)),
    "none a row": BytesColumn(np.empty(0, np.uint8), np.zeros(1, np.int64), (0,), 3),
    "arrays": Arrays(np.arange(7), np.array([0, 2, 3, 7]), np.array([[1, 2], [1, 1], [2, 2]])),
    "ragged": Ragged(np.arange(5), np.array([0, 2, 2, 5])),
    "strings": Ragged(BytesColumn.of([b"a", b"b", b"cd"]), np.array([0, 2, 2, 3])),
    "deep": Ragged(
        Ragged(np.arange(5), np.array([0, 1, 1, 4, 5])), np.array([0, 2, 2, 4])
    ),
    "sparse": Sparse(np.array([[0, 1], [0, 2], [2, 0]]), np.array([5, 6, 7]), (3, 4)),
    "named": Sparse(np.array([[1, 1], [2, 0]]), BytesColumn.of([b"x", b"y"]), (3, 2)),
}  # fmt: skip


def plain(column: Any) -> Any:
    if isinstance(column, np.ndarray):
        return column.dtype, column.tolist()
    if isinstance(column, Sparse):
        return column.dense_shape, column.to_dense().tolist()
    return [one.tolist() if isinstance(one, np.ndarray) else one for one in column.to_list()]


@pytest.mark.parametrize("name", COLUMNS)
def test_rows_joined_are_the_column(name: str) -> None:
    column = COLUMNS[name]
    rows = [row_of(column, number) for number in range(3)]
    assert [len(row) for row in rows] == [1, 1, 1]
    assert plain(join_columns(rows)) == plain(column)
    assert plain(join_columns([*rows[:2], join_columns(rows[2:])])) == plain(column)
    if not isinstance(column, np.ndarray | Sparse):
        for number, row in enumerate(rows):
            assert str(row[0]) == str(column[number])


@pytest.mark.parametrize("name", COLUMNS)
@given(rows=st.lists(st.integers(0, 2), max_size=5))
def test_picked_rows_are_single_rows_joined(name: str, rows: list[int]) -> None:
    column = COLUMNS[name]
    picked = pick_rows(column, np.array(rows, np.int64))
    assert len(picked) == len(rows)
    if rows:
        assert plain(picked) == plain(join_columns([row_of(column, row) for row in rows]))


@pytest.mark.parametrize("name", sorted(COLUMNS.keys() - {"array"}))
@pytest.mark.parametrize(
    "which", [slice(2), slice(-1, None), slice(None, None, -1), np.array([True, False, True])]
)
def test_a_slice_or_an_array_gives_a_column(name: str, which: Any) -> None:
    column, rows = COLUMNS[name], np.arange(3)[which]
    picked = column[which]
    assert (type(picked), len(picked)) == (type(column), len(rows))
    assert plain(picked) == plain(join_columns([row_of(column, row) for row in rows]))


def test_a_row_holds_its_own_values_alone() -> None:
    strings, ragged = row_of(COLUMNS["bytes"], 2), row_of(COLUMNS["ragged"], 2)
    assert isinstance(strings, BytesColumn)
    assert (bytes(strings.values), strings.offsets.tolist()) == (b"three", [0, 5])
    assert isinstance(ragged, Ragged)
    assert (np.asarray(ragged.values).tolist(), ragged.row_splits.tolist()) == ([2, 3, 4], [0, 3])


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        (np.zeros((1, 2)), np.zeros((1, 3)), r"first float64 \[1, 2\], then float64 \[1, 3\]"),
        (np.zeros(1), np.zeros(1, int), "then int64"),
        (np.zeros(1), BytesColumn.of([b"x"]), "then bytes"),
        (COLUMNS["bytes"], COLUMNS["pairs"], r"then bytes \[3, 2\]"),
        (COLUMNS["ragged"], COLUMNS["strings"], r"then bytes \[3, None\]"),
    ],
)
def test_columns_of_several_forms(one: Any, other: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        join_columns([one, other])
