"""Probes of Google's JSON API, for every server that implements it."""

from __future__ import annotations

import gzip
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import aiohttp
import pytest
from yarl import URL

from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

DATA = bytes(range(256))
ENCODED = gzip.compress(DATA * 10, mtime=0)
TEXT = "application/json; charset=UTF-8"


@dataclass
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)


@dataclass
class Api:
    """A bucket behind an endpoint."""

    endpoint: str
    bucket: str
    headers: dict[str, str] = field(default_factory=dict)
    session: aiohttp.ClientSession | None = None

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Api]:
        async with aiohttp.ClientSession(headers=self.headers, auto_decompress=False) as session:
            yield Api(self.endpoint, self.bucket, session=session)

    async def call(self, method: str, path: str, body: bytes = b"", **headers: str) -> Answer:
        assert self.session
        spelled = {name.replace("_", "-"): value for name, value in headers.items()}
        spelled.setdefault("Accept-Encoding", "identity")
        where = path if path.startswith("http") else self.endpoint + path
        address = URL(where, encoded=True)
        async with self.session.request(method, address, data=body, headers=spelled) as answer:
            return Answer(answer.status, answer.headers, await answer.read())

    async def upload(self, name: str, data: bytes, query: str = "", **about: str) -> Answer:
        """Metadata and content in one body."""
        mark = b"--=mark="
        parts = [
            f"Content-Type: {TEXT}".encode() + b"\r\n\r\n" + json.dumps(about).encode(),
            b"Content-Type: application/octet-stream\r\n\r\n" + data,
        ]
        body = b"".join(mark + b"\r\n" + part + b"\r\n" for part in parts) + mark + b"--"
        path = f"/upload{self.objects}?uploadType=multipart&name={quote(name, safe='')}{query}"
        return await self.call(
            "POST", path, body, Content_Type='multipart/related; boundary="=mark="'
        )

    async def put(self, name: str, data: bytes = DATA, **about: str) -> str:
        """Write an object, and return its generation."""
        answer = await self.upload(name, data, **about)
        assert answer.status == 200
        return str(answer.document["generation"])

    @property
    def objects(self) -> str:
        return f"/storage/v1/b/{self.bucket}/o"

    def about(self, name: str, query: str = "") -> str:
        return f"{self.objects}/{quote(name, safe='')}?{query}"

    def media(self, name: str, query: str = "") -> str:
        return f"/download{self.about(name)}alt=media{query}"


