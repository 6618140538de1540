from __future__ import annotations

import numpy as np
import pytest

from streamrec.values.aligned import ALIGNMENT, align, empty


@pytest.mark.parametrize("shape", [(0,), (1,), (3, 5), (0, 7), (1000,)])
@pytest.mark.parametrize("dtype", ["uint8", "float16", "int64", "complex128"])
def test_empty(shape: tuple[int, ...], dtype: str) -> None:
    array = empty(shape, dtype)
    assert (array.shape, array.dtype) == (shape, np.dtype(dtype))
    assert array.ctypes.data % ALIGNMENT == 0
    assert array.flags.writeable
    assert array.flags.c_contiguous


@pytest.mark.parametrize("begin", [0, 1, 8, 63])
def test_an_array_is_copied_where_it_has_to_be(begin: int) -> None:
    memory = empty((200,), np.uint8)
    memory[...] = np.arange(200)
    array = align(memory[begin : begin + 100])
    assert array.ctypes.data % ALIGNMENT == 0
    assert array.tolist() == [*range(begin, begin + 100)]
    assert np.shares_memory(array, memory) == (begin == 0)


def test_objects_stay_where_they_are() -> None:
    objects = np.array([b"a", b"b"], object)
    assert align(objects) is objects
