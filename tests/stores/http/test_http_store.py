from __future__ import annotations

import asyncio
import threading
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
from aiohttp import web

from streamrec.devstore import DevStore, FaultRule
from streamrec.errors import (
    AccessDenied,
    ConfigError,
    ObjectChanged,
    ObjectNotFound,
    StoreError,
    StoreMisbehaved,
    StoreUnavailable,
)
from streamrec.stores.http import http_store as http
from streamrec.stores.http.http_store import HttpStore
from streamrec.stores.http.transport import Transport
from tests.stores.conformance import (
    DATA,
    LARGE,
    Backend,
    Bench,
    FaultConformance,
    StoreConformance,
    filled,
    read,
)
from tests.stores.http_server import opened, serving
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

NOBODY = "https://127.0.0.1:1/x"


@asynccontextmanager
async def http_bench() -> AsyncIterator[Bench]:
    async with DevStore(anonymous=True) as devstore:
        store = HttpStore()
        try:
            yield Bench(
                store,
                url=lambda name: devstore.url("bucket/" + quote(name)),
                put=lambda name, data: devstore.put(f"bucket/{name}", data),
                devstore=devstore,
            )
            assert not in_use(store)
        finally:
            await store.aclose()


def in_use(store: HttpStore) -> int:
    """Return the number of connections that no range has given back."""
    session = store._client._session
    return len(session.connector._acquired) if session and session.connector else 0


class TestHttp(StoreConformance, FaultConformance):
    @pytest.fixture
    def backend(self) -> Backend:
        return http_bench

    @asynchronous
    async def test_one_request_a_range_and_no_other(self, backend: Backend) -> None:
        async with backend() as bench:
            assert bench.devstore
            bench.put("x", DATA)
            _, info = await read(bench.store, bench.url("x"), 0, 10)
            await read(bench.store, bench.url("x"), 10, 20, etag=info.etag)
            requests = [
                (each.method, each.range, each.if_match)
                for each in bench.devstore.statistics.records
            ]
            assert requests == [("GET", "bytes=0-9", None), ("GET", "bytes=10-19", info.etag)]

    @asynchronous
    async def test_weak_versions_are_compared_but_not_demanded(self, backend: Backend) -> None:
        async with backend() as bench:
            assert bench.devstore
            bench.put("x", DATA)
            bench.devstore.faults = [FaultRule(headers={"ETag": 'W/"one"'})]
            await read(bench.store, bench.url("x"), 0, 10, etag='W/"one"')
            with pytest.raises(ObjectChanged):
                await read(bench.store, bench.url("x"), 0, 10, etag='W/"two"')
            assert {each.if_match for each in bench.devstore.statistics.records} == {None}

    @pytest.mark.parametrize("changed", [("b", 100), ("a", 90)], ids=["time", "size"])
    @asynchronous
    async def test_without_an_etag_time_and_size_are_the_version(
        self, backend: Backend, changed: tuple[str, int]
    ) -> None:
        times = {"a": "Sat, 21 Nov 2026 00:46:45 GMT", "b": "Sat, 21 Nov 2026 00:46:46 GMT"}
        now = [("a", 100)]

        async def answer(request: web.Request) -> web.Response:
            name, size = now[0]
            time = times[name]
            start = request.http_range.start
            headers = {"Last-Modified": time, "Content-Range": f"bytes {start}-{start + 9}/{size}"}
            return web.Response(status=206, headers=headers, body=bytes(10))

        async with serving(answer) as url, opened() as store:
            _, info = await read(store, f"{url}/x", 0, 10)
            await read(store, f"{url}/x", 10, 20, etag=info.etag)
            now[:] = [changed]
            with pytest.raises(ObjectChanged):
                await read(store, f"{url}/x", 10, 20, etag=info.etag)

    @asynchronous
    async def test_store_that_refuses_what_it_has(self, backend: Backend) -> None:
        async with backend() as bench:
            assert bench.devstore
            bench.put("x", DATA)
            _, info = await read(bench.store, bench.url("x"), 0, 10)
            bench.devstore.faults = [FaultRule(ranged=True, status=412, code="PreconditionFailed")]
            with pytest.raises(StoreMisbehaved, match="If-Match"):
                await read(bench.store, bench.url("x"), 0, 10, etag=info.etag)

    @asynchronous
    async def test_unasked_precondition(self, backend: Backend) -> None:
        async with backend() as bench:
            assert bench.devstore
            bench.put("x", DATA)
            bench.devstore.faults = [FaultRule(status=412, code="PreconditionFailed")]
            with pytest.raises(ObjectChanged):
                await read(bench.store, bench.url("x"), 0, 10)

    @pytest.mark.parametrize("start", [0, 1000, len(DATA), len(DATA) + 5])
    @asynchronous
    async def test_whole_object_in_place_of_a_range(self, backend: Backend, start: int) -> None:
        async with backend() as bench:
            assert bench.devstore
            bench.put("x", DATA)
            bench.devstore.faults = [FaultRule(ignore_range=True)]
            data, info = await read(bench.store, bench.url("x"), start, start + 100)
            assert data == DATA[start : start + 100]
            assert info.size == len(DATA)

    @asynchronous
    async def test_server_without_ranges_and_a_large_object(
        self, backend: Backend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("streamrec.stores.http.http_ranges.MAX_SKIP", 1 << 20)
        async with backend() as bench:
            assert bench.devstore
            bench.put("large", LARGE)
            bench.devstore.faults = [FaultRule(ignore_range=True)]
            with pytest.raises(StoreMisbehaved, match="ignores Range"):
                await read(bench.store, bench.url("large"), 2 << 20, 3 << 20)

    @asynchronous
    async def test_partial_answer_with_200(self, backend: Backend) -> None:
        async with backend() as bench:
            assert bench.devstore
            bench.put("x", DATA)
            bench.devstore.faults = [FaultRule(partial_status=200)]
            assert (await read(bench.store, bench.url("x"), 100, 200))[0] == DATA[100:200]

    @pytest.mark.parametrize("header", ["bytes 0-9/*", "bytes 5-14/10240", "", "nonsense"])
    @asynchronous
    async def test_wrong_content_range(self, backend: Backend, header: str) -> None:
        async with backend() as bench:
            assert bench.devstore
            bench.put("x", DATA)
            bench.devstore.faults = [FaultRule(content_range=header)]
            with pytest.raises(StoreMisbehaved):
                await read(bench.store, bench.url("x"), 0, 10)

    @asynchronous
    async def test_past_the_end_is_refused_within(self, backend: Backend) -> None:
        async with backend() as bench:
            assert bench.devstore
            bench.put("x", DATA)
            bench.devstore.faults = [
                FaultRule(
                    ranged=True, status=416, headers={"Content-Range": f"bytes */{len(DATA)}"}
                )
            ]
            with pytest.raises(StoreMisbehaved, match="past the end"):
                await read(bench.store, bench.url("x"), 0, 10)

    @asynchronous
    async def test_second_look_fails(self, backend: Backend) -> None:
        async with backend() as bench:
            assert bench.devstore
            bench.put("x", DATA)
            bench.devstore.faults = [
                FaultRule(ranged=True, status=412, code="PreconditionFailed"),
                FaultRule(ranged=False, status=404, code="NoSuchKey"),
            ]
            with pytest.raises(ObjectNotFound):
                await read(bench.store, bench.url("x"), 0, 10, etag='"old"')


@asynchronous
async def test_identity_is_asked_for_and_encoded_objects_come_as_they_are_stored() -> None:
    seen: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.headers["Accept-Encoding"])
        encoding = request.query["encoding"]
        return web.Response(body=b"packed", headers={"Content-Encoding": encoding})

    async with serving(answer) as server, opened() as store:
        async with store.open_range(f"{server}/x?encoding=gzip", 0, 10) as body:
            assert (body.info.size, body.info.encoding) == (6, "gzip")
            assert await filled(body, memoryview(bytearray(10))) == 6
        with pytest.raises(StoreError, match="Content-Encoding br"):
            await read(store, f"{server}/x?encoding=br", 0, 10)
        assert seen == ["identity"] * 2


