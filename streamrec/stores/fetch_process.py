"""The program of a fetch process: it reads ranges of objects into memory that it shares.

:mod:`streamrec.stores.processes.fetch_processes` starts it, over one end of a socket pair. It
neither retries nor decides anything: each request of the stream is one request to the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

from streamrec.flow.bridge import new_event_loop
from streamrec.flow.shared_memory import map_memory
from streamrec.stores.open import Stores, import_store
from streamrec.stores.processes.fetch_processes import failure_of
from streamrec.stores.processes.packets import MOST_BYTES, Packets

if TYPE_CHECKING:
    from streamrec.stores.base.protocol import RangeBody
    from streamrec.values.columns import ByteArray

LOOK_EVERY = 0.25
"""Seconds between two looks whether the parent lives."""
PROGRESS_SECONDS = 0.002
"""Seconds for which the news of received bytes are collected. A response comes in hundreds of
pieces; a packet for each would cost the stream more than it saves."""


def main() -> None:
    """Run the process, as its arguments and its standard input say."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the parent's business
    parent, sock = map(int, sys.argv[1:])
    order = json.load(sys.stdin)
    for url in order["urls"]:
        with contextlib.suppress(Exception):  # what is missing here is told when a range is opened
            import_store(url)
    serving = _serve(parent, socket.socket(fileno=sock), order["options"])
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(serving)


async def _serve(parent: int, sock: socket.socket, options: dict[str, Any]) -> None:
    """Serve the stream as long as it lives."""
    ended = asyncio.Event()
    server = RangeServer(Stores(options), sock, ended)
    server.packets.send("ready")
    while not ended.is_set() and os.getppid() == parent:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), LOOK_EVERY)
    os._exit(0)  # nobody is left to tell, and nothing on disk to tidy up


class RangeServer:
    """The server of one stream's requests.

    Args:
        stores: The stores to read.
        sock: The end of the socket pair.
        ended: Set when the stream is gone.
    """

    def __init__(self, stores: Stores, sock: socket.socket, ended: asyncio.Event) -> None:
        self.packets = Packets(sock, self._take, ended.set)
        self._stores = stores
        self._memories: dict[int, ByteArray] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._questions: dict[int, asyncio.Queue[list[Any]]] = {}
        self._news: Counter[int] = Counter()
        self._told: set[int] = set()
        """Requests whose first bytes have been told."""
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def __repr__(self) -> str:
        return f"<RangeServer {len(self._tasks)} requests>"

    def _take(self, message: list[Any], content: memoryview, fd: int | None) -> None:  # noqa: ARG002
        kind, number, *facts = message
        if kind == "open":
            self._questions[number] = asyncio.Queue()
            task = self._loop.create_task(self._read(number, *facts))
            # Not in the task itself: one that is cancelled before it begins never runs.
            task.add_done_callback(partial(self._end, number))
            self._tasks[number] = task
        elif kind == "fill" and number in self._questions:
            self._questions[number].put_nowait(facts)
        elif kind == "close" and number in self._tasks:
            self._tasks[number].cancel()
        elif kind == "map" and fd is not None:
            self._memories[number] = map_memory(fd, 0)
            os.close(fd)
        elif kind == "unmap":
            self._memories.pop(number, None)

    async def _read(self, number: int, url: str, start: int, stop: int, etag: str | None) -> None:
        """Serve one request, from its opening to its end."""
        try:
            store = self._stores.store_for(url)
            async with store.open_range(url, start, stop, etag=etag) as body:
                info = body.info
                facts = [info.url, info.size, info.etag, info.encoding]
                self.packets.send("opened", number, facts)
                while True:
                    await self._fill(number, body, *await self._questions[number].get())
        except Exception as error:  # noqa: BLE001 - the stream raises it
            self._tell()
            self.packets.send("failed", number, failure_of(error))

    def _end(self, number: int, _task: asyncio.Task[None]) -> None:
        del self._tasks[number], self._questions[number]
        self._told.discard(number)
        self.packets.send("closed", number)

    async def _fill(
        self, number: int, body: RangeBody, memory: int | None, place: int | None, size: int
    ) -> None:
        if memory is None or place is None:
            await self._send_content(number, body, size)
        else:
            view = self._memories[memory].data[place : place + size]
            await body.fill(view, partial(self._received, number))
        self._tell()
        self.packets.send("filled", number, None)

    async def _send_content(self, number: int, body: RangeBody, left: int) -> None:
        """Send bytes that have no place in shared memory."""
        view = memoryview(bytearray(min(left, MOST_BYTES)))
        counts = [0]
        while left and counts:
            counts.clear()
            try:
                await body.fill(view[:left], counts.append)
            finally:
                if counts:
                    self.packets.send("content", number, content=view[: sum(counts)])
            left -= sum(counts)
            await self.packets.all_sent()

    def _received(self, number: int, count: int) -> None:
        self._news[number] += count
        if number not in self._told:
            # The stream measures the time of the first byte.
            self._told.add(number)
            self._tell()
        elif self._timer is None:
            self._timer = self._loop.call_later(PROGRESS_SECONDS, self._tell)

    def _tell(self) -> None:
        """Tell the stream the bytes that have been received since the last time."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        news = list(self._news.items())
        self._news.clear()
        if news:
            self.packets.send("received", *news)
