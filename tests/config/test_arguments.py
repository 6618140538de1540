from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamrec.config import DatasetSettings, validate
from streamrec.config.arguments import (
    count_of,
    kind_of,
    numbers_of,
    options_of,
    place_text,
    plain_integer,
    seconds_of,
    source_texts,
)
from streamrec.errors import ConfigError

WRONG: list[Any] = [None, 5, b"/x", {"a": "x"}, [5], [None], [["x"]]]


@pytest.mark.parametrize("given", ["dir/x", Path("dir/x")])
def test_a_place_is_text_or_a_path(given: Any) -> None:
    assert place_text(given) == "dir/x"
    assert source_texts(given) == "dir/x"


@pytest.mark.parametrize("given", [["a", Path("b")], ("a", Path("b")), iter(["a", "b"])])
def test_a_source_is_several_of_them(given: Any) -> None:
    assert source_texts(given) == ["a", "b"]


@pytest.mark.parametrize("given", WRONG)
def test_whatever_else_is_refused_in_one_sentence(given: Any) -> None:
    with pytest.raises(ConfigError, match="cannot name shards; give a URL or a path, such as"):
        source_texts(given)


def test_half_a_character_names_nothing() -> None:
    """Bytes of a file's name that are not UTF-8 are surrogates, too, and are taken."""
    assert source_texts("a\udc80b") == "a\udc80b"
    with pytest.raises(ConfigError, match="half of a surrogate pair"):
        source_texts(["a", "s3://b/\ud800"])
    with pytest.raises(ConfigError, match="half of a surrogate pair"):
        validate(DatasetSettings, {"source": ["y", "\udfff"]})


def test_options_are_a_mapping_whose_values_no_error_shows() -> None:
    assert options_of(None) == {}
    assert options_of({"a": 1}) == {"a": 1}
    with pytest.raises(ConfigError, match="a str; give a mapping from names to values") as caught:
        options_of("swordfish")
    assert "swordfish" not in str(caught.value)


@pytest.mark.parametrize("given", [-1, 1.5, "1", None, True])
def test_a_count_begins_at_0(given: Any) -> None:
    assert count_of(0, "count") == 0
    with pytest.raises(ConfigError, match=r"count is .*; give a number from 0 up"):
        count_of(given, "count")


def test_a_count_may_have_a_limit() -> None:
    assert count_of(5, "count", most=5) == 5
    with pytest.raises(ConfigError, match="count is 6; give a number from 0 to 5"):
        count_of(6, "count", most=5)


@pytest.mark.parametrize("number", [10**400, -(10**400)])
def test_a_number_beyond_those_of_a_float(number: int) -> None:
    with pytest.raises(ConfigError, match=r"parts has a number above 1\.7e308; give smaller ones"):
        numbers_of({"web": number}, "parts")


def test_an_integer_of_numpy_is_a_count() -> None:
    assert type(count_of(np.int64(3), "count")) is int


@pytest.mark.parametrize("value", [True, 1.5, "1", None, np.float64(2)])
def test_what_is_not_an_integer_stays(value: Any) -> None:
    assert plain_integer(value) is value


@pytest.mark.parametrize(("given", "words"), [(None, "None"), (5, "an int"), ([], "a list")])
def test_the_kind_of_a_value(given: Any, words: str) -> None:
    assert kind_of(given) == words


@pytest.mark.parametrize(
    ("given", "seconds"),
    [(30, 30.0), (0.5, 0.5), ("30s", 30.0), ("1.5 min", 90.0), (" 2h ", 7200.0)],
)
def test_a_length_of_time(given: Any, seconds: float) -> None:
    assert seconds_of(given, "every") == seconds


@pytest.mark.parametrize("given", [0, -1, True, None, "30", "0s", "s", "5 years", float("inf")])
def test_what_is_no_length_of_time(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"every is .*; give seconds above 0, or a text like"):
        seconds_of(given, "every")
