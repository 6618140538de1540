from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamrec.devstore.errors import Refusal
from streamrec.devstore.gcs_documents import (
    error_reply,
    object_resource,
    parse,
    parse_multipart,
    selected,
)
from streamrec.devstore.objects import StoredObject

DOCUMENT = {"a": 1, "b": {"c": 2, "d": 3}, "items": [{"c": 4, "d": 5}, {"c": 6}]}


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        (None, DOCUMENT),
        ("a", {"a": 1}),
        ("a,items(c)", {"a": 1, "items": [{"c": 4}, {"c": 6}]}),
        ("items(c,d),nothing", {"items": [{"c": 4, "d": 5}, {"c": 6}]}),
    ],
)
def test_selection(fields: str | None, shown: dict[str, Any]) -> None:
    assert selected(DOCUMENT, fields) == shown


@pytest.mark.parametrize("fields", ["", "a(", "a b", "a(b(c))", ",a"])
def test_selections_that_cannot_be_read(fields: str) -> None:
    with pytest.raises(Refusal, match="selection"):
        selected(DOCUMENT, fields)


def test_an_object() -> None:
    stored = StoredObject(5, "0" * 32, 1e9, {"Content-Encoding": "gzip"}, generation=7)
    resource = object_resource("b", "k", stored)
    assert (resource["size"], resource["generation"]) == ("5", "7")
    assert (resource["contentEncoding"], resource["md5Hash"]) == ("gzip", "A" * 22 + "==")
    assert "contentEncoding" not in object_resource("b", "k", StoredObject(5, "0" * 32, 1e9))
    assert "md5Hash" not in object_resource("b", "k", StoredObject(5, "0" * 32 + "-2", 1e9))


KIND = 'multipart/related; boundary="==0=="'


def multipart(data: bytes, newline: bytes = b"\r\n", about: bytes = b'{"name": "k"}') -> bytes:
    lines = [
        b"--==0==",
        b"Content-Type: application/json; charset=UTF-8",
        b"",
        about,
        b"--==0==",
        b"Content-Type: image/png",
        b"",
        data,
        b"--==0==--",
    ]
    return newline.join(lines)


@given(st.binary(), st.sampled_from([b"\n", b"\r\n"]))
@example(b"\r", b"\n")
@example(b"--==0==", b"\n")
@example(b"\n--==0==\n\n", b"\r\n")
def test_any_content_comes_back(data: bytes, newline: bytes) -> None:
    assert parse_multipart(KIND, multipart(data, newline)) == ({"name": "k"}, data)


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("multipart/related", b""),
        (KIND, b""),
        (KIND, b"--==0==--"),
        (KIND, multipart(b"x")[:-4]),
        (KIND, multipart(b"x").replace(b"--==0==\r\nContent-Type: image", b"")),
        (KIND, multipart(b"x", about=b"[]")),
    ],
)
def test_what_is_no_upload(kind: str, data: bytes) -> None:
    with pytest.raises(Refusal) as caught:
        parse_multipart(kind, data)
    assert caught.value.status == 400


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
