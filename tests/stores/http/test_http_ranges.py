"""Bodies that end too early, and connections that break; see test_receivers for whole bodies."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from contextlib import aclosing, asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
from aiohttp import web
from aiohttp.client_proto import ResponseHandler

from streamrec.errors import AccessDenied, ConfigError, StoreError, StoreUnavailable
from streamrec.flow.bridge import new_event_loop
from streamrec.stores.http import http_store as http
from streamrec.stores.http.http_ranges import HEAD_BYTES, BodyReceiver, RangedGet
from streamrec.stores.http.http_store import RangeClient
from tests.stores.conformance import read
from tests.stores.http_server import opened, serving
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from typing import TypeAlias

    Answer: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


DATA = bytes(range(256)) * 12_000
LOOPS = pytest.mark.parametrize("factory", [asyncio.new_event_loop, new_event_loop])


@asynccontextmanager
async def client_of(handler: Answer) -> AsyncIterator[tuple[RangeClient, str]]:
    async with serving(handler) as server, aclosing(RangeClient()) as client:
        yield client, f"{server}/x"


def ranged(request: web.Request) -> tuple[bytes, dict[str, str]]:
    part = request.http_range
    data = DATA[part.start : part.stop]
    stop = part.start + len(data)
    return data, {"Content-Range": f"bytes {part.start}-{stop - 1}/{len(DATA)}", "ETag": '"1"'}


async def whole(request: web.Request) -> web.StreamResponse:
    data, headers = ranged(request)
    return web.Response(status=206, body=data, headers=headers)


def in_pieces(*cuts: int, then: str = "") -> Answer:
    """Answer with the body in pieces, each sent on its own, which may end too early."""

    async def answer(request: web.Request) -> web.StreamResponse:
        data, headers = ranged(request)
        response = web.StreamResponse(status=206, headers=headers)
        response.content_length = len(data)
        await response.prepare(request)
        for a, b in zip((0, *cuts), (*cuts, len(data)), strict=True):
            if then and b == len(data):
                assert request.transport is not None
                getattr(request.transport, then)()
                break
            await response.write(data[a:b])
            await asyncio.sleep(0)
        return response

    return answer


async def fill(client: RangeClient, url: str, start: int, stop: int, step: int) -> bytes:
    """A whole range, through views of so many bytes."""
    body = await client.open(RangedGet(url, url, start, stop))
    out, view = bytearray(), memoryview(bytearray(b"\xaa" * (step + 1)))
    try:
        while True:
            told: list[int] = []
            await body.fill(view[:step], told.append)
            assert all(told)
            assert view[step] == 0xAA, "nothing behind the view is touched"
            out += view[: sum(told)]
            if sum(told) < step:
                return bytes(out)
    finally:
        body.close()


@LOOPS
@pytest.mark.parametrize("step", [1000, 1 << 16, 4 << 20])
@pytest.mark.parametrize("cuts", [(), (1,), (100_000, 100_001, 300_000)])
def test_bodies_land_and_their_connection_is_used_again(
    factory: Callable[[], asyncio.AbstractEventLoop],
    step: int,
    cuts: tuple[int, ...],
) -> None:
    peers = set()

    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        peers.add(request.transport.get_extra_info("peername"))
        return await in_pieces(*cuts)(request)

    async def main() -> None:
        async with client_of(answer) as (client, url):
            for start, stop in [(0, len(DATA)), (5, 400_000), (len(DATA) - 400_000, 1 << 40)]:
                assert await fill(client, url, start, stop, step) == DATA[start:stop]
        assert len(peers) == 1

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())


@LOOPS
@pytest.mark.parametrize("end", ["close", "abort"])
def test_a_body_that_ends_too_early_is_an_error_and_the_next_one_comes(
    factory: Callable[[], asyncio.AbstractEventLoop], end: str
) -> None:
    async def main() -> None:
        broken = in_pieces(300_000, then=end)
        answers = iter([broken, whole])

        async def answer(request: web.Request) -> web.StreamResponse:
            return await next(answers)(request)

        async with client_of(answer) as (client, url):
            with pytest.raises(StoreUnavailable):
                await fill(client, url, 0, len(DATA), 4 << 20)
            assert await fill(client, url, 0, len(DATA), 1 << 16) == DATA

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())


@asynchronous
async def test_after_the_end_nothing_is_waited_for() -> None:
    """Also while TLS is still being shut down, so that the connection is not closing yet."""
    transport = Mock(asyncio.Transport)
    transport.is_closing.return_value = False
    response: Any = SimpleNamespace(
        connection=SimpleNamespace(protocol=Mock(ResponseHandler), transport=transport),
        content=Mock(),
    )
    receiver = BodyReceiver(response, 100)
    waiting = asyncio.ensure_future(receiver.fill(memoryview(bytearray(10)), lambda _: None))
    await asyncio.sleep(0)
    assert not receiver.eof_received()
    assert await waiting == 0
    assert await receiver.fill(memoryview(bytearray(10)), lambda _: None) == 0


def after_a_thousand(go_on: asyncio.Event) -> Answer:
    """Answer with a thousand bytes of a body, and with the rest after an event."""

    async def answer(request: web.Request) -> web.StreamResponse:
        data, headers = ranged(request)
        response = web.StreamResponse(status=206, headers=headers)
        response.content_length = len(data)
        await response.prepare(request)
        await response.write(data[:1000])
        await go_on.wait()
        await response.write(data[1000:])
        return response

    return answer


@LOOPS
def test_a_view_fills_while_one_call_waits_and_not_once_it_is_cancelled(
    factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def main() -> None:
        go_on = asyncio.Event()
        async with client_of(after_a_thousand(go_on)) as (client, url):
            body = await client.open(RangedGet(url, url, 0, len(DATA)))
            view, told, thousand = memoryview(bytearray(len(DATA))), [0], asyncio.Event()

            def received(count: int) -> None:
                told[0] += count
                if told[0] == 1000:
                    thousand.set()

            filling = asyncio.create_task(body.fill(view, received))
            await thousand.wait()
            assert view[:1000] == DATA[:1000]
            assert not filling.done()
            filling.cancel()
            await asyncio.wait([filling])
            go_on.set()
            body.close()
            assert await fill(client, url, 0, 100_000, 1 << 16) == DATA[:100_000]
            assert (bytes(view[1000:]), told[0]) == (bytes(len(DATA) - 1000), 1000)

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())


@LOOPS
def test_of_a_connection_that_is_used_again_little_comes_before_it_lands(
    factory: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a quarter of a megabyte would be copied twice, of each body."""
    parsed: list[int] = []
    receive = ResponseHandler.data_received

    def counting(self: ResponseHandler, data: bytes) -> None:
        parsed.append(len(data))
        receive(self, data)

    monkeypatch.setattr(ResponseHandler, "data_received", counting)

    async def main() -> None:
        async with client_of(whole) as (client, url):
            assert await fill(client, url, 0, len(DATA), len(DATA)) == DATA
            parsed.clear()
            for _ in range(3):
                assert await fill(client, url, 0, len(DATA), len(DATA)) == DATA
        assert max(parsed) <= HEAD_BYTES
        assert sum(parsed) < 3 * len(DATA) // 10

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())


