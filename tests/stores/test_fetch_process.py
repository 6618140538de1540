from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from streamrec.errors import StoreUnavailable
from streamrec.stores.base.protocol import ObjectInfo
from streamrec.stores.fetch_process import RangeServer
from streamrec.stores.processes.packets import Packets
from tests.read_only import ReadOnly
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

PIECES = [3, 1, 1, 1]
"""Bytes of the pieces in which a body arrives, in one turn of the loop."""


class Body:
    """A body of zeros in pieces."""

    info = ObjectInfo("http://x/y", 6, '"v"')

    def __init__(self, *, breaks: bool) -> None:
        self._breaks = breaks

    async def fill(self, view: memoryview, on_received: Callable[[int], None]) -> None:
        for count in PIECES:
            on_received(count)
        if self._breaks:
            raise StoreUnavailable("broke off", url="http://x/y")


class Stored(ReadOnly):
    """A store of such bodies, which stands for all stores."""

    def __init__(self, *, breaks: bool = False) -> None:
        self._breaks = breaks

    def store_for(self, url: str) -> Stored:
        return self

    @asynccontextmanager
    async def open_range(
        self, url: str, start: int, stop: int, *, etag: str | None = None
    ) -> AsyncIterator[Body]:
        yield Body(breaks=self._breaks)


async def answers(stores: Any, *messages: list[Any], most: int) -> list[Any]:
    """Return the first answers to some messages, with the bytes that came along."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server = RangeServer(stores, theirs, asyncio.Event())
    heard: list[Any] = []
    enough = asyncio.Event()

    def take(message: list[Any], content: memoryview, fd: int | None) -> None:
        heard.append([*message, bytes(content)] if content else message)
        if len(heard) == most:
            enough.set()

    stream = Packets(ours, take, enough.set)
    for message in messages:
        stream.send(*message)
    await enough.wait()
    stream.close()
    server.packets.close()
    return heard


OPEN = ["open", 5, "http://x/y", 0, 9, None]
OPENED = ["opened", 5, ["http://x/y", 6, '"v"', None]]


@asynchronous
async def test_bytes_without_a_place_are_sent() -> None:
    heard = await answers(Stored(), OPEN, ["fill", 5, None, None, 6], most=3)
    assert heard == [OPENED, ["content", 5, bytes(6)], ["filled", 5, None]]


@asynchronous
async def test_a_body_that_breaks_off_gives_what_has_come_and_then_the_error() -> None:
    heard = await answers(Stored(breaks=True), OPEN, ["fill", 5, None, None, 9], most=4)
    assert heard[:2] == [OPENED, ["content", 5, bytes(6)]]
    [kind, number, [fields, wait, throttled]] = heard[2]
    assert (kind, number, wait, throttled) == ("failed", 5, None, False)
    assert (fields["type"], fields["message"]) == ("StoreUnavailable", "broke off")
    assert heard[3] == ["closed", 5]


@asynchronous
async def test_the_first_bytes_are_told_at_once_and_others_together() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server = RangeServer(Stored(), theirs, asyncio.Event())  # type: ignore[arg-type]
    heard: list[Any] = []
    done = asyncio.Event()

    def take(message: list[Any], content: memoryview, fd: int | None) -> None:
        heard.append(message)
        if message[0] == "filled":
            done.set()

    stream = Packets(ours, take, done.set)
    stream.send(*OPEN)
    for count in PIECES:
        server._received(5, count)
    server._tell()
    server.packets.send("filled", 5, None)
    await done.wait()
    told = [message for message in heard if message[0] == "received"]
    assert told == [["received", [5, 3]], ["received", [5, 3]]]
    stream.close()
    server.packets.close()


@asynchronous
async def test_a_request_that_is_closed_before_it_begins_ends() -> None:
    assert await answers(Stored(), OPEN, ["close", 5], most=1) == [["closed", 5]]
