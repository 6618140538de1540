from __future__ import annotations

import math
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.lib.stride_tricks import as_strided

from streamrec.values.aligned import ALIGNMENT
from streamrec.values.columns import (
    LONG,
    Arrays,
    Bytes,
    BytesColumn,
    Ragged,
    Sparse,
    cut,
    digests,
    form_of,
    html_table,
    offsets_of,
    rising,
    views,
    volumes,
)

if TYPE_CHECKING:
    import numpy.typing as npt


@given(st.lists(st.binary(max_size=200)), st.sampled_from([1, 2]))
def test_hashes_of_strings(strings: list[bytes], words: int) -> None:
    expected = [blake2b(string, digest_size=8 * words).digest() for string in strings]
    column = BytesColumn.of([b"before", *strings])
    part = BytesColumn(column.values, column.offsets[1:])
    assert [bytes(view) for view in views(part)] == strings
    found = digests(part, words)
    assert found.shape == (len(strings), words)
    assert [row.tobytes() for row in found] == expected


def test_all_text_is_escaped() -> None:
    table = html_table("<b>", {"<name>": "a & b"})
    assert "&lt;b&gt;" in table
    assert "&lt;name&gt;" in table
    assert "a &amp; b" in table
    assert "<b>" not in table


SIZES = st.sampled_from([-(1 << 63), -1, *range(4), 1 << 31, 1 << 32, 1 << 58, 1 << 62])
STRINGS = st.lists(st.binary(max_size=6), max_size=8)


def int64(*values: int) -> Any:
    return np.array(values, np.int64)


@given(
    arrays=st.integers(0, 3).flatmap(
        lambda ndim: st.lists(
            npst.arrays(np.int16, npst.array_shapes(min_dims=ndim, max_dims=ndim, min_side=0)),
            min_size=1,
            max_size=5,
        )
    )
)
def test_arrays_of_a_list(arrays: list[npt.NDArray[Any]]) -> None:
    column = Arrays.of(arrays)
    assert len(column) == len(arrays)
    for got, expected in zip(column, arrays, strict=True):
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected, strict=True)
    assert column.values.ctypes.data % ALIGNMENT == 0
    arrays[0][...] = 7  # the column has its own memory
    assert not any(np.shares_memory(column.values, array) for array in arrays)


