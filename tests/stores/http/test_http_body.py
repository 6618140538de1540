"""Bodies that end too early, and connections that break; see test_receivers for whole bodies."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest
from aiohttp import web

from streamrec.errors import AccessDenied, ConfigError, StoreError, StoreUnavailable
from streamrec.stores.http import http_store as http
from tests.stores.conformance import read
from tests.stores.http_server import opened, serving
from tests.support import asynchronous


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
