from __future__ import annotations

from typing import Any

import click
import pytest
from click.testing import CliRunner

from streamrec.cli.options import storage_option


def parse(*pairs: str) -> dict[str, Any]:
    found: dict[str, Any] = {}

    @click.command()
    @storage_option
    def verb(storage_options: dict[str, Any]) -> None:
        found.update(storage_options)

    arguments = [f"--storage-option={pair}" for pair in pairs]
    result = CliRunner().invoke(verb, arguments, standalone_mode=False)
    if result.exception:
        raise result.exception
    return found


def test_none() -> None:
    assert parse() == {}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("text", "text"),
        ("http://host:9000/a=b", "http://host:9000/a=b"),
        ("", ""),
        ("true", True),
        ("12", 12),
        ('"12"', "12"),
        ('{"verify": false}', {"verify": False}),
    ],
)
def test_values(text: str, value: object) -> None:
    assert parse(f"name={text}") == {"name": value}


def test_the_last_of_a_key_counts() -> None:
    assert parse("a=1", "b=2", "a=3") == {"a": 3, "b": 2}


@pytest.mark.parametrize("text", ["name", "=value", ""])
def test_no_pair(text: str) -> None:
    with pytest.raises(click.BadParameter, match="not KEY=VALUE"):
        parse(text)
