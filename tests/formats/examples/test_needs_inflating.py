from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamrec as sr
from streamrec.errors import BatchTooLarge, ConfigError, WrongFeatureType
from streamrec.formats.examples.features import FeatureParser
from streamrec.formats.examples.needs import Claims, DecodeLimits
from streamrec.values.record_rows import RecordRows

pytestmark = pytest.mark.both_kernels

FIXED = {"x": sr.FixedLenFeature((2,), "int16", raw="zlib")}
SHAPED = {"x": sr.ShapedFeature("n", "float32", raw="zlib", rank=2)}


def record(octets: bytes, **features: Any) -> bytes:
    return sr.encode_example({"x": octets, **features})


@given(rows=st.lists(st.tuples(*[st.integers(-(2**15), 2**15 - 1)] * 2), max_size=4))
def test_arrays_of_one_shape(rows: list[tuple[int, int]]) -> None:
    arrays = [np.array(row, "<i2") for row in rows]
    records = [record(zlib.compress(array.tobytes())) for array in arrays]
    column: Any = sr.parse_example(records, FIXED)["x"]
    assert column.dtype == np.int16
    assert column.tolist() == [list(row) for row in rows]


def test_arrays_of_different_shapes() -> None:
    arrays = [np.arange(6, dtype="<f4").reshape(2, 3), np.zeros((0, 2), "<f4"), np.ones((1, 1))]
    arrays = [array.astype("<f4") for array in arrays]
    records = [record(zlib.compress(a.tobytes()), n=list(a.shape)) for a in arrays]
    column: Any = sr.parse_example(records, SHAPED)["x"]
    for got, expected in zip(column, arrays, strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    ("octets", "why"),
    [
        (b"no zlib", "is not intact zlib"),
        (zlib.compress(b"1234")[:-1], "becomes fewer than the 4 bytes"),
        (zlib.compress(b"123"), "becomes fewer than the 4 bytes"),
        (zlib.compress(b"12345"), "becomes more than the 4 bytes"),
    ],
)
def test_other_strings_are_refused(octets: bytes, why: str) -> None:
    records = [record(zlib.compress(b"1234")), record(octets)]
    with pytest.raises(WrongFeatureType, match=why) as caught:
        sr.parse_example(records, FIXED)
    assert (caught.value.record, caught.value.feature) == (1, "x")


def test_no_more_memory_than_is_allowed() -> None:
    parser = FeatureParser(SHAPED, claims=Claims(DecodeLimits(max_bytes=1000)))
    small = record(zlib.compress(bytes(4000)), n=[10, 100])
    with pytest.raises(BatchTooLarge, match="takes 0"):
        parser.parse(RecordRows.of([small]))


def test_settings_that_are_refused() -> None:
    with pytest.raises(ConfigError, match="takes no default_value"):
        sr.FixedLenFeature((), "int8", 0, raw="zlib")
    with pytest.raises(ConfigError, match="raw must be True or False, or \"zlib\", not 'gzip'"):
        sr.FixedLenFeature((), "int8", raw="gzip")  # type: ignore[call-overload]