def test_arrays_in_the_order_of_fortran() -> None:
    given = np.arange(6).reshape(2, 3).T
    np.testing.assert_array_equal(Arrays.of([given, given])[1], given)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ([], "not an empty list"),
        ([np.zeros(2), np.zeros((2, 1))], "not float64 of 1 dimensions and float64 of 2 dim"),
        ([np.zeros(2), np.zeros(2, "f4")], "not float32 of 1 dimensions and float64 of 1 dim"),
    ],
)
def test_arrays_that_are_no_column(arrays: list[npt.NDArray[Any]], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Arrays.of(arrays)


@given(lengths=st.lists(st.integers(0, 9)))
def test_offsets_are_running_sums(lengths: list[int]) -> None:
    offsets = offsets_of(int64(*lengths))
    assert np.diff(offsets).tolist() == lengths
    assert offsets[0] == 0


@given(first=st.integers(-(2**62), 2**62), count=st.integers(0, 10) | st.integers(490, 510))
def test_rising_numbers(first: int, count: int) -> None:
    numbers = rising(first, count)
    assert numbers.tolist() == list(range(first, first + count))
    assert numbers.dtype == np.int64
    assert numbers.base is None, "nobody else's may be changed with it"


class TestBytesColumn:
    @given(strings=STRINGS)
    def test_is_a_sequence_of_bytes(self, strings: list[bytes]) -> None:
        column = BytesColumn.of(strings)
        assert len(column) == len(strings)
        assert column.to_list() == list(column) == strings
        assert [column[i] for i in range(-len(strings), 0)] == strings
        assert column.values.flags.writeable

    @pytest.mark.parametrize("row", [2, -3])
    def test_rows_beyond_are_refused(self, row: int) -> None:
        with pytest.raises(IndexError, match=f"no row {row} in a column of 2"):
            BytesColumn.of([b"a", b"b"])[row]

    def test_rows_of_several_strings(self) -> None:
        column = BytesColumn.of([b"a", b"b", b"c", b"d"], (2,))
        assert len(column) == 2
        assert column.to_list() == [[b"a", b"b"], [b"c", b"d"]]
        assert column[-1] == [b"c", b"d"]

    def test_rows_of_several_dimensions(self) -> None:
        column = BytesColumn.of([b"a", b"b", b"c", b"d"], (2, 2))
        assert column.to_list() == [[[b"a", b"b"], [b"c", b"d"]]]

    def test_no_strings_are_no_rows(self) -> None:
        assert BytesColumn.of([], (2, 0)).to_list() == []

    def test_rows_of_no_strings(self) -> None:
        column = BytesColumn(np.empty(0, np.uint8), int64(0), (0, 2), 3)
        assert len(column) == 3
        assert column.to_list() == [[], [], []]
        assert column[-3] == []
        with pytest.raises(IndexError, match="no row 3 in a column of 3"):
            column[3]
        part: Any = cut(column, 1, 3)
        assert (len(part), part.item_shape) == (2, (0, 2))
        assert Ragged(column, int64(0, 1, 3)).to_list() == [[[]], [[], []]]
        assert Ragged(column, int64(0, 1, 3)).to_dense().shape == (2, 2, 0, 2)

    def test_takes_every_buffer(self) -> None:
        assert BytesColumn.of([bytearray(b"a"), memoryview(b"xb")[1:]]).to_list() == [b"a", b"b"]

    def test_long_strings_are_copied_to_aligned_memory(self) -> None:
        strings: list[Bytes] = [b"a" * LONG, bytearray(b"b"), memoryview(b"xc" * LONG)[1:]]
        column = BytesColumn.of(strings)
        assert column.to_list() == list(map(bytes, strings))
        assert column.values.ctypes.data % ALIGNMENT == 0


ROWS = st.lists(st.lists(st.integers(-9, 9), max_size=5), max_size=6)


def ragged(rows: list[list[int]]) -> Ragged:
    splits = offsets_of(int64(*map(len, rows)))
    return Ragged(int64(*(value for row in rows for value in row)), splits)


def ragged_strings(rows: list[list[int]]) -> Ragged:
    strings = [b"%d" % value for row in rows for value in row]
    return Ragged(BytesColumn.of(strings), offsets_of(int64(*map(len, rows))))


class TestRagged:
    @given(rows=ROWS)
    def test_is_a_sequence_of_rows(self, rows: list[list[int]]) -> None:
        column = ragged(rows)
        assert len(column) == len(rows)
        assert column.to_list() == rows
        assert [column[i].tolist() for i in range(-len(rows), 0)] == rows

    @given(rows=ROWS)
    def test_strings_are_lists(self, rows: list[list[int]]) -> None:
        wanted = [[b"%d" % value for value in row] for row in rows]
        assert ragged_strings(rows).to_list() == list(ragged_strings(rows)) == wanted

    @pytest.mark.parametrize("row", [1, -2])
    def test_rows_beyond_are_refused(self, row: int) -> None:
        with pytest.raises(IndexError, match=f"no row {row} in a column of 1"):
            ragged([[1]])[row]

    @given(rows=ROWS, default=st.none() | st.integers(-99, 99), width=st.none() | st.integers(0, 7))
    def test_to_dense(self, rows: list[list[int]], default: Any, width: int | None) -> None:
        dense = ragged(rows).to_dense(default, width)
        columns = max(map(len, rows), default=0) if width is None else width
        filled = [(row + [default or 0] * columns)[:columns] for row in rows]
        assert dense.dtype == np.int64
        assert dense.shape == (len(rows), columns)
        assert dense.tolist() == filled

    @given(rows=ROWS, width=st.none() | st.integers(0, 7))
    def test_strings_to_dense(self, rows: list[list[int]], width: int | None) -> None:
        dense = ragged_strings(rows).to_dense(width=width)
        columns = max(map(len, rows), default=0) if width is None else width
        assert dense.dtype == object
        assert dense.shape == (len(rows), columns)
        assert dense.tolist() == [
            ([b"%d" % value for value in row] + [b""] * columns)[:columns] for row in rows
        ]

    def test_dtypes_are_kept(self) -> None:
        column = Ragged(np.array([0.5], np.float32), int64(0, 1, 1))
        dense = column.to_dense(float("nan"))
        assert dense.dtype == np.float32
        assert dense[0, 0] == 0.5
        assert np.isnan(dense[1, 0])

    def test_strings_have_a_default_too(self) -> None:
        dense = ragged_strings([[1], []]).to_dense(b"-", 2)
        assert dense.tolist() == [[b"1", b"-"], [b"-", b"-"]]


NESTED = st.lists(st.lists(st.lists(st.integers(-9, 9), max_size=3), max_size=3), max_size=4)


def nested(rows: list[list[list[int]]]) -> Ragged:
    inner = ragged([step for row in rows for step in row])
    return Ragged(inner, offsets_of(int64(*map(len, rows))))


class TestNestedRagged:
    @given(rows=NESTED)
    def test_is_a_sequence_of_ragged_rows(self, rows: list[list[list[int]]]) -> None:
        column = nested(rows)
        assert len(column) == len(rows)
        assert column.to_list() == rows
        assert [row.to_list() for row in column] == rows
        for row, wanted in zip(column, rows, strict=True):
            assert [step.tolist() for step in row] == wanted

    @given(rows=NESTED, default=st.none() | st.integers(-99, 99))
    def test_to_dense_fills_every_dimension_up(
        self, rows: list[list[list[int]]], default: int | None
    ) -> None:
        dense = nested(rows).to_dense(default)
        wide = max(map(len, rows), default=0)
        deep = max((len(step) for row in rows for step in row), default=0)
        assert dense.shape == (len(rows), wide, deep)
        wanted = np.full(dense.shape, default or 0)
        for i, row in enumerate(rows):
            for j, step in enumerate(row):
                wanted[i, j, : len(step)] = step
        assert dense.tolist() == wanted.tolist()

    @given(rows=NESTED)
    def test_a_row_is_filled_up_by_itself(self, rows: list[list[list[int]]]) -> None:
        for row, wanted in zip(nested(rows), rows, strict=True):
            assert row.to_dense().tolist() == ragged(wanted).to_dense().tolist()

    def test_the_width_is_the_outermost_s(self) -> None:
        dense = nested([[[1], [2, 3]], [[4]]]).to_dense(width=1)
        assert dense.tolist() == [[[1, 0]], [[4, 0]]]
        assert nested([[[1]]]).to_dense(width=3).shape == (1, 3, 1)

    def test_strings_and_items_of_a_shape(self) -> None:
        strings = BytesColumn.of([b"a", b"b", b"c", b"d"], (2,))
        column = Ragged(Ragged(strings, int64(0, 1, 2)), int64(0, 2))
        assert column.to_list() == [[[[b"a", b"b"]], [[b"c", b"d"]]]]
        assert column.to_dense().shape == (1, 2, 1, 2)
        items = Ragged(np.arange(6).reshape(3, 2), int64(0, 1, 3))
        assert items.to_list() == [[[0, 1]], [[2, 3], [4, 5]]]
        assert items.to_dense(-1).tolist() == [[[0, 1], [-1, -1]], [[2, 3], [4, 5]]]

    def test_cut(self) -> None:
        rows = [[[1], []], [[2, 3]], [], [[4]]]
        part = cut(nested(rows), 1, 3)
        assert isinstance(part, Ragged)
        assert part.to_list() == rows[1:3]
        assert part.to_dense().tolist() == [[[2, 3]], [[0, 0]]]


class TestVolumes:
    @given(shapes=st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3), min_size=1))
    def test_are_the_products(self, shapes: list[list[int]]) -> None:
        assert volumes(np.array(shapes), 729).tolist() == [math.prod(shape) for shape in shapes]

    @given(
        shapes=st.integers(0, 32).flatmap(
            lambda rank: npst.arrays(np.int64, (2, rank), elements=SIZES)
        ),
        most=st.integers(0, 58).map(lambda power: 1 << power),
    )
    def test_those_of_no_array_are_minus_1(self, shapes: npt.NDArray[np.int64], most: int) -> None:
        for shape, volume in zip(shapes.tolist(), volumes(shapes, most).tolist(), strict=True):
            if min(shape, default=0) < 0 or math.prod(side or 1 for side in shape) > most:
                assert volume == -1
            else:
                assert volume == math.prod(shape)
                assert as_strided(np.zeros(1), shape, [0] * len(shape)).shape == tuple(shape)


