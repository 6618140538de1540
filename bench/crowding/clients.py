"""Many clients of a feeder in one event loop."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING

from streamrec.feeder.client.client import AsyncFeed
from streamrec.flow.channel import EndOfStream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

AT_ONCE = 50
"""Clients that connect at a time."""
CREDIT = 1 << 20
PATIENCE = 120.0
"""Seconds that a client waits for a sign of life: two hundred sessions begin at once."""


class Readers:
    """The clients that read until they are told to rest.

    Args:
        pace: Records a second that each of them computes; ``None``: they compute nothing, and read
            as fast as they can.
    """

    def __init__(self, pace: float | None = None) -> None:
        self._pace = pace
        self.records = 0
        self._began = asyncio.Semaphore(0)
        self._going = asyncio.Event()
        self._going.set()

    async def rate(self, seconds: float) -> float:
        """Return the records a second of the next seconds."""
        loop = asyncio.get_running_loop()
        began, records = loop.time(), self.records
        await asyncio.sleep(seconds)
        return (self.records - records) / (loop.time() - began)

    async def all_read(self, count: int) -> None:
        """Return once each of so many has read something."""
        for _ in range(count):
            await self._began.acquire()

    def rest(self) -> None:
        """Take no more batches, and keep the connections."""
        self._going.clear()

    async def read(self, address: str, token: str | None) -> None:
        """Read until cancelled."""
        feed = await AsyncFeed.open(
            address, token=token, credit_bytes=CREDIT, patience=PATIENCE, connect_timeout=PATIENCE
        )
        async with aclosing(feed):
            await feed.receive()
            self._began.release()
            while True:
                await self._going.wait()
                batch = await feed.receive()
                self.records += len(batch)
                if self._pace is not None:  # and batches arrive meanwhile
                    await asyncio.sleep(len(batch) / self._pace)


@asynccontextmanager
async def reading(
    address: str, count: int, token: str | None = None, pace: float | None = None
) -> AsyncIterator[Readers]:
    """Have clients read while the block runs, each all that there is, at a pace or at none."""
    readers = Readers(pace)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(readers.read(address, token)) for _ in range(count)]
        yield readers
        for task in tasks:
            task.cancel()


@asynccontextmanager
async def finished(address: str, count: int) -> AsyncIterator[None]:
    """Keep clients connected while the block runs, each at the end of its run."""
    limit = asyncio.Semaphore(AT_ONCE)

    async def open_and_finish() -> AsyncFeed:
        async with limit:
            feed = await AsyncFeed.open(address, patience=PATIENCE, connect_timeout=PATIENCE)
            try:
                while True:
                    await feed.receive()
            except EndOfStream:
                return feed

    feeds = await asyncio.gather(*(open_and_finish() for _ in range(count)))
    try:
        yield
    finally:
        await asyncio.gather(*(feed.aclose() for feed in feeds))
