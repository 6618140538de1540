from __future__ import annotations

import json
from typing import Any

import pytest

from streamrec.devstore.errors import Refusal
from streamrec.devstore.gcs_documents import error_reply, object_resource, parse, selected
from streamrec.devstore.objects import Stored

DOCUMENT = {"a": 1, "b": {"c": 2, "d": 3}, "items": [{"c": 4, "d": 5}, {"c": 6}]}


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        (None, DOCUMENT),
        ("*", DOCUMENT),
        ("a", {"a": 1}),
        ("a,b(c)", {"a": 1, "b": {"c": 2}}),
        ("b/d", {"b": {"d": 3}}),
        ("items(c,d),nothing", {"items": [{"c": 4, "d": 5}, {"c": 6}]}),
        ("items/c", {"items": [{"c": 4}, {"c": 6}]}),
        ("items(*)", {"items": [{"c": 4, "d": 5}, {"c": 6}]}),
    ],
)
def test_selection(fields: str | None, shown: dict[str, Any]) -> None:
    assert selected(DOCUMENT, fields) == shown


@pytest.mark.parametrize("fields", ["", "a(", "a b", "a(b(c))", ",a"])
def test_selections_that_cannot_be_read(fields: str) -> None:
    with pytest.raises(Refusal, match="selection"):
        selected(DOCUMENT, fields)


def test_an_object() -> None:
    stored = Stored(5, "0" * 32, 1e9, {"Content-Encoding": "gzip"}, generation=7, crc32c=1)
    resource = object_resource("b", "k", stored)
    assert (resource["size"], resource["generation"]) == ("5", "7")
    assert (resource["contentEncoding"], resource["crc32c"]) == ("gzip", "AAAAAQ==")
    assert resource["md5Hash"] == "A" * 22 + "=="
    joined = object_resource("b", "k", Stored(5, f"{'0' * 32}-2", 1e9))
    assert not {"md5Hash", "crc32c", "contentEncoding"} & joined.keys()


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff"])
def test_what_is_no_document(body: bytes) -> None:
    with pytest.raises(Refusal) as caught:
        parse(body)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Refusal(404, "notFound", "No such object"), "notFound"),
        (Refusal(401, ""), "authError"),
        (Refusal(429, ""), "rateLimitExceeded"),
        (Refusal(503, ""), "backendError"),
        (Refusal(403, "rateLimitExceeded"), "rateLimitExceeded"),
        (Refusal(400, "InvalidArgument"), "invalid"),
    ],
)
def test_errors(error: Refusal, reason: str) -> None:
    document = json.loads(error_reply(error, download=False).body)  # type: ignore[arg-type]
    assert document["error"]["code"] == error.status
    assert document["error"]["errors"][0]["reason"] == reason
    plain = error_reply(error, download=True)
    assert (plain.status, plain.body) == (error.status, error.message.encode())
