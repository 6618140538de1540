"""Bodies that land in the caller's memory, under each event loop."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from aiohttp import web

from streamrec.errors import StoreUnavailable
from streamrec.flow.bridge import new_event_loop
from streamrec.stores.answers import RangeRequest
from streamrec.stores.http import RangeClient
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

DATA = bytes(range(256)) * 12_000
LOOPS = pytest.mark.parametrize("factory", [asyncio.new_event_loop, new_event_loop])


@asynccontextmanager
async def client_of(
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]], seconds: float = 60
) -> AsyncIterator[tuple[RangeClient, str]]:
    application = web.Application()
    application.router.add_get("/{name:.*}", handler)
    runner = web.AppRunner(application, shutdown_timeout=0.01)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    client = RangeClient(read_seconds=seconds)
    try:
        yield client, f"http://{host}:{port}/x"
    finally:
        await client.aclose()
        await runner.cleanup()


def ranged(request: web.Request) -> tuple[bytes, dict[str, str]]:
    part = request.http_range
    data = DATA[part.start : part.stop]
    stop = part.start + len(data)
    return data, {"Content-Range": f"bytes {part.start}-{stop - 1}/{len(DATA)}", "ETag": '"1"'}


async def whole(request: web.Request) -> web.StreamResponse:
    data, headers = ranged(request)
    return web.Response(status=206, body=data, headers=headers)


def in_pieces(*cuts: int, then: str = "") -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """The body in pieces, each sent on its own, and perhaps an end that comes too early."""

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


async def read(client: RangeClient, url: str, start: int, stop: int, step: int) -> bytes:
    body = await client.open(RangeRequest(url, url, start, stop))
    out, view = bytearray(), memoryview(bytearray(b"\xaa" * (step + 1)))
    try:
        while count := await body.readinto(view[:step]):
            assert view[step] == 0xAA, "nothing behind the view is touched"
            out += view[:count]
    finally:
        body.close()
    return bytes(out)


@LOOPS
@pytest.mark.parametrize("step", [1000, 1 << 16, 4 << 20])
@pytest.mark.parametrize("cuts", [(), (1,), (100_000, 100_001, 300_000)])
def test_bodies_land_and_their_connection_is_used_again(
    factory: Callable[[], asyncio.AbstractEventLoop], step: int, cuts: tuple[int, ...]
) -> None:
    peers = set()

    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        peers.add(request.transport.get_extra_info("peername"))
        return await in_pieces(*cuts)(request)

    async def main() -> None:
        async with client_of(answer) as (client, url):
            for start, stop in [(0, len(DATA)), (5, 400_000), (len(DATA) - 400_000, 1 << 40)]:
                assert await read(client, url, start, stop, step) == DATA[start:stop]
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
                await read(client, url, 0, len(DATA), 1 << 16)
            assert await read(client, url, 0, len(DATA), 1 << 16) == DATA

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())


@LOOPS
def test_a_cancelled_read_writes_nothing_more(
    factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def main() -> None:
        go_on = asyncio.Event()

        async def answer(request: web.Request) -> web.StreamResponse:
            data, headers = ranged(request)
            response = web.StreamResponse(status=206, headers=headers)
            response.content_length = len(data)
            await response.prepare(request)
            await response.write(data[:1000])
            await go_on.wait()
            await response.write(data[1000:])
            return response

        async with client_of(answer) as (client, url):
            body = await client.open(RangeRequest(url, url, 0, len(DATA)))
            view, filled = memoryview(bytearray(len(DATA))), 0
            while filled < 1000:
                filled += await body.readinto(view[filled:])
            reading = asyncio.create_task(body.readinto(view[filled:]))
            await asyncio.sleep(0)
            reading.cancel()
            await asyncio.wait([reading])
            go_on.set()
            body.close()
            assert await read(client, url, 0, 100_000, 1 << 16) == DATA[:100_000]
            assert bytes(view[filled:]) == bytes(len(DATA) - filled)

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())


@asynchronous
async def test_a_silent_body_is_given_up() -> None:
    never = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        data, headers = ranged(request)
        response = web.StreamResponse(status=206, headers=headers)
        response.content_length = len(data)
        await response.prepare(request)
        await response.write(data[:1000])
        await never.wait()
        return response

    async with client_of(answer, seconds=0.05) as (client, url):
        with pytest.raises(StoreUnavailable, match="silent for too long"):
            await read(client, url, 0, len(DATA), 1 << 16)
