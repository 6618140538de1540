"""ShapedFeature beside what tutorials of TensorFlow write: ``decode_raw`` and ``reshape``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamrec as sr
from tests.formats.beside_tensorflow import IN_ONE_WORKER, both, drawn, tf

pytestmark = [IN_ONE_WORKER, pytest.mark.both_kernels]

DTYPES = ["uint8", "int16", "uint16", "int32", "int64", "float16", "bfloat16", "float32"]
DTYPES += ["float64", "complex64", "complex128"]
SIDES = st.integers(-1, 4)
READ = {"h": "int64", "w": "int64"}


@st.composite
def records(draw: st.DrawFn, item: int) -> tuple[int, int, bytes]:
    """Draw a height, a width and mostly as many bytes as they take with two channels."""
    height, width = draw(SIDES), draw(SIDES)
    size = max(0, height) * max(0, width) * 2 * item + draw(st.sampled_from([0, 0, 0, 1, item]))
    return height, width, draw(st.binary(min_size=size, max_size=size))


@drawn
@given(data=st.data(), dtype=st.sampled_from(DTYPES))
def test_decode_raw_and_reshape(data: Any, dtype: str) -> None:
    height, width, octets = data.draw(records(tf.as_dtype(dtype).size))
    serialized = sr.encode_example({"h": height, "w": width, "x": octets})

    def theirs() -> Any:
        features = {name: tf.io.FixedLenFeature([], kind) for name, kind in READ.items()}
        features["x"] = tf.io.FixedLenFeature([], tf.string)
        row = tf.io.parse_single_example(serialized, features)
        if min(height, width) < 0:  # for TensorFlow -1 is the rest, and 0 of 0 bytes
            raise ValueError
        return tf.reshape(tf.io.decode_raw(row["x"], dtype), [row["h"], row["w"], 2])

    spec = sr.ShapedFeature(("h", "w", 2), dtype, raw=True)
    found = both(theirs, lambda: sr.parse_single_example(serialized, {"x": spec})["x"])
    if found:
        expected, got = found[0].numpy(), found[1]
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
        assert got.tobytes() == expected.tobytes()


@drawn
@given(sides=st.lists(st.integers(0, 4), min_size=3, max_size=3), more=st.sampled_from([0, 0, 1]))
def test_reshape_of_a_list(sides: list[int], more: int) -> None:
    values = np.arange(int(np.prod(sides)) + more)
    serialized = sr.encode_example({"s": sides, "x": values})

    def theirs() -> Any:
        features = {
            "s": tf.io.FixedLenFeature([3], "int64"),
            "x": tf.io.RaggedFeature("int64"),
        }
        row = tf.io.parse_single_example(serialized, features)
        return tf.reshape(row["x"], row["s"])

    spec = sr.ShapedFeature("s", "int64", rank=3)
    found = both(theirs, lambda: sr.parse_single_example(serialized, {"x": spec})["x"])
    if found:
        np.testing.assert_array_equal(found[1], found[0].numpy())
