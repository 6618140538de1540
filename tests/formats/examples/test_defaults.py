from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from streamrec.errors import ConfigError
from streamrec.formats.examples.defaults import (
    as_plain,
    feature_name,
    from_plain,
    is_text,
    normal_default,
    normal_raw,
    normal_shape,
    normal_sides,
    normal_sizes,
)
from streamrec.kernel.contract import LARGEST_MESSAGE

MOST = 30
"""Dimensions: NumPy 1 has 32, of which a batch and the items of its rows take two."""


@pytest.mark.parametrize(
    ("shape", "sizes"),
    [
        ((), ()), ([], ()), (3, (3,)), ([2, 0], (2, 0)), (np.int64(4), (4,)),
        ((2**63 - 1,), (2**63 - 1,)), (np.array([2, 3]), (2, 3)),
    ],
)  # fmt: skip
def test_sizes(shape: Any, sizes: tuple[int, ...]) -> None:
    found = normal_sizes(shape)
    assert found == sizes
    assert all(type(size) is int for size in found)


@pytest.mark.parametrize("shape", [-1, (2, -1), True, 1.0, (1.5,), "3", (None,), 2**63])
def test_what_is_no_size(shape: Any) -> None:
    with pytest.raises(ConfigError, match="shape must be"):
        normal_sizes(shape)


def test_a_shape_is_one_that_a_record_can_hold() -> None:
    assert normal_shape([1] * MOST) == (1,) * MOST
    with pytest.raises(ConfigError, match="shape has 31 dimensions, but an array has at most 30"):
        normal_shape([1] * (MOST + 1))
    assert normal_shape((LARGEST_MESSAGE,)) == (LARGEST_MESSAGE,)
    for shape in ((LARGEST_MESSAGE + 1,), (LARGEST_MESSAGE + 1, 0), (0, LARGEST_MESSAGE, 2)):
        with pytest.raises(ConfigError, match="takes more values than the longest record holds"):
            normal_shape(shape)


@pytest.mark.parametrize(
    ("shape", "rank", "sides"),
    [
        ("shape", 1, "shape"), ("shape", MOST, "shape"), (("h", "w", 3), None, ("h", "w", 3)),
        (["h"], None, ("h",)), ((0, "w"), None, (0, "w")),
        (("h", *[1] * (MOST - 1)), None, ("h", *[1] * (MOST - 1))),
    ],
)  # fmt: skip
def test_sides_that_are_in_a_record(shape: Any, rank: Any, sides: Any) -> None:
    assert normal_sides(shape, rank) == sides


@pytest.mark.parametrize(
    ("shape", "rank", "words"),
    [
        ((2, 3), None, "shape must name the features that hold it"),
        ((), None, "shape must name the features that hold it"),
        (3, None, "shape must name the features that hold it"),
        ("shape", None, "rank is None beside shape='shape'"),
        (("h", "w"), 2, "rank is 2 beside shape="),
        ("shape", 0, "1 to 30 dimensions, not 0"),
        ("shape", MOST + 1, "1 to 30 dimensions, not 31"),
        ("shape", True, "1 to 30 dimensions, not True"),
        (("h", *[1] * MOST), None, "1 to 30 dimensions, not 31"),
        (("h", -1), None, "shape must be"),
    ],
)
def test_what_are_no_sides(shape: Any, rank: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        normal_sides(shape, rank)


@pytest.mark.parametrize(
    ("default", "dtype", "shape", "value"),
    [
        (None, "int64", (), None), (3, "int64", (), 3), ([3], "int64", (1,), (3,)),
        ([[1, 2], [3, 4]], "int32", (2, 2), (1, 2, 3, 4)), (np.arange(2), "int64", (2,), (0, 1)),
        (1, "float32", (), 1.0), ("é", "bytes", (), "é".encode()), (b"\xff", "bytes", (), b"\xff"),
        (True, "bool", (), True), (127, "int8", (), 127), (-128, "int8", (), -128),
        (255, "uint8", (), 255), (0, "uint8", (), 0), ([], "int64", (0,), ()),
    ],
)  # fmt: skip
def test_defaults(default: Any, dtype: str, shape: tuple[int, ...], value: Any) -> None:
    found = normal_default(default, dtype, shape)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("default", "dtype", "shape", "words"),
    [
        (1.5, "int64", (), "default_value 1.5 is not of type int64"),
        ("x", "int64", (), "default_value 'x' is not of type int64"),
        (1, "bytes", (), "default_value 1 is not of type bytes"),
        ("\udcff", "bytes", (), "is not of type bytes"),
        (128, "int8", (), "default_value 128 is not of type int8"),
        (-129, "int8", (), "default_value -129 is not of type int8"),
        (256, "uint8", (), "default_value 256 is not of type uint8"),
        (-1, "uint8", (), "default_value -1 is not of type uint8"),
        (1 << 63, "int64", (), "is not of type int64"),
        ([1, 2], "int64", (), "holds 2 values, but shape .. takes 1"),
        (1, "int64", (2,), r"holds 1 values, but shape \(2,\) takes 2"),
    ],
)
def test_what_is_no_default(default: Any, dtype: str, shape: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        normal_default(default, dtype, shape)


def test_defaults_of_raw_bytes_are_little_endian() -> None:
    assert normal_raw(None, "int16", (2,)) is None
    assert normal_raw([1, 258], "int16", (2,)) == b"\x01\0\x02\x01"
    assert normal_raw(b"abcd", "int16", (2,)) == b"abcd"
    assert normal_raw("abcd", "int16", (2,)) == b"abcd"
    for wrong, words in (
        (b"abc", r"has 3 bytes, but shape \(2,\) of int16 takes 4"),
        ([1], "holds 1 values"),
        ([1, "x"], "is not of type int16"),
        ([1, 1 << 15], "is not of type int16"),
    ):
        with pytest.raises(ConfigError, match=words):
            normal_raw(wrong, "int16", (2,))


def test_names_are_text() -> None:
    assert feature_name("é") == "é"
    for wrong in (b"x", 1, None, "\udcff"):
        with pytest.raises(ConfigError, match="a feature's name must be"):
            feature_name(wrong)
    assert [is_text(value) for value in ("x", "\ud800", b"x", 1)] == [True, False, False, False]


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (3, 3), (b"x", "x"), (b"\xff", {"base64": "/w=="}), ((1, 2), [1, 2]),
        ((b"a", b"\xff"), ["a", {"base64": "/w=="}]), (None, None),
    ],
)  # fmt: skip
def test_plain_forms(value: Any, plain: Any) -> None:
    assert as_plain(value) == plain
    again = from_plain(plain)
    assert as_plain(tuple(again) if isinstance(again, list) else again) == plain
