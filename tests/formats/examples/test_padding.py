from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.formats.examples.spec_columns import as_items, pad
from streamrec.values.columns import BytesColumn, Ragged, offsets_of

pytestmark = pytest.mark.both_kernels

ROWS = st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=5)


def splits(rows: list[list[Any]]) -> Any:
    return offsets_of(np.array([len(row) for row in rows], np.int64))


@given(rows=ROWS, default=st.none() | st.integers(-3, 3), shape=st.sampled_from([(), (2,), (1, 2)]))
def test_numbers(rows: list[list[int]], default: int | None, shape: tuple[int, ...]) -> None:
    count = int(np.prod(shape, dtype=int))
    flat = np.array([value for row in rows for value in row for _ in range(count)], np.int16)
    dense: Any = pad(Ragged(as_items(flat, shape), splits(rows)), default)
    longest = max(map(len, rows), default=0)
    assert dense.dtype == np.int16
    assert dense.shape == (len(rows), longest, *shape)
    for got, row in zip(dense, rows, strict=True):
        wanted = row + [default or 0] * (longest - len(row))
        assert got.reshape(longest, count).tolist() == [[value] * count for value in wanted]


def test_rows_of_one_length_are_not_copied() -> None:
    flat = np.arange(6)
    assert np.shares_memory(pad(Ragged(flat, np.array([0, 3, 6])), 0), flat)


STRINGS = st.lists(st.lists(st.binary(max_size=3), max_size=3), max_size=4)


@given(rows=STRINGS, default=st.none() | st.binary(max_size=3))
def test_strings(rows: list[list[bytes]], default: bytes | None) -> None:
    flat = BytesColumn.of([value for row in rows for value in row])
    column: Any = pad(Ragged(as_items(flat, ()), splits(rows)), default)
    longest = max(map(len, rows), default=0)
    assert (len(column), *column.item_shape) == (len(rows), longest)
    assert column.to_list() == [row + [default or b""] * (longest - len(row)) for row in rows]


@pytest.mark.parametrize("default", [b"", b"zz"])
def test_strings_with_a_shape(default: bytes) -> None:
    flat = as_items(BytesColumn.of([b"a", b"b", b"c", b"d", b"e", b"f"]), (2,))
    column: Any = pad(Ragged(flat, np.array([0, 2, 3])), default)
    assert column.to_list() == [[[b"a", b"b"], [b"c", b"d"]], [[b"e", b"f"], [default, default]]]