@asynchronous
async def test_own_headers_are_sent() -> None:
    async def answer(request: web.Request) -> web.Response:
        allowed = request.headers.get("X-Token") == "open"
        return web.Response(body=b"payload", status=200 if allowed else 401)

    async with serving(answer) as server:
        async with opened({"headers": {"X-Token": "open"}}) as store:
            assert (await read(store, f"{server}/x", 0, 10))[0] == b"payload"
        async with opened() as store:
            with pytest.raises(AccessDenied, match="storage_options"):
                await read(store, f"{server}/x", 0, 10)


@asynchronous
async def test_redirects_are_followed() -> None:
    async def answer(request: web.Request) -> web.Response:
        if request.path == "/old":
            raise web.HTTPFound("/new")
        if request.path == "/circle":
            raise web.HTTPFound("/circle")
        return web.Response(body=b"payload")

    async with serving(answer) as server, opened() as store:
        data, info = await read(store, f"{server}/old", 0, 10)
        assert (data, info.url) == (b"payload", f"{server}/old")
        with pytest.raises(StoreMisbehaved, match="circles"):
            await read(store, f"{server}/circle", 0, 10)


@asynchronous
async def test_a_redirect_is_told_of_before_it_is_followed() -> None:
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        raise web.HTTPFound("/new")

    def allow_one(size: int) -> None:
        if asked:
            raise KeyError(size)

    async with serving(answer) as server, aclosing(HttpStore(before_request=allow_one)) as store:
        with pytest.raises(KeyError):
            await read(store, f"{server}/old", 0, 10)
    assert asked == ["/old"]


@asynchronous
async def test_body_of_unknown_size() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        await response.write(b"payload")
        return response

    async with serving(answer) as server, opened() as store:
        with pytest.raises(StoreMisbehaved, match="neither"):
            await read(store, f"{server}/x", 0, 10)


@asynchronous
async def test_listing_says_what_to_do() -> None:
    async with opened() as store:
        with pytest.raises(ConfigError, match="name each shard"):
            [info async for info in store.list("https://host/")]


def test_unknown_option() -> None:
    with pytest.raises(ConfigError, match="'cookies'"):
        HttpStore({"cookies": {}})


def test_timeouts_are_sane() -> None:
    @asynchronous
    async def look() -> None:
        client = http.RangeClient()
        timeout = client._connect().timeout
        assert (timeout.total, timeout.sock_connect, timeout.sock_read) == (None, 10.0, 60.0)
        await client.aclose()

    look()


@asynchronous
async def test_certificates_are_read_once_and_in_a_thread() -> None:
    readers: list[int] = []

    class Noting(Transport):
        @property
        def tls(self) -> bool:
            readers.append(threading.get_ident())
            return True

    async with aclosing(http.RangeClient(transport=Noting())) as client:
        reads = [client.read_document(NOBODY, NOBODY) for _ in range(3)]
        errors = await asyncio.gather(*reads, return_exceptions=True)
    assert {type(error) for error in errors} == {StoreUnavailable}
    assert len(readers) == 1
    assert threading.get_ident() not in readers
