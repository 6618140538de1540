from __future__ import annotations

from typing import Any

import pytest

from streamrec.sources.arrow_batches import cut, row_sizes

pa: Any = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
WORDS = ["a", None, "abc"]
LISTS = [["a"], None, ["abc", "d"]]


def runs(ends: list[int], values: Any) -> Any:
    return pa.RunEndEncodedArray.from_arrays(ends, pa.array(values))


@pytest.mark.parametrize(
    ("array", "sizes"),
    [
        (pa.array([1, None, 3], pa.int16()), [2, 2, 2]),
        (pa.array([True, None, False]), [1, 1, 1]),
        (pa.nulls(3), [0, 0, 0]),
        (pa.array([b"ab", None, b"cd"], pa.binary(2)), [2, 2, 2]),
        (pa.array(WORDS), [9, 8, 11]),
        (pa.array(WORDS, pa.large_string()), [9, 8, 11]),
        (pa.array(["a", None, "x" * 30], pa.string_view()), [9, 8, 38]),
        (pa.array(WORDS).dictionary_encode(), [9, 9, 11]),
        (pa.array([None] * 3, pa.dictionary(pa.int8(), pa.string())), [0, 0, 0]),
        (runs([1, 3], ["ab", "x"]), [10, 9, 9]),
        (pa.array(LISTS), [17, 8, 28]),
        (pa.array(LISTS, pa.list_view(pa.string())), [17, 8, 28]),
        (pa.array(LISTS, pa.list_(pa.dictionary(pa.int32(), pa.string()))), [17, 8, 28]),
        (pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int32(), 2)), [8, 8, 8]),
        (pa.array([[[1], [2, 3]], None, [[]]]), [48, 8, 16]),
        (pa.array([{"a": 1, "b": "x"}, None, {"a": 2, "b": "xyz"}]), [17, 16, 19]),
        (pa.array([], pa.list_(pa.string())), []),
        (
            pa.FixedShapeTensorArray.from_storage(
                pa.fixed_shape_tensor(pa.int8(), [2]),
                pa.array([[1, 2]] * 3, pa.list_(pa.int8(), 2)),
            ),
            [2, 2, 2],
        ),
    ],
)
def test_sizes_of_rows(array: Any, sizes: list[int]) -> None:
    for begin in range(len(array) + 1):
        for size in range(len(array) + 1 - begin):
            part = array.slice(begin, size)
            assert row_sizes(part).tolist() == sizes[begin : begin + size]


def test_pieces_have_so_many_rows_and_bytes_at_most() -> None:
    texts = ["a" * 92] * 5 + ["b" * 292] + ["c" * 42] * 10
    batch = pa.record_batch({"a": pa.array(texts).dictionary_encode()})
    found = list(cut(batch, 7, 200))
    assert found == [
        (0, 2, 200), (2, 4, 200), (4, 5, 100), (5, 6, 300), (6, 7, 50), (7, 11, 200), (11, 14, 150),
        (14, 16, 100),
    ]  # fmt: skip
    assert list(cut(batch.slice(0, 0), 7, 200)) == []