class GCSProbes:
    """The list; ``api`` is a fixture of the subclass."""

    @pytest.mark.parametrize("place", ["download", "media"])
    @asynchronous
    async def test_media_names_the_version(self, api: Api, place: str) -> None:
        async with api.connected() as gcs:
            generation = await gcs.put("a/b c%")
            path = gcs.media("a/b c%") if place == "download" else gcs.about("a/b c%", "alt=media")
            answer = await gcs.call("GET", path)
            assert (answer.status, answer.body) == (200, DATA)
            assert answer.headers["x-goog-generation"] == generation
            assert answer.headers["x-goog-stored-content-encoding"] == "identity"

    @asynchronous
    async def test_ranges(self, api: Api) -> None:
        async with api.connected() as gcs:
            await gcs.put("x")
            for wanted, span in [("0-0", (0, 1)), ("10-19", (10, 20)), ("250-999", (250, 256))]:
                answer = await gcs.call("GET", gcs.media("x"), Range=f"bytes={wanted}")
                start, stop = span
                assert (answer.status, answer.body) == (206, DATA[start:stop])
                assert answer.headers["Content-Range"] == f"bytes {start}-{stop - 1}/256"

    @asynchronous
    async def test_suffix_ranges(self, api: Api) -> None:
        async with api.connected() as gcs:
            await gcs.put("x")
            answer = await gcs.call("GET", gcs.media("x"), Range="bytes=-6")
            assert (answer.status, answer.body) == (206, DATA[-6:])

    @asynchronous
    async def test_ranges_past_the_end(self, api: Api) -> None:
        async with api.connected() as gcs:
            await gcs.put("x")
            answer = await gcs.call("GET", gcs.media("x"), Range="bytes=256-")
            assert answer.status == 416
            assert answer.headers["Content-Range"] == "bytes */256"

    @asynchronous
    async def test_empty_uploads(self, api: Api) -> None:
        async with api.connected() as gcs:
            answer = await gcs.upload("empty", b"")
            assert answer.document["size"] == "0"

    @asynchronous
    async def test_connections_are_kept(self, api: Api) -> None:
        async with api.connected() as gcs:
            await gcs.put("x")
            for _ in range(3):
                await gcs.call("GET", gcs.media("x"))
            assert gcs.session
            connector = gcs.session.connector
            assert connector
            assert sum(map(len, connector._conns.values())) == 1

    @asynchronous
    async def test_a_generation_that_is_gone_is_not_found(self, api: Api) -> None:
        async with api.connected() as gcs:
            before = await gcs.put("x")
            after = await gcs.put("x", DATA[::-1])
            assert int(before) < int(after)
            for generation, status in ((after, 200), (before, 404)):
                path = gcs.media("x", f"&generation={generation}")
                assert (await gcs.call("GET", path)).status == status

    @asynchronous
    async def test_preconditions_of_reads(self, api: Api) -> None:
        async with api.connected() as gcs:
            now = await gcs.put("x")
            for generation, status in ((now, 200), ("1", 412)):
                path = gcs.media("x", f"&ifGenerationMatch={generation}")
                assert (await gcs.call("GET", path)).status == status

    @asynchronous
    async def test_uploads_in_parts(self, api: Api) -> None:
        large = DATA * 1024 + b"rest"
        first = 256 << 10
        async with api.connected() as gcs:
            path = f"/upload{gcs.objects}?uploadType=resumable&name=large"
            begun = await gcs.call("POST", path, b'{"name": "large"}', Content_Type=TEXT)
            place = begun.headers["Location"]
            span = f"bytes 0-{first - 1}/{len(large)}"
            answer = await gcs.call("PUT", place, large[:first], Content_Range=span)
            assert (answer.status, answer.headers["Range"]) == (308, f"bytes=0-{first - 1}")
            assert (await gcs.call("GET", gcs.media("large"))).status == 404
            asked = await gcs.call("PUT", place, Content_Range=f"bytes */{len(large)}")
            assert (asked.status, asked.headers["Range"]) == (308, f"bytes=0-{first - 1}")
            span = f"bytes {first}-{len(large) - 1}/{len(large)}"
            answer = await gcs.call("PUT", place, large[first:], Content_Range=span)
            assert answer.document["size"] == str(len(large))
            assert (await gcs.call("GET", gcs.media("large"))).body == large

    @asynchronous
    async def test_pages(self, api: Api) -> None:
        async with api.connected() as gcs:
            for name in ("a", "b", "c/1", "c/2", "d"):
                await gcs.put(name)
            found: list[list[str]] = []
            token = ""
            while token is not None:
                path = f"{gcs.objects}?maxResults=2&delimiter=/{token}"
                page = (await gcs.call("GET", path)).document
                names = [item["name"] for item in page.get("items", [])]
                found.append(names + page.get("prefixes", []))
                token = page.get("nextPageToken")
                token = token and "&pageToken=" + quote(token, safe="")
            assert found == [["a", "b"], ["d", "c/"]]

    @asynchronous
    async def test_listing_from_a_name_on(self, api: Api) -> None:
        async with api.connected() as gcs:
            for name in ("a", "b", "c"):
                await gcs.put(name)
            page = await gcs.call("GET", f"{gcs.objects}?startOffset=b")
            assert [item["name"] for item in page.document["items"]] == ["b", "c"]

    @asynchronous
    async def test_only_the_fields_that_are_asked_for(self, api: Api) -> None:
        async with api.connected() as gcs:
            await gcs.put("x")
            page = await gcs.call("GET", f"{gcs.objects}?fields=items(name,size)")
            assert page.document == {"items": [{"name": "x", "size": "256"}]}

    @asynchronous
    async def test_an_encoded_object_as_it_is_stored(self, api: Api) -> None:
        async with api.connected() as gcs:
            await gcs.put("x", ENCODED, contentEncoding="gzip")
            answer = await gcs.call(
                "GET", gcs.media("x"), Accept_Encoding="gzip", Range="bytes=2-9"
            )
            assert (answer.status, answer.body) == (206, ENCODED[2:10])
            assert answer.headers["Content-Encoding"] == "gzip"
            assert answer.headers["x-goog-stored-content-encoding"] == "gzip"

    @asynchronous
    async def test_an_encoded_object_is_unpacked_for_others(self, api: Api) -> None:
        async with api.connected() as gcs:
            await gcs.put("x", ENCODED, contentEncoding="gzip")
            answer = await gcs.call("GET", gcs.media("x"), Range="bytes=2-9")
            assert (answer.status, answer.body) == (200, DATA * 10)
            assert "Content-Encoding" not in answer.headers
            assert answer.headers["x-goog-stored-content-encoding"] == "gzip"

    @asynchronous
    async def test_what_is_not_there(self, api: Api) -> None:
        async with api.connected() as gcs:
            for path in (gcs.media("x"), "/storage/v1/b/streamrec-none/o"):
                assert (await gcs.call("GET", path)).status == 404
