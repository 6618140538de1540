from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import aiohttp
import pytest

import streamrec.feeder.operate.status_port as module
from streamrec.feeder.operate import status
from streamrec.feeder.operate.status_port import AT_ONCE, MOST, StatusPort
from streamrec.feeder.server.server import Feeder
from tests.feeder.support import eventually, server_settings
from tests.support import asynchronous, open_fds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


HERE = "127.0.0.1:0"

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def live(bound: str) -> bytes:
    """Ask as a probe does: a new connection, one request."""
    host, port = bound.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET /livez HTTP/1.1\r\nHost: {bound}\r\n\r\n".encode())
    try:
        return await reader.read()
    finally:
        writer.close()


@contextlib.asynccontextmanager
async def crowd(bound: str, count: int, first: bytes = b"") -> AsyncIterator[list[Ends]]:
    host, port = bound.split(":")
    ends = [await asyncio.open_connection(host, int(port)) for _ in range(count)]
    try:
        for _, writer in ends:
            writer.write(first)
        yield ends
    finally:
        for _, writer in ends:
            writer.transport.abort()


@pytest.mark.parametrize("first", [b"", b"GET /livez HTTP/1.1\r\nHost: x", b"G"])
@asynchronous
async def test_idle_and_slow_connections_keep_no_probe_out(
    first: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST", 8)
    async with Feeder({}) as feeder, status.serving(HERE, feeder) as bound:
        before = open_fds()
        async with crowd(bound, 40, first):
            assert b"200 OK" in await live(bound)
            dropped = feeder.statistics.dropped
            await eventually(lambda: dropped["status"] >= 32)
            await eventually(lambda: len(open_fds() - before) <= 40 + 8)
        assert b"200 OK" in await live(bound)


@asynchronous
async def test_a_connection_has_some_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DEADLINE", 0.0)
    async with Feeder({}) as feeder, status.serving(HERE, feeder) as bound:
        async with crowd(bound, 3) as ends:
            for reader, _ in ends:
                with contextlib.suppress(ConnectionResetError):
                    assert await reader.read() == b""
        assert feeder.statistics.dropped["status"] == 3


@asynchronous
async def test_connections_that_say_nothing_get_no_parser() -> None:
    made: list[asyncio.Protocol] = []

    def make() -> asyncio.Protocol:
        made.append(asyncio.Protocol())
        return made[-1]

    port = await StatusPort.open("127.0.0.1", 0, make, lambda: None)
    bound = str(port.address).removeprefix("tcp://")
    before = open_fds()
    async with crowd(bound, 5) as ends:
        await eventually(lambda: len(port) == 5)
        assert made == []
        ends[2][1].write(b"G")
        ends[3][1].close()
        await eventually(lambda: len(made) == 2)
        await eventually(lambda: len(port) == 4)
        await port.aclose()
        assert len(port) == 0
        for number in (0, 1, 2, 4):
            with contextlib.suppress(ConnectionResetError):
                assert await ends[number][0].read() == b""
    await eventually(lambda: open_fds() <= before)


class Ending(asyncio.Protocol):
    """A protocol that notes with what its connection ended."""

    def __init__(self) -> None:
        self.ends: list[Exception | None] = []

    def connection_lost(self, exc: Exception | None) -> None:
        self.ends.append(exc)


@asynchronous
async def test_the_protocol_that_answers_learns_of_the_end() -> None:
    answering = Ending()
    port = await StatusPort.open("127.0.0.1", 0, lambda: answering, lambda: None)
    async with crowd(str(port.address).removeprefix("tcp://"), 1, b"G") as [(_, writer)]:
        writer.close()
        await eventually(lambda: answering.ends == [None])
    await port.aclose()


@asynchronous
async def test_a_connection_is_for_one_request() -> None:
    async with Feeder({}) as feeder, status.serving(HERE, feeder) as bound:
        answer = await live(bound)
        assert b"Connection: close" in answer
        assert feeder.statistics.dropped["status"] == 0


def test_a_turn_accepts_few_of_those_that_may_be_open() -> None:
    """So a request is answered before its connection is the oldest."""
    assert AT_ONCE * 8 <= MOST


@pytest.mark.parametrize(
    ("listens", "names", "host", "code"),
    [
        (HERE, [], "localhost:7071", 200),
        (HERE, [], "127.0.0.1", 200),
        (HERE, [], "[::1]:80", 200),
        (HERE, [], "evil.example", 421),
        (HERE, [], "127.0.0.1.evil.example:7071", 421),
        (HERE, ["feeder.lan"], "Feeder.LAN:1", 200),
        ("0.0.0.0:0", [], "anything.example", 200),
        ("0.0.0.0:0", ["feeder.lan"], "feeder.lan", 200),
        ("0.0.0.0:0", ["feeder.lan"], "anything.example", 421),
    ],
)
@asynchronous
async def test_the_name_in_a_request(listens: str, names: list[str], host: str, code: int) -> None:
    settings = server_settings(status=listens, status_hosts=names)
    async with Feeder({}, settings) as feeder, status.serving(listens, feeder) as bound:
        url = f"http://127.0.0.1:{bound.rpartition(':')[2]}/status.json"
        async with (
            aiohttp.ClientSession() as session,
            session.get(url, headers={"Host": host}) as answer,
        ):
            assert answer.status == code
            assert ("status_hosts" in await answer.text()) == (code == 421)
