"""Columns of Arrow and of features are the same values, and the same memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamrec as sr
from streamrec.sources.arrow_fields import arrow_of, columns_of
from streamrec.values.columns import Arrays, BytesColumn, Ragged, Sparse

pa = pytest.importorskip("pyarrow")

INTS, FLOATS, BYTES = (sr.VarLenFeature(dtype) for dtype in ("int64", "float32", bytes))
KINDS: dict[str, tuple[Any, Any, Any]] = {
    "int64": (pa.int64(), st.integers(-(2**63), 2**63 - 1), INTS),
    "uint8": (pa.uint8(), st.integers(0, 255), INTS),
    "bool": (pa.bool_(), st.booleans(), INTS),
    "float": (pa.float32(), st.floats(width=32, allow_nan=False), FLOATS),
    "large_binary": (pa.large_binary(), st.binary(max_size=9), BYTES),
    "binary": (pa.binary(), st.binary(max_size=9), BYTES),
    "string": (pa.string(), st.text(max_size=9), BYTES),
    "string_view": (pa.string_view(), st.text(max_size=20), BYTES),
}


def read(array: Any, spec: Any) -> list[list[Any]]:
    """Return the values of each row of an Arrow array, written and parsed."""
    records = sr.encode_examples(columns_of(pa.record_batch({"x": array})))
    column: Any = sr.parse_example(records.to_list(), {"x": spec})["x"]
    rows: list[list[Any]] = column.to_list()
    return rows


def plain(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


class TestToFeatures:
    @pytest.mark.parametrize("kind", KINDS)
    @given(data=st.data())
    def test_values(self, kind: str, data: st.DataObject) -> None:
        dtype, values, spec = KINDS[kind]
        rows = data.draw(st.lists(st.none() | values, max_size=9))
        first = data.draw(st.integers(0, len(rows)))
        array = pa.array(rows, dtype)
        expected = [[] if value is None else [plain(value)] for value in rows]
        assert read(array[first:], spec) == expected[first:]

    @pytest.mark.parametrize("kind", ["int64", "float", "string"])
    @given(data=st.data())
    def test_lists(self, kind: str, data: st.DataObject) -> None:
        dtype, values, spec = KINDS[kind]
        rows = data.draw(st.lists(st.none() | st.lists(values, max_size=4), max_size=9))
        first = data.draw(st.integers(0, len(rows)))
        expected = [[plain(value) for value in row or []] for row in rows]
        for of in (pa.list_, pa.large_list):
            assert read(pa.array(rows, of(dtype))[first:], spec) == expected[first:]

    def test_nested_lists_are_flat(self) -> None:
        rows = [[[1], [2, 3]], [], None, [[], None, [4]]]
        assert read(pa.array(rows), INTS) == [[1, 2, 3], [], [], [4]]

    def test_fixed_sizes(self) -> None:
        lists = pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int64(), 2))
        assert read(lists[1:], INTS) == [[3, 4], [5, 6]]
        strings = pa.array([b"ab", b"cd", b"ef"], pa.binary(2))
        assert read(strings[1:], BYTES) == [[b"cd"], [b"ef"]]

    def test_tensors_are_flat(self) -> None:
        tensor = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(12.0).reshape(2, 2, 3))
        found = read(tensor, FLOATS)
        assert found == [list(range(6)), list(range(6, 12))]

    def test_tensors_of_different_shapes_are_flat(self) -> None:
        rows = [{"data": [1, 2], "shape": [2, 1]}, {"data": [], "shape": [0, 1]}]
        assert read(pa.array(rows), INTS) == [[1, 2], []]

    def test_a_dictionary(self) -> None:
        array = pa.array(["a", "b", "a"]).dictionary_encode()
        assert read(array, BYTES) == [[b"a"], [b"b"], [b"a"]]

    def test_nulls_are_missing(self) -> None:
        array = pa.array([1, None])
        records = sr.encode_examples(columns_of(pa.record_batch({"x": array})))
        spec = sr.FixedLenFeature((), "int64", default_value=7)
        assert sr.parse_example(records.to_list(), {"x": spec})["x"].tolist() == [1, 7]
        assert read(pa.nulls(2), INTS) == [[], []]

    def test_memory_is_shared(self) -> None:
        numbers = np.arange(4)
        column = columns_of(pa.record_batch({"x": pa.array(numbers)}))["x"]
        assert np.shares_memory(column, numbers)
        strings = pa.array([b"a", b"bc"], pa.large_binary())
        found = columns_of(pa.record_batch({"x": strings}))["x"]
        assert found.values.ctypes.data == strings.buffers()[2].address
        assert found.offsets.ctypes.data == strings.buffers()[1].address

    @pytest.mark.parametrize(
        "array",
        [
            pa.array([[1, None]]),
            pa.array([{"a": 1}]),
            pa.array([1], pa.timestamp("s")),
        ],
        ids=str,
    )
    def test_no_representation(self, array: Any) -> None:
        with pytest.raises(sr.WrongFeatureType, match=r"feature x: .*; (drop|cast)"):
            columns_of(pa.record_batch({"x": array}))


def tensors(column: Any) -> Any:
    """Return arrays of several dimensions as lists of lists."""
    return pa.array([array.tolist() for array in column])


class TestToArrow:
    def test_values(self) -> None:
        strings = BytesColumn.of([b"a", b"", b"bc", b"d"])
        table = arrow_of(
            {
                "n": np.arange(2, dtype=np.int16),
                "t": np.arange(12.0).reshape(2, 3, 2),
                "b": BytesColumn.of([b"a", b"\xff"]),
                "p": BytesColumn(strings.values, strings.offsets, (2,)),
                "r": Ragged(np.arange(5), np.array([1, 1, 4])),
                "m": Ragged(np.arange(6).reshape(3, 2), np.array([0, 1, 3])),
                "s": Ragged(BytesColumn.of([b"x", b"y"]), np.array([0, 2, 2])),
            },
            tensors,
        )
        assert table.schema.field("n").type == pa.int16()
        assert table.to_pydict() == {
            "n": [0, 1],
            "t": np.arange(12).reshape(2, 3, 2).tolist(),
            "b": [b"a", b"\xff"],
            "p": [[b"a", b""], [b"bc", b"d"]],
            "r": [[], [1, 2, 3]],
            "m": [[[0, 1]], [[2, 3], [4, 5]]],
            "s": [[b"x", b"y"], []],
        }

    def test_no_rows(self) -> None:
        table = arrow_of({"b": BytesColumn.of([]), "n": np.zeros(0)}, tensors)
        assert table.num_rows == 0

    def test_memory_is_shared(self) -> None:
        numbers, strings = np.arange(6.0), BytesColumn.of([b"a", b"b"])
        ragged = Ragged(numbers, np.array([0, 2, 6]))
        table = arrow_of({"b": strings, "r": ragged}, tensors)
        assert table["r"].chunk(0).values.buffers()[1].address == numbers.ctypes.data
        assert table["r"].chunk(0).buffers()[1].address == ragged.row_splits.ctypes.data
        binary = table["b"].chunk(0)
        assert binary.buffers()[1].address == strings.offsets.ctypes.data
        assert binary.buffers()[2].address == strings.values.ctypes.data

    def test_arrays_of_different_shapes(self) -> None:
        arrays = Arrays(np.arange(3), np.array([0, 2, 3]), np.array([[2], [1]]))
        assert arrow_of({"a": arrays}, tensors)["a"].to_pylist() == [[0, 1], [2]]

    @pytest.mark.parametrize(
        "column",
        [
            BytesColumn(np.zeros(0, np.uint8), np.zeros(1, np.int64), (0,), 2),
            Ragged(np.zeros((1, 0)), np.array([0, 1])),
            Sparse(np.zeros((0, 2), np.int64), np.zeros(0), (1, 5)),
        ],
        ids=["strings", "ragged", "sparse"],
    )
    def test_no_type(self, column: Any) -> None:
        with pytest.raises(sr.WrongFeatureType, match=r"feature x: .* has no type in Arrow"):
            arrow_of({"x": column}, tensors)

    @given(rows=st.lists(st.lists(st.binary(max_size=5), max_size=3), max_size=5))
    def test_there_and_back(self, rows: list[list[bytes]]) -> None:
        inner = BytesColumn.of([string for row in rows for string in row])
        splits = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
        table = arrow_of({"x": Ragged(inner, splits)}, tensors)
        found = [columns_of(batch) for batch in table.to_batches()]
        assert [row for columns in found for row in columns["x"].to_list()] == rows


def test_two_columns_of_one_name() -> None:
    batch = pa.record_batch([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(sr.WrongFeatureType, match="feature a: two columns have this name"):
        columns_of(batch)


def test_arrays_of_several_dimensions_are_the_engine_s() -> None:
    given: list[Any] = []

    def tensors_of(column: Any) -> Any:
        given.append(column)
        return pa.array(range(len(column)))

    matrix, cube = np.zeros((3, 2)), np.zeros((3, 2, 2))
    table = arrow_of({"v": np.zeros(3), "m": matrix, "c": cube}, tensors_of)
    assert [each.shape for each in given] == [(3, 2), (3, 2, 2)]
    assert table["m"].to_pylist() == [0, 1, 2]