class TestArrays:
    SHAPES = np.array([[2, 1, 3], [1, 1, 1], [1, 2, 1]])
    COLUMN = Arrays(np.arange(9, dtype=np.uint8), np.array([0, 6, 7, 9]), SHAPES)

    def test_is_a_sequence_of_arrays(self) -> None:
        assert len(self.COLUMN) == 3
        assert [picture.shape for picture in self.COLUMN] == [(2, 1, 3), (1, 1, 1), (1, 2, 1)]
        assert self.COLUMN[-1].tolist() == [[[7], [8]]]
        assert [picture.tolist() for picture in self.COLUMN.to_list()] == [
            [[[0, 1, 2]], [[3, 4, 5]]], [[[6]]], [[[7], [8]]]
        ]  # fmt: skip

    def test_rows_are_views(self) -> None:
        assert all(np.shares_memory(picture, self.COLUMN.values) for picture in self.COLUMN)

    @pytest.mark.parametrize("row", [3, -4])
    def test_rows_beyond_are_refused(self, row: int) -> None:
        with pytest.raises(IndexError, match="of 3"):
            self.COLUMN[row]

    def test_rows_of_several(self) -> None:
        rows = Ragged(self.COLUMN, np.array([0, 1, 1, 3]))
        assert [len(row) for row in rows] == [1, 0, 2]
        assert rows[2][0].tolist() == [[[6]]]
        assert [[picture.size for picture in row] for row in rows.to_list()] == [[6], [], [1, 2]]
        part = Ragged(self.COLUMN, np.array([1, 3])).to_list()
        assert [picture.size for picture in part[0]] == [1, 2]

    def test_of_any_dtype_and_number_of_dimensions(self) -> None:
        column = Arrays(np.arange(3.0), int64(0, 2, 2, 3), int64(2, 0, 1).reshape(3, 1))
        assert [array.tolist() for array in column] == [[0, 1], [], [2]]
        scalars = Arrays(np.arange(2), int64(0, 1, 2), np.empty((2, 0), np.int64))
        assert [array.shape for array in scalars] == [(), ()]

    def test_they_make_no_array(self) -> None:
        with pytest.raises(TypeError, match=r"take them one by one, or give sr\.Image a shape"):
            Ragged(self.COLUMN, np.array([0, 1, 3])).to_dense()