@LOOPS
def test_a_head_may_be_longer_than_what_is_received_at_a_time(
    factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def long_headed(request: web.Request) -> web.StreamResponse:
        data, headers = ranged(request)
        more = {f"X-More-{number}": "x" * 1000 for number in range(12)}
        return web.Response(status=206, body=data, headers={**headers, **more})

    async def main() -> None:
        async with client_of(long_headed) as (client, url):
            for start in (0, 5, 70_000):
                assert await fill(client, url, start, len(DATA), 100_000) == DATA[start:]

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())


@LOOPS
def test_a_connection_that_ends_while_nobody_uses_it_is_not_used_again(
    factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    seen: list[asyncio.Transport] = []

    async def main() -> None:
        ended = asyncio.Event()

        async def answer(request: web.Request) -> web.StreamResponse:
            assert request.transport is not None
            seen.append(request.transport)
            return await whole(request)

        lose = ResponseHandler.connection_lost

        def lost(self: ResponseHandler, exc: BaseException | None) -> None:
            lose(self, exc)
            ended.set()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ResponseHandler, "connection_lost", lost)
            async with client_of(answer) as (client, url):
                assert await fill(client, url, 0, len(DATA), len(DATA)) == DATA
                seen[-1].close()
                await ended.wait()
                assert await fill(client, url, 0, len(DATA), len(DATA)) == DATA
        assert len(set(seen)) == 2

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())


@asynchronous
async def test_body_that_ends_in_good_order_but_early() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=206, headers={"Content-Range": "bytes 0-99/100"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        await response.write(b"payload")
        return response

    async with serving(answer) as server, opened() as store:
        with pytest.raises(StoreUnavailable, match="ended 93 bytes early"):
            await read(store, f"{server}/x", 0, 100)


@asynchronous
async def test_nobody_listens() -> None:
    async with opened() as store:
        with pytest.raises(StoreUnavailable, match=r"cannot connect to 127\.0\.0\.1:1: "):
            await read(store, "http://127.0.0.1:1/x", 0, 10)


@asynchronous
async def test_a_network_that_swallows_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listener whose queue is full lets nobody in and refuses nobody."""
    monkeypatch.setattr(http, "CONNECT_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        port = full.getsockname()[1]
        with contextlib.ExitStack() as waiting:
            for _ in range(3):
                client = waiting.enter_context(socket.socket())
                client.setblocking(False)
                client.connect_ex(("127.0.0.1", port))
            async with opened() as store:
                with pytest.raises(StoreUnavailable, match="connecting took too long; check"):
                    await read(store, f"http://127.0.0.1:{port}/x", 0, 10)


@asynchronous
async def test_answer_that_is_no_http() -> None:
    async def chat(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"SSH-2.0-nonsense\r\n\r\n")
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(chat, "127.0.0.1", 0)
    async with server, opened() as store:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(StoreUnavailable, match="connection broke"):
            await read(store, f"http://127.0.0.1:{port}/x", 0, 10)
        with pytest.raises(StoreError) as caught:
            await read(store, f"https://127.0.0.1:{port}/x", 0, 10)
        assert caught.value.url == f"https://127.0.0.1:{port}/x"


@asynchronous
async def test_secrets_of_a_url_are_not_repeated() -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=403)

    async with serving(answer) as server, opened() as store:
        url = f"{server}/x?X-Amz-Signature=secret".replace("//", "//user:secret@")
        with pytest.raises(AccessDenied) as caught:
            await read(store, url, 0, 10)
        assert "secret" not in f"{caught.value} {caught.value!r}"
        assert caught.value.url == f"{server}/x?..."
    with pytest.raises(StoreUnavailable) as broken:
        async with opened() as store:
            await read(store, "http://127.0.0.1:1/x?sig=secret", 0, 10)
    assert "secret" not in f"{broken.value} {broken.value!r}"


@pytest.mark.parametrize("url", ["http://", "http://[::1/x", "http://host:99999999/x"])
@asynchronous
async def test_what_is_no_url(url: str) -> None:
    async with opened() as store:
        with pytest.raises(ConfigError, match="not a valid http URL"):
            await read(store, url, 0, 10)
