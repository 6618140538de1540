from __future__ import annotations

import inspect

import pytest

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
    placed = error.at(0)
    assert type(placed) is kind
    assert str(placed) == "s3://b/k, offset 0: it is gone"
    assert placed.fields() == {"url": "s3://b/k", "offset": 0}
    assert error.offset is None


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
