from __future__ import annotations

import json

import pytest

from streamrec import errors
from streamrec.errors import StreamrecError
from streamrec.wire.error_fields import from_fields, to_fields

TREE = [kind for kind in map(vars(errors).get, errors.__all__) if isinstance(kind, type)]


@pytest.mark.parametrize("kind", TREE)
def test_every_error_crosses_a_process(kind: type[StreamrecError]) -> None:
    facts = {
        "url": "s3://b/k",
        "offset": 7,
        "record": 3,
        "feature": "f",
        "stage": "decode",
        "code": "token",
    }
    values = {**facts, "position": {"step": 1}}
    error = kind("what", **{name: values[name] for name in values if name in vars(kind("what"))})
    again = from_fields(json.loads(json.dumps(to_fields(error))))
    assert type(again) is kind
    assert str(again) == str(error)
    assert again.fields() == error.fields()


def test_a_foreign_error_travels_by_name() -> None:
    again = from_fields(to_fields(KeyError("k")))
    assert type(again) is StreamrecError
    assert "KeyError" in str(again)


def test_hostile_fields_are_dropped() -> None:
    error = from_fields({"type": "object", "message": 5, "url": "x", "args": []})
    assert type(error) is StreamrecError
    assert str(error) == "5"
