"""Hypothesis strategies: feature specs of every kind."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import strategies as st

from streamrec.formats.examples.dtypes import HELD_AS, range_of
from streamrec.formats.examples.image_spec import Image
from streamrec.formats.examples.specs import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    RaggedFeature,
    ShapedFeature,
    SparseFeature,
    VarLenFeature,
)
from streamrec.kernel.contract import DataType

DTYPES: list[Any] = sorted(set(HELD_AS) - {"bfloat16"})
KEYS = st.text(min_size=1, max_size=4)


def values(dtype: str) -> st.SearchStrategy[Any]:
    """Draw values that the dtype can hold exactly."""
    if HELD_AS[dtype] is DataType.BYTES:
        return st.binary(max_size=5)
    if dtype == "bool":
        return st.booleans()
    if HELD_AS[dtype] is DataType.INT64:
        least, greatest = range_of(dtype)
        return st.integers(least, min(greatest, 2**63 - 1))
    return st.floats(width=16 if dtype == "float16" else 32, allow_nan=False, allow_infinity=False)


@st.composite
def fixed(draw: st.DrawFn) -> FixedLenFeature:
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(1, 3), max_size=2))
    count = math.prod(shape)
    if dtype != "bytes" and draw(st.booleans()):
        return FixedLenFeature(shape, dtype, draw(st.sampled_from([None, [1] * count])), raw=True)
    default = st.lists(values(dtype), min_size=count, max_size=count)
    return FixedLenFeature(shape, dtype, draw(st.none() | default))


@st.composite
def sequences(draw: st.DrawFn) -> FixedLenSequenceFeature:
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(1, 3), max_size=2))
    default = draw(st.none() | values(dtype))
    return FixedLenSequenceFeature(shape, dtype, draw(st.booleans()), default)


PARTITIONS = st.one_of(
    *[
        st.builds(kind, KEYS)
        for kind in (
            RaggedFeature.RowSplits,
            RaggedFeature.RowLengths,
            RaggedFeature.RowStarts,
            RaggedFeature.RowLimits,
            RaggedFeature.ValueRowIds,
        )
    ],
    st.builds(RaggedFeature.UniformRowLength, st.integers(1, 9)),
)
RAGGED = st.builds(
    RaggedFeature,
    st.sampled_from(DTYPES),
    st.none() | KEYS,
    st.lists(PARTITIONS, max_size=3),
    st.sampled_from(["int32", "int64"]),
    st.booleans(),
)


@st.composite
def sparse(draw: st.DrawFn) -> SparseFeature:
    dtype = draw(st.sampled_from(DTYPES))
    if draw(st.booleans()):
        return SparseFeature(draw(KEYS), draw(KEYS), dtype, draw(st.integers(0, 9)))
    keys = draw(st.lists(KEYS, min_size=1, max_size=3))
    sizes = [draw(st.integers(0, 9)) for _ in keys]
    return SparseFeature(keys, draw(KEYS), dtype, sizes, draw(st.booleans()))


SIZES = st.tuples(st.integers(1, 9), st.integers(1, 9))


@st.composite
def shaped(draw: st.DrawFn) -> ShapedFeature:
    dtype, key = draw(st.sampled_from(sorted({*DTYPES} - {"bytes"}))), draw(st.none() | KEYS)
    if draw(st.booleans()):
        return ShapedFeature(draw(KEYS), dtype, key, draw(st.booleans()), draw(st.integers(1, 30)))
    sides: list[Any] = [*draw(st.lists(KEYS, min_size=1, max_size=2)), *draw(SIZES)]
    return ShapedFeature(draw(st.permutations(sides)), dtype, key, draw(st.booleans()))


DCT_METHODS = st.sampled_from(["", "INTEGER_FAST", "INTEGER_ACCURATE"])
IMAGES = (
    st.builds(Image, st.none(), st.sampled_from([0, 1, 3, 4]), dct_method=DCT_METHODS)
    | st.builds(Image, SIZES, st.sampled_from([1, 3, 4]), dct_method=DCT_METHODS)
    | st.builds(Image, st.none(), st.sampled_from([1, 3, 4]), SIZES)
)
SPECS = (
    fixed()
    | sequences()
    | st.builds(VarLenFeature, st.sampled_from(DTYPES))
    | RAGGED
    | sparse()
    | shaped()
    | IMAGES
)
FEATURES = st.dictionaries(st.text(max_size=5), SPECS, max_size=4)
STEPS = st.dictionaries(
    st.text(max_size=5).map("steps {}".format),
    sequences() | st.builds(VarLenFeature, st.sampled_from(DTYPES)) | RAGGED | IMAGES,
    max_size=3,
)
