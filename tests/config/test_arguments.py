from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamrec.config.arguments import (
    count_of,
    kind_of,
    options_of,
    place_text,
    plain_integer,
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


def test_options_are_a_mapping_whose_values_no_error_shows() -> None:
    assert options_of(None) == {}
    assert options_of({"a": 1}) == {"a": 1}
    with pytest.raises(ConfigError, match="a str; give a mapping from names to values") as caught:
        options_of("swordfish")
    assert "swordfish" not in str(caught.value)


@pytest.mark.parametrize("given", [-1, 1.5, "1", None])
def test_a_count_begins_at_0(given: Any) -> None:
    assert count_of(0, "count") == 0
    with pytest.raises(ConfigError, match=r"count is .*; give a number from 0 up"):
        count_of(given, "count")


def test_an_integer_of_numpy_is_a_count() -> None:
    assert type(count_of(np.int64(3), "count")) is int


@pytest.mark.parametrize("value", [True, 1.5, "1", None, np.float64(2)])
def test_what_is_not_an_integer_stays(value: Any) -> None:
    assert plain_integer(value) is value


@pytest.mark.parametrize(("given", "words"), [(None, "None"), (5, "an int"), ([], "a list")])
def test_the_kind_of_a_value(given: Any, words: str) -> None:
    assert kind_of(given) == words
