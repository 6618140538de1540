"""Mappings of values that an Example can hold, most of them plain."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

INTS = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 300) | st.booleans()
FLOATS = st.floats()
STRINGS = st.binary(max_size=20) | st.text(max_size=10)
NUMBERS = INTS | FLOATS
DTYPES = st.sampled_from(["?", "b", "B", "h", "H", "i", "I", "q", "Q", "f", "d", "e", ">i4", "S3"])


def _array(draw_from: tuple[str, list[int], int]) -> Any:
    dtype, values, step = draw_from
    return np.array(values).astype(dtype)[::step]


ARRAYS = st.tuples(DTYPES, st.lists(st.integers(0, 120), max_size=9), st.sampled_from([1, 2]))
ONE = STRINGS | INTS | FLOATS
LISTS = st.lists(STRINGS, max_size=4) | st.lists(INTS, max_size=4) | st.lists(NUMBERS, max_size=4)
ODD: st.SearchStrategy[Any] = (
    st.just(2**64) | st.none() | st.just([b"x", 1]) | st.just("\ud800") | st.just([[1], [2, 3]])
    | st.builds(bytearray, st.binary(max_size=3)) | st.just(np.float64(2.5)) | st.just([1e300])
)  # fmt: skip
VALUES = ONE | LISTS | LISTS.map(tuple) | ARRAYS.map(_array) | ODD
MAPPINGS = st.dictionaries(st.text(max_size=8) | st.sampled_from("abc"), VALUES, max_size=20)
