from __future__ import annotations

import pytest

from streamrec.devstore import DevStore
from streamrec.devstore.gcs import operation_of, speaks_gcs
from streamrec.stores.gcs.google_credentials import filesystem
from tests.stores.gcs_probes import Api
from tests.support import asynchronous

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
