from __future__ import annotations

from itertools import chain, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.formats.examples.composite import MOST_EMPTY_ROWS, Misfit, partition
from streamrec.formats.examples.defaults import (
    RowLengths,
    RowLimits,
    RowSplits,
    RowStarts,
    UniformRowLength,
    ValueRowIds,
)
from streamrec.values.columns import BytesColumn, Ragged, offsets_of

pytestmark = pytest.mark.both_kernels

LENGTHS = st.lists(st.lists(st.integers(0, 3), max_size=4), max_size=5)


def ragged(rows: list[list[int]]) -> Ragged:
    flat = np.array([number for row in rows for number in row], np.int64)
    return Ragged(flat, offsets_of(np.array([len(row) for row in rows], np.int64)))


def counted(lengths: list[list[int]]) -> Ragged:
    """Return, for each record, the values 0, 1, … that rows of these lengths take."""
    return ragged([list(range(sum(record))) for record in lengths])


def wanted(lengths: list[list[int]]) -> list[list[list[int]]]:
    records = []
    for record in lengths:
        ends = np.cumsum([0, *record]).tolist()
        records.append([list(range(a, b)) for a, b in pairwise(ends)])
    return records


def ends_of(record: list[int]) -> list[int]:
    return np.cumsum(record, dtype=int).tolist()  # type: ignore[no-any-return]


NUMBERS: dict[Any, Any] = {
    RowLengths: lambda record: record,
    RowLimits: ends_of,
    RowSplits: lambda record: [0, *ends_of(record)],
    RowStarts: lambda record: [0, *ends_of(record)][:-1],
}


@given(lengths=LENGTHS, kind=st.sampled_from(list(NUMBERS)))
def test_rows_of_any_length(lengths: list[list[int]], kind: Any) -> None:
    keys = ragged([NUMBERS[kind](record) for record in lengths])
    assert partition(counted(lengths), kind("p"), keys).to_list() == wanted(lengths)


@given(lengths=LENGTHS)
def test_row_ids(lengths: list[list[int]]) -> None:
    # They cannot tell of empty rows at the end.
    lengths = [record[: np.flatnonzero([*record, 0]).max(initial=-1) + 1] for record in lengths]
    ids = [[row for row, n in enumerate(record) for _ in range(n)] for record in lengths]
    assert partition(counted(lengths), ValueRowIds("p"), ragged(ids)).to_list() == wanted(lengths)


@given(rows=st.lists(st.integers(0, 4), max_size=4), length=st.integers(1, 3))
def test_uniform_rows(rows: list[int], length: int) -> None:
    lengths = [[length] * count for count in rows]
    column = partition(counted(lengths), UniformRowLength(length), None)
    assert column.to_list() == wanted(lengths)


def test_uniform_rows_of_dense_values_are_a_dimension() -> None:
    pairs = partition(ragged([[*range(8)]]), UniformRowLength(2), None)
    squares = partition(pairs, UniformRowLength(2), None)
    assert isinstance(pairs.values, np.ndarray)
    assert isinstance(squares.values, np.ndarray)
    assert (pairs.values.shape, squares.values.shape) == ((4, 2), (2, 2, 2))
    assert squares.values[1].tolist() == [[4, 5], [6, 7]]
    strings = Ragged(BytesColumn.of([b"a", b"bc", b"d", b"e"]), np.array([0, 2, 4]))
    words = partition(strings, UniformRowLength(2), None)
    assert isinstance(words.values, BytesColumn)
    assert words.values.item_shape == (2,)
    assert words.to_list() == [[[b"a", b"bc"]], [[b"d", b"e"]]]
    with pytest.raises(Misfit, match="not a multiple of 3"):
        partition(squares, UniformRowLength(3), None)


def test_uniform_rows_of_ragged_ones_are_ragged() -> None:
    inner = partition(ragged([[1, 2, 3], []]), RowLengths("p"), ragged([[1, 2], []]))
    outer = partition(inner, UniformRowLength(2), None)
    assert outer.to_list() == [[[[1], [2, 3]]], []]


def test_rows_are_put_into_rows() -> None:
    inner = partition(ragged([[1, 2, 3], [4]]), RowLengths("p"), ragged([[1, 2, 0], [1]]))
    outer = partition(inner, RowLengths("q"), ragged([[2, 1], [0, 1]]))
    assert outer.to_list() == [[[[1], [2, 3]], [[]]], [[], [[4]]]]


def test_no_splits_are_no_rows() -> None:
    assert partition(ragged([[], [1]]), RowSplits("p"), ragged([[], [0, 1]])).to_list() == [
        [],
        [[1]],
    ]


@given(
    values=st.lists(st.integers(0, 3), min_size=1, max_size=3),
    numbers=st.lists(
        st.lists(st.integers(-2, 5) | st.sampled_from([2**62, 2**63 - 1, -(2**63)]), max_size=4),
        min_size=3,
        max_size=3,
    ),
    kind=st.sampled_from([*NUMBERS, ValueRowIds]),
)
def test_any_numbers_fit_or_are_refused(
    values: list[int], numbers: list[list[int]], kind: Any
) -> None:
    column = ragged([list(range(count)) for count in values])
    try:
        found = partition(column, kind("p"), ragged(numbers[: len(values)]))
    except Misfit as misfit:
        one = misfit.record
        alone = ragged([list(range(values[one]))]), kind("p"), ragged([numbers[one]])
        with pytest.raises(Misfit):
            partition(*alone)
        return
    assert [list(chain(*rows)) for rows in found.to_list()] == column.to_list()


def test_empty_rows_are_bounded() -> None:
    last = partition(ragged([[1]]), ValueRowIds("p"), ragged([[MOST_EMPTY_ROWS]]))
    assert len(last.values) == MOST_EMPTY_ROWS + 1
    with pytest.raises(Misfit, match="beyond the values"):
        partition(ragged([[1]]), ValueRowIds("p"), ragged([[MOST_EMPTY_ROWS + 2]]))