class TestSparse:
    def test_rows(self) -> None:
        column = Sparse(int64(0, 1, 2, 0, 2, 2).reshape(3, 2), int64(5, 6, 7), (3, 3))
        assert [row.to_dense().tolist() for row in column] == [[0, 5, 0], [0, 0, 0], [6, 0, 7]]
        assert column[-1].dense_shape == (3,)
        words = Sparse(column.indices, BytesColumn.of([b"a", b"b", b"c"]), (3, 3))
        assert words[2].values.to_list() == [b"b", b"c"]
        with pytest.raises(IndexError, match="no row 3 in a column of 3"):
            column[3]

    def test_numbers(self) -> None:
        column = Sparse(np.array([[0, 1], [2, 0]]), np.array([5, 6], np.float32), (3, 2))
        assert len(column) == 3
        assert column.to_dense().tolist() == [[0, 5], [0, 0], [6, 0]]
        assert column.to_dense(-1).dtype == np.float32

    def test_strings(self) -> None:
        column = Sparse(np.array([[0, 1]]), BytesColumn.of([b"x"]), (1, 2))
        assert column.to_dense().tolist() == [[b"", b"x"]]
        assert column.to_dense(b"?").tolist() == [[b"?", b"x"]]

    def test_nothing(self) -> None:
        empty = np.zeros((0, 2), np.int64)
        assert Sparse(empty, BytesColumn.of([]), (2, 1)).to_dense().tolist() == [[b""], [b""]]


RAGGED = Ragged(np.zeros((5, 2), np.float32), int64(0, 2, 5))


@pytest.mark.parametrize(
    ("column", "form"),
    [
        (np.zeros((3, 2), np.int32), "int32 [3, 2]"),
        (BytesColumn.of([b"a", b"b"]), "bytes [2]"),
        (BytesColumn.of([b"a", b"b"], (2, 1)), "bytes [1, 2, 1]"),
        (RAGGED, "float32 [2, None, 2]"),
        (Ragged(RAGGED, int64(0, 2)), "float32 [1, None, None, 2]"),
        (Ragged(BytesColumn.of([b"a"]), int64(0, 1)), "bytes [1, None]"),
        (Arrays(np.zeros(3), int64(0, 3), int64(1, 3).reshape(1, 2)), "float64 [1, None, None]"),
        (Sparse(np.zeros((1, 2), np.int64), np.zeros(1), (4, 9)), "float64 [4, 9], 1 values"),
    ],
)
def test_a_column_shows_its_form_in_one_line(column: Any, form: str) -> None:
    assert form_of(column).startswith(form)
    if not isinstance(column, np.ndarray):
        assert repr(column) == f"<{type(column).__name__}: {form_of(column)}>"


@pytest.mark.parametrize(
    ("column", "says"),
    [
        (BytesColumn.of([b"a", b"b"]), "strings; take them with to_list"),
        (RAGGED, "different lengths; work on values, or call to_dense"),
        (Arrays(np.zeros(3), int64(0, 3), int64(1, 3).reshape(1, 2)), r"Image\(resize=...\)"),
        (Sparse(np.zeros((1, 2), np.int64), np.zeros(1), (4, 9)), "call to_dense"),
    ],
)
def test_a_column_that_is_taken_for_an_array_says_why_it_is_not(column: Any, says: str) -> None:
    with pytest.raises(AttributeError, match=rf"has no attribute 'astype': .*{says}"):
        column.astype("float32")
    with pytest.raises(AttributeError, match=r"has no attribute 'other'$"):
        _ = column.other
