from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamrec.devstore import DevStore
from streamrec.devstore.gcs import (
    error_reply,
    object_resource,
    operation_of,
    parse,
    parse_multipart,
    select,
    speaks_gcs,
)
from streamrec.devstore.objects import StoredObject
from streamrec.devstore.refusals import Refusal
from streamrec.stores.gcs.google_credentials import filesystem
from tests.stores.gcs_probes import Api
from tests.support import asynchronous

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
    assert select(DOCUMENT, fields) == shown


@pytest.mark.parametrize("fields", ["", "a(", "a b", "a(b(c))", ",a"])
def test_selections_that_cannot_be_read(fields: str) -> None:
    with pytest.raises(Refusal, match="selection"):
        select(DOCUMENT, fields)


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


TEXT = "application/json"
HEADERS = {"Authorization": "Bearer testtoken"}


@pytest.mark.parametrize(
    ("method", "path", "query", "named"),
    [
        ("POST", "/storage/v1/b", {}, ("buckets.insert", "", "")),
        ("GET", "/storage/v1/b/x/o", {}, ("objects.list", "x", "")),
        ("GET", "/storage/v1/b/x/o/a/b\n", {}, ("objects.get", "x", "a/b\n")),
        ("GET", "/storage/v1/b/x/o/a", {"alt": "media"}, ("objects.get media", "x", "a")),
        ("GET", "/download/storage/v1/b/x/o/a", {}, ("objects.get media", "x", "a")),
        ("POST", "/upload/storage/v1/b/x/o", {}, ("objects.insert", "x", "")),
        (
            "PUT",
            "/upload/storage/v1/b/x/o",
            {"upload_id": "1"},
            ("objects.insert part", "x", ""),
        ),
        ("PATCH", "/storage/v1/b/x/o/a", {}, ("Unknown", "x", "a")),
        ("GET", "/storage/v1/b/x/acl", {}, ("Unknown", "", "")),
    ],
)
def test_what_is_asked_for(
    method: str, path: str, query: dict[str, str], named: tuple[str, str, str]
) -> None:
    assert speaks_gcs(path)
    assert operation_of(method, path, query) == named


@pytest.mark.parametrize("path", ["/", "/b/k", "/storage", "/storage/v1/object", "/storage/v1/bu"])
def test_other_paths_are_those_of_s3(path: str) -> None:
    assert not speaks_gcs(path)


@asynchronous
async def test_buckets() -> None:
    async with DevStore() as store, Api(store.endpoint, "ours", HEADERS).connected() as gcs:
        for body, status in [
            (b'{"name": "ours"}', 200),
            (b'{"name": "a/b"}', 400),
            (b'{"name": 1}', 400),
            (b"{}", 400),
            (b"[]", 400),
        ]:
            answer = await gcs.call("POST", "/storage/v1/b", body, Content_Type=TEXT)
            assert answer.status == status
        assert store.objects.buckets() == ["ours"]


@asynchronous
async def test_refusals() -> None:
    async with DevStore() as store, Api(store.endpoint, "ours", HEADERS).connected() as gcs:
        store.put("ours/x", b"data")
        for method, path, status in [
            ("PATCH", gcs.about("x"), 501),
            ("GET", f"{gcs.objects}?maxResults=all", 400),
            ("GET", f"{gcs.objects}?fields=a(", 400),
            ("GET", gcs.about("none"), 404),
            ("DELETE", gcs.about("none"), 404),
            ("POST", f"{gcs.about('none')}/rewriteTo/b/ours/o/new", 404),
            ("POST", f"/upload{gcs.objects}?name=x", 501),
            ("POST", f"/upload{gcs.objects}?uploadType=multipart&ifGenerationMatch=0", 501),
            ("POST", f"/upload{gcs.objects}?uploadType=multipart", 400),
            ("POST", "/upload/storage/v1/b/none/o?uploadType=multipart&name=x", 404),
            ("PUT", f"/upload{gcs.objects}?upload_id=none", 404),
        ]:
            answer = await gcs.call(method, path)
            assert (answer.status, answer.document["error"]["code"]) == (status, status)
            assert "x-guploader-uploadid" in answer.headers
        media = await gcs.call("GET", gcs.media("none"))
        assert (media.status, media.body) == (404, b"No such object: ours/none")


@asynchronous
async def test_tokens_are_given_out_for_an_hour() -> None:
    now = [1000.0]
    async with DevStore(now=lambda: now[0]) as store:
        store.put("ours/x", b"data")
        async with Api(store.endpoint, "ours").connected() as gcs:
            issued = (await gcs.call("POST", store.token_url, b"grant")).document
            assert issued["expires_in"] == 3600
            header = f"Bearer {issued['access_token']}"
            for later, status in [(0, 200), (3599, 200), (3600, 401)]:
                now[0] = 1000.0 + later
                answer = await gcs.call("GET", gcs.media("x"), Authorization=header)
                assert answer.status == status
                assert ("WWW-Authenticate" in answer.headers) == (status == 401)


@pytest.mark.parametrize("ending", [b"", b"\r", b"\n", b"\r\n", b"--==0=="])
def test_gcsfs_at_work(ending: bytes) -> None:
    with DevStore() as store:
        gcs = filesystem({**store.gcs_options, "project": "ours", "consistency": "md5"})
        gcs.mkdir("bucket")
        gcs.pipe_file("bucket/a/one", b"1" + ending)
        with gcs.open("bucket/a/two", "wb") as file:
            file.write(b"22")
        assert gcs.ls("bucket/a", detail=False) == ["bucket/a/one", "bucket/a/two"]
        assert dict(store.objects) == {"bucket/a/one": b"1" + ending, "bucket/a/two": b"22"}
