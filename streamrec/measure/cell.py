"""Measures one cell of the sweep: so many requests of one size at a time, for a while."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from streamrec.errors import StoreUnavailable
from streamrec.flow.cleanup import end
from streamrec.flow.retry import Backoff
from streamrec.measure.figures import Cell
from streamrec.measure.places import Places

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamrec.stores.base import ObjectInfo, Store
    from streamrec.values.columns import ByteArray

WARM = 0.9
"""The part of the connections that must have read a range before the window begins; a few requests
may stall."""
GRACE = 0.5
"""Seconds that ranges may go on after the window, beyond the median time of a range."""
FAILURES = 20
"""Failed requests of a connection in a row that end the measurement."""


class MeasuredCell(NamedTuple):
    """A cell, and what its connections gave."""

    cell: Cell
    range_seconds: float
    """The median time of a range."""
    connection_bytes_per_second: float | None
    """The median rate of a connection behind the first bytes of a range; ``None``: all came at
    once."""


@dataclass
class Transfer:
    """The bytes that one request brought, and when."""

    begin: float
    first: float = math.inf
    end: float = math.inf
    size_first: int = 0
    size: int = 0

    def received(self, count: int) -> None:
        """Count bytes that have arrived."""
        if not self.size:
            self.first, self.size_first = time.perf_counter(), count
        self.size += count

    def part(self, begin: float, stop: float) -> float:
        """Return the part of its time (0 to 1) that lies in a window."""
        inside = min(self.end, stop) - max(self.begin, begin)
        return max(0.0, inside) / (self.end - self.begin)

    @property
    def rate(self) -> float:
        """The bytes a second behind the first ones; 0 if there are none."""
        return (self.size - self.size_first) / (self.end - self.first)


async def measure_cell(
    store: Store,
    shards: Sequence[ObjectInfo],
    range_bytes: int,
    concurrency: int,
    seconds: float,
    memory: ByteArray,
) -> MeasuredCell:
    """Keep so many requests under way for a while, and measure their steady rate.

    Each connection reads one range first, so that neither handshakes nor slow starts count. Then a
    window begins. A range counts with the part of its time that lies in the window; else it would
    matter where the window cuts ranges that run in step.

    Args:
        store: The shards' store.
        shards: The shards.
        range_bytes: Bytes of a range; where no shard has as many, those of the largest shard.
        concurrency: Requests at a time.
        seconds: The length of the window; longer, where a range takes as long.
        memory: Memory to receive into, at least one range. Where there is not room for all that
            are under way, some share a place: nobody looks at what they hold.

    Raises:
        BudgetSpent: The budget did not last to the end of the window.
        StoreError: A request failed for good, or many in a row.
        ConfigError: No shard holds a byte.
    """
    places = Places(shards, range_bytes)
    return await _Measurement(store, places, concurrency, seconds).run(memory.data)


class _Measurement:
    def __init__(self, store: Store, places: Places, concurrency: int, seconds: float) -> None:
        self._store, self._places = store, places
        self._concurrency, self._seconds = concurrency, seconds
        self._transfers: list[Transfer] = []
        self._throttled = 0
        self._to_warm = math.ceil(concurrency * WARM)
        self._warm = asyncio.Event()
        self._end = math.inf
        """The end of the window, once it has begun."""

    async def run(self, memory: memoryview) -> MeasuredCell:
        """Measure, and close the connections that do not end in time."""
        size = self._places.size
        starts = range(0, len(memory) - size + 1, size)
        views = [memory[start : start + size] for start in starts[: self._concurrency]]
        connections = [
            asyncio.create_task(self._read_on(views[number % len(views)]))
            for number in range(self._concurrency)
        ]
        try:
            await self._until_warm(connections)
            begin, cpu = time.perf_counter(), time.thread_time()
            self._end = begin + max(self._seconds, self._range_seconds)
            await _sleep_beside(connections, self._end - begin)
            cpu, now = time.thread_time() - cpu, time.perf_counter()
            await asyncio.wait(connections, timeout=GRACE + self._range_seconds)
            _raise_failure(connections)
        finally:
            await end(*connections)
        return self._measured(begin, cpu / (now - begin))

    @property
    def _range_seconds(self) -> float:
        return float(np.median([transfer.end - transfer.begin for transfer in self._transfers]))

    async def _until_warm(self, connections: Sequence[asyncio.Task[None]]) -> None:
        warm = asyncio.create_task(self._warm.wait())
        try:
            await asyncio.wait([warm, *connections], return_when=asyncio.FIRST_COMPLETED)
            _raise_failure(connections)
        finally:
            await end(warm)

    async def _read_on(self, memory: memoryview) -> None:
        """Read one range after the other to the end of the window."""
        backoff = Backoff(Random())
        is_warm = False
        while time.perf_counter() < self._end:
            try:
                await self._read(memory)
            except StoreUnavailable as error:
                if backoff.attempt >= FAILURES:
                    raise
                self._throttled += error.throttled
                await asyncio.sleep(backoff.next(error.retry_after))
                continue
            backoff.reset()
            self._to_warm -= not is_warm
            is_warm = True
            if self._to_warm <= 0:
                self._warm.set()

    async def _read(self, memory: memoryview) -> None:
        url, start, stop, etag = self._places.next()
        transfer = Transfer(time.perf_counter())
        try:
            async with self._store.open_range(url, start, stop, etag=etag) as body:
                await body.fill(memory, transfer.received)
        finally:
            transfer.end = time.perf_counter()
            if transfer.size:  # bytes of a range that is cut off count as well
                self._transfers.append(transfer)

    def _measured(self, begin: float, loop_busy: float) -> MeasuredCell:
        transfers = self._transfers
        parts = [(transfer.size, transfer.part(begin, self._end)) for transfer in transfers]
        cell = Cell(
            range_bytes=self._places.size,
            concurrency=self._concurrency,
            seconds=self._end - begin,
            bytes=round(sum(size * part for size, part in parts)),
            requests=round(sum(part for _, part in parts)),
            throttled=self._throttled,
            loop_busy=loop_busy,
        )
        rates = [transfer.rate for transfer in transfers if transfer.size > transfer.size_first]
        return MeasuredCell(cell, self._range_seconds, float(np.median(rates)) if rates else None)


async def _sleep_beside(connections: Sequence[asyncio.Task[None]], seconds: float) -> None:
    """Sleep, but not on when a connection fails: none ends otherwise."""
    await asyncio.wait(connections, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    _raise_failure(connections)


def _raise_failure(connections: Sequence[asyncio.Task[None]]) -> None:
    for connection in connections:
        if connection.done():
            connection.result()
