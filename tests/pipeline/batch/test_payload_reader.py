from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import RemoteProtocolError
from streamrec.pipeline.batch.payload_reader import PROTO, PayloadReader, layout

ROWS = 16


def described(*dtypes: str, rows: int = ROWS) -> bytes:
    """Return the metadata of columns of one array each, which are named by their number."""
    metadata = PROTO["Batch"](rows=rows)
    for number, dtype in enumerate(dtypes):
        array = metadata.columns.add(name=str(number)).values.array
        array.dtype = dtype
        array.shape.append(rows)
    return bytes(metadata.SerializeToString())


def aligned(array: np.ndarray[tuple[int], np.dtype[np.generic]]) -> bytes:
    return array.tobytes() + bytes(-array.nbytes % 64)


@given(st.lists(st.sampled_from(["int8", "int32", "float64"]), min_size=1), st.data())
def test_arrays_of_a_layout_in_any_buffers(dtypes: list[str], data: st.DataObject) -> None:
    arrays = [np.arange(ROWS, dtype=dtype) + number for number, dtype in enumerate(dtypes)]
    cuts = [0, *sorted(data.draw(st.sets(st.integers(1, len(arrays) - 1 or 1)))), len(arrays)]
    buffers = [b"".join(map(aligned, arrays[i:j])) for i, j in pairwise(cuts) if i < j]
    before = aligned(np.arange(ROWS))  # another array, which has a buffer of its own or not
    first = [before, *buffers] if data.draw(st.booleans()) else [before + buffers[0], *buffers[1:]]
    reader, found = PayloadReader(tuple(map(memoryview, first))), layout(described(*dtypes))
    assert found is not None
    np.testing.assert_array_equal(reader.array("int64", (ROWS,)), np.arange(ROWS))
    taken = reader.take_all(found)
    assert list(taken) == [str(number) for number in range(len(arrays))]
    for array, column in zip(arrays, taken.values(), strict=True):
        assert isinstance(column, np.ndarray)
        np.testing.assert_array_equal(column, array)


@pytest.mark.parametrize("size", [0, 64, 127])
def test_arrays_that_are_not_there(size: int) -> None:
    found = layout(described("int64"))
    assert found is not None
    with pytest.raises(RemoteProtocolError, match="128 bytes is not there"):
        PayloadReader((memoryview(bytes(size)),)).take_all(found)


@pytest.mark.parametrize("dtypes", [("bool",), ("int8", "bfloat16"), ("no dtype",)])
def test_columns_that_need_another_look_have_no_layout(dtypes: tuple[str, ...]) -> None:
    assert layout(described(*dtypes)) is None
    assert layout(described("int8", rows=0)) is None


def test_the_bytes_that_are_left() -> None:
    reader = PayloadReader((memoryview(bytes(8)), memoryview(bytes(5))))
    assert reader.left == 13
    reader.array("int64", (1,))
    assert reader.left == 5
