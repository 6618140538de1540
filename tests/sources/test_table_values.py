from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.sources.table_values import JsonNumber, RowError, SampledType, as_value


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        ("9007199254740993", "int64", 9007199254740993),
        (" 12.0 ", "int64", 12),
        (2.0, "int64", 2),
        (True, "int64", 1),
        ("-1e3", "float32", -1000.0),
        ("Infinity", "float32", math.inf),
        (JsonNumber("-Infinity"), "float32", -math.inf),
        ("16777218", "float32", 16777218.0),
        ("é", "bytes", "é".encode()),
    ],
)
def test_values(value: Any, dtype: str, expected: Any) -> None:
    assert as_value(value, dtype, is_given=False) == expected
    assert as_value(value, dtype) == expected


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        ("007", "int64", 7),
        ("+49301234", "int64", 49301234),
        ("007", "float32", 7.0),
        (16777217, "float32", 16777217.0),
        ("16777217.0", "float32", 16777217.0),
        (7, "bytes", b"7"),
        (True, "bytes", b"true"),
        (JsonNumber("1.10"), "bytes", b"1.10"),
        (JsonNumber("1e400"), "bytes", b"1e400"),
    ],
)
def test_values_that_change_only_where_the_user_says_so(
    value: Any, dtype: str, expected: Any
) -> None:
    assert as_value(value, dtype) == expected
    with pytest.raises(RowError) as caught:
        as_value(value, dtype, is_given=False)
    assert f"--type 'a b={dtype}'" in str(caught.value.of_column("a b"))


@pytest.mark.parametrize(
    ("value", "dtype", "words"),
    [
        ("1_0", "int64", "'1_0', which is not int64; correct it, or add --type a=bytes"),
        (
            "\N{ARABIC-INDIC DIGIT SEVEN}",
            "int64",
            "'\N{ARABIC-INDIC DIGIT SEVEN}', which is not int64",
        ),
        ("1.5", "int64", "'1.5', which is not int64; correct it, or add --type a=float32"),
        (1 << 63, "int64", "9223372036854775808, which is beyond int64; correct it, or add --type"),
        ("1e39", "float32", "'1e39', which is beyond float32"),
        ("1e400", "float32", "'1e400', which is beyond float32"),
        (float("1e400"), "float32", "a number above 1.8e308, which is beyond float32"),
        (10**400, "float32", "which is beyond float32"),
        ("x", "float32", "'x', which is not float32"),
        ([1], "bytes", "[1], which is not bytes"),
        (b"7", "int64", "b'7', which is not int64"),
        ("\ud800", "bytes", "half of a character"),
    ],
)
def test_values_of_other_types(value: Any, dtype: str, words: str) -> None:
    with pytest.raises(RowError) as caught:
        as_value(value, dtype)
    assert words in str(caught.value.of_column("a"))


@pytest.mark.parametrize("value", [1e-50, "-1e-50"])
def test_numbers_that_float32_makes_0(value: Any) -> None:
    assert as_value(value, "float32") == float(value)
    with pytest.raises(RowError, match="0 as float32") as caught:
        as_value(value, "float32", is_given=False)
    assert "--type a=bytes, which keeps the digits, or --type a=float32" in str(
        caught.value.of_column("a")
    )


def type_of(*values: Any) -> str | None:
    sampled = SampledType()
    for value in values:
        sampled.take(value)
    return sampled.dtype


def type_of_texts(*texts: str | None) -> str | None:
    sampled = SampledType()
    for text in texts:
        sampled.take_text(text)
    return sampled.dtype


def test_types_of_json() -> None:
    assert type_of() is type_of(None, [], {}) is None
    assert type_of(1, True, [2]) == "int64"
    assert type_of(1, 2.5) == type_of(1.0, 2) == type_of(math.nan) == "float32"
    assert type_of(1, "x") == type_of("1") == "bytes"
    assert type_of(1e39, 5) == "float32"
    assert type_of(1.0, 16777217) == type_of(1, math.nan) == type_of(1.0, None, 2.5) == "float32"
    assert type_of(1.0, None) == type_of(None, 16777217.0, 2) == type_of([1.0], None) == "int64"


def test_types_of_texts() -> None:
    assert type_of_texts("1", " -7") == type_of_texts("99999999999999999999") == "int64"
    assert type_of_texts("1", "2.5") == type_of_texts("1e39") == type_of_texts("4.0") == "float32"
    assert type_of_texts("007") == type_of_texts("1", "+49") == type_of_texts("1_0") == "bytes"
    assert type_of_texts("16777217.0", "3.0") == type_of_texts("1", "nan") == "float32"
    assert type_of_texts("3.0", None) == type_of_texts(None, "16777217.0", "2") == "int64"
    assert type_of_texts("3.0", None, "2.5") == type_of_texts("3.0", None, "nan") == "float32"
    parts = SampledType(), SampledType()
    parts[0].take_text("1.0")
    parts[1].take_text(None)
    parts[0].add(parts[1])
    assert parts[0].dtype == "int64"
    parts[1].take_text("x")
    parts[0].add(parts[1])
    assert parts[0].dtype == "bytes"
    assert parts[0].is_mixed
    assert not parts[1].is_mixed


@given(st.floats(width=64) | st.integers(-(1 << 70), 1 << 70))
def test_a_number_keeps_its_whole_part_or_is_refused(number: float) -> None:
    try:
        kept = as_value(JsonNumber(str(number)) if math.isinf(number) else number, "float32",
                        is_given=False)  # fmt: skip
    except RowError:
        assert abs(number) > 1 << 24 or 0 < abs(number) < 1e-45
        return
    narrow = float(np.float32(kept))
    assert (narrow == 0) == (number == 0)
    if isinstance(number, int):
        assert int(narrow) == number
    elif math.isfinite(number) and abs(number) <= 1 << 53:
        assert abs(narrow - number) < 1
    else:
        np.testing.assert_equal(kept, number)
