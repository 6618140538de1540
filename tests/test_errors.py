from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import streamrec
from streamrec import errors
from streamrec.errors import (
    AccessDenied,
    ConfigError,
    CorruptRecord,
    FeederLost,
    ObjectNotFound,
    StoreError,
    StoreUnavailable,
    StreamrecError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(streamrec.__file__).parent
READ_TWICE = re.compile(
    r"(?<!there )(?<!There )\b(is|are|was|were) (no (?!longer\b|more\b)|none\b)"
    r"|\b(is|are|was|were) in none\b"
)
"""\"x is no y\" and \"x is none of\", in place of \"x is not a y\"."""

TREE = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and issubclass(value, StreamrecError)
]


@pytest.mark.parametrize("kind", TREE)
def test_every_error_is_exported_drawn_and_documented(kind: type[StreamrecError]) -> None:
    assert kind.__name__ in errors.__all__
    assert kind.__name__ in (errors.__doc__ or "")
    assert kind.__doc__


def test_a_message_says_where() -> None:
    error = CorruptRecord("the CRC differs", url="s3://b/k", offset=12, record=3)
    assert str(error) == "s3://b/k, offset 12, record 3: the CRC differs"


@pytest.mark.parametrize("kind", [kind for kind in TREE if issubclass(kind, StoreError)])
def test_a_store_error_is_the_same_at_a_place(kind: type[StoreError]) -> None:
    error = kind("it is gone", url="s3://b/k")
    placed = error.at(7)
    assert type(placed) is kind
    assert str(placed) == "s3://b/k, offset 7: it is gone"
    assert placed.fields() == {"url": "s3://b/k", "offset": 7}
    assert error.offset is None


def test_an_object_of_which_no_byte_can_be_read_has_no_place_in_it() -> None:
    error = ObjectNotFound("it is gone", url="s3://b/k").at(0)
    assert (str(error), error.offset) == ("s3://b/k: it is gone", 0)


def test_a_place_changes_nothing_else() -> None:
    error = StoreUnavailable("busy", retry_after=3.0, throttled=True).at(7)
    assert (error.retry_after, error.throttled) == (3.0, True)


def test_builtins_catch_them() -> None:
    assert issubclass(ObjectNotFound, FileNotFoundError)
    assert issubclass(AccessDenied, PermissionError)
    assert issubclass(StoreUnavailable, ConnectionError)
    assert issubclass(FeederLost, ConnectionError)
    assert issubclass(ConfigError, ValueError)


def test_retryable_says_whether_to_try_again() -> None:
    retryable = {kind.__name__ for kind in TREE if kind.retryable}
    assert retryable == {"StoreUnavailable", "FeederLost", "FeederDraining", "CorruptFrame"}


def test_a_position_is_a_field_but_no_text() -> None:
    error = FeederLost("gone", position={"step": 3})
    assert str(error) == "gone"
    assert error.fields() == {"position": {"step": 3}}


def texts(code: str) -> Iterator[tuple[int, str]]:
    """Yield each string of a module with its line; ``…`` stands for the values in an f-string."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, " ".join(node.value.split())
        if isinstance(node, ast.JoinedStr):
            parts = (p.value if isinstance(p, ast.Constant) else "…" for p in node.values)
            yield node.lineno, " ".join("".join(map(str, parts)).split())


def read_twice(code: str) -> list[tuple[int, str]]:
    return sorted({found for found in texts(code) if READ_TWICE.search(found[1])})


def test_messages_and_docstrings_say_is_not_a() -> None:
    found = {
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path in ROOT.rglob("*.py")
        for line, text in read_twice(path.read_text())
    }
    assert not found, 'write "is not a", or say what it must be'


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        ('raise E(f"{x!r} is no {kind}; give one")', [1]),
        ('raise E("dtype x is "\n  "none of torch\'s")', [1]),
        ('def f():\n  """Do.\n\n  Raises:\n    E: The bytes are\n      no index.\n  """', [2]),
        ('raise E("there is no file a; it is no longer a shard, and is not a tar")', []),
        ('raise E("it has no column")  # is no message', []),
    ],
)
def test_is_no_is_found(code: str, lines: list[int]) -> None:
    assert [line for line, _ in read_twice(code)] == lines
