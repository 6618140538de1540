"""Measures the rate of a store by the size of ranges and the number of requests at a time."""

from __future__ import annotations

import asyncio
import math
import sys
import time
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from streamrec.errors import ConfigError, StoreUnavailable
from streamrec.flow.cleanup import end
from streamrec.flow.retry import Backoff
from streamrec.measure.budget import BudgetSpent
from streamrec.measure.figures import Cell, Limits, Sweep

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from streamrec.measure.budget import Budget
    from streamrec.stores.base.protocol import ObjectInfo, Store
    from streamrec.values.columns import ByteArray


class Place(NamedTuple):
    """A range of one shard."""

    url: str
    start: int
    stop: int
    etag: str | None


class Places:
    """Ranges of one size, each equally likely, in the shards that are large enough.

    Args:
        shards: The shards; those of an unknown size are left out.
        size: Bytes of a range; where it is larger than all shards, that of the largest shard.
        seed: The seed of the choice.

    Raises:
        ConfigError: No shard has a known size and a byte.
    """

    def __init__(self, shards: Sequence[ObjectInfo], size: int, seed: int = 0) -> None:
        self.size = min(size, largest_of(shards))
        self._shards = [one for one in shards if (one.size or 0) >= self.size]
        # A shard is drawn as often as it has places, so that all bytes are equally likely.
        self._ends = np.cumsum([(one.size or 0) // self.size for one in self._shards])
        self._random = np.random.default_rng(seed)

    def next(self) -> Place:
        """Return another place, at a multiple of the size."""
        number = int(self._random.integers(self._ends[-1]))
        # The first shard whose places end after the number.
        index = int(np.searchsorted(self._ends, number, "right"))
        start = (number - (int(self._ends[index - 1]) if index else 0)) * self.size
        shard = self._shards[index]
        return Place(shard.url, start, start + self.size, shard.etag)


def largest_of(shards: Sequence[ObjectInfo]) -> int:
    """Return the size of the largest shard.

    Raises:
        ConfigError: No shard has a known size and a byte.
    """
    largest = max((one.size or 0 for one in shards), default=0)
    if not largest:
        raise ConfigError("all shards are empty, so nothing can be measured; name other shards")
    return largest


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
    """The median rate of a connection after the first bytes of a range; ``None``: all came at
    once."""


@dataclass
class Transfer:
    """The bytes that one request brought, and when."""

    begin: float
    first: float = math.inf
    end: float = math.inf
    size_first: int = 0
    size: int = 0

    def count(self, count: int) -> None:
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
        """The bytes a second after the first ones; 0 if there are none."""
        # Without the first bytes, whose time is the wait for them and not the connection's rate.
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
        # Connections beyond the memory share a place: their bytes are counted, not looked at.
        starts = range(0, len(memory) - size + 1, size)
        views = [memory[start : start + size] for start in starts[: self._concurrency]]
        connections = [
            asyncio.create_task(self._read_on(views[number % len(views)]))
            for number in range(self._concurrency)
        ]
        try:
            await self._until_warm(connections)
            begin, cpu = time.perf_counter(), time.thread_time()
            # A shorter window would hold parts of ranges, and no whole one.
            self._end = begin + max(self._seconds, self._range_seconds)
            await _sleep_beside(connections, self._end - begin)
            # Read before the stragglers: with few requests the loop is less busy.
            cpu, now = time.thread_time() - cpu, time.perf_counter()
            await asyncio.wait(connections, timeout=GRACE + self._range_seconds)
            _raise_failure(connections)
        finally:
            await end(*connections)
        return self._result(begin, cpu / (now - begin))

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
                # Counted, since a rate with refusals is no rate of the link.
                self._throttled += error.throttled
                await asyncio.sleep(backoff.next(error.retry_after))
                continue
            backoff.reset()
            # Each connection counts once, however many ranges it reads meanwhile.
            self._to_warm -= not is_warm
            is_warm = True
            if self._to_warm <= 0:
                self._warm.set()

    async def _read(self, memory: memoryview) -> None:
        url, start, stop, etag = self._places.next()
        transfer = Transfer(time.perf_counter())
        try:
            async with self._store.open_range(url, start, stop, etag=etag) as body:
                await body.fill(memory, transfer.count)
        finally:
            transfer.end = time.perf_counter()
            if transfer.size:  # bytes of a range that is cut off count as well
                self._transfers.append(transfer)

    def _result(self, begin: float, loop_busy: float) -> MeasuredCell:
        transfers = self._transfers
        parts = [(transfer.size, transfer.part(begin, self._end)) for transfer in transfers]
        cell = Cell(
            range_bytes=self._places.size,
            concurrency=self._concurrency,
            seconds=self._end - begin,
            bytes=round(sum(size * part for size, part in parts)),
            # In parts, as the bytes: ranges that run in step begin and end together.
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


SIZES = (4 << 20, 1 << 20, 16 << 20, 256 << 10)
"""Bytes of the ranges of a row, in the order in which the rows are measured: if the budget ends
early, the sizes that are read most are known."""
PARTS = (1 / 2, 1 / 3, 1 / 2, 1)
"""The part of what is left of the budget that each row may spend."""
MOST_REQUESTS = 512
"""Requests at a time, at the most."""
GAIN = 1.05
"""A rate that is not so many times the best one before has not grown."""
FLAT = 2
"""Doublings without a gain that end a row; one alone may be noise."""
MEMORY = 256 << 20
"""Bytes of memory that ranges are received into, again and again."""
SHORTEST, LONGEST = 0.25, 1.0
"""Seconds of a window."""
CELLS = 10
"""Cells of a row, about: the seconds of a row are divided by it."""
FIRST_RANGES = 5
"""Ranges that a row's first cell may need, of which nothing is known yet."""
SHARE = 3
"""A cell may spend one in so many of the bytes and requests that the row has left; the next ones
need more, since the rate grows."""


async def measure_sweep(
    store: Store,
    shards: Sequence[ObjectInfo],
    budget: Budget,
    on_cell: Callable[[Cell], object] = lambda _: None,
) -> Sweep:
    """Measure rows of cells: the number of requests doubles until the rate does not grow.

    Args:
        store: The shards' store, whose requests are charged to the budget.
        shards: The shards.
        budget: What may be spent; all of it may be.
        on_cell: Called with each cell when it is measured.

    Raises:
        BudgetSpent: Too little is left for one cell.
        StoreError: A request failed for good.
        ConfigError: No shard holds a byte.
    """
    sweep = _SweepMeasurement(store, shards, budget, on_cell)
    largest = largest_of(shards)
    # A range larger than each shard would measure the same requests again.
    sizes = [size for size in SIZES if size <= largest] or [largest]
    try:
        async with budget.in_time():
            # The last parts, so that the last row may spend all that is left.
            for size, part in zip(sizes, PARTS[-len(sizes) :], strict=True):
                await sweep.measure_row(size, part)
    except BudgetSpent:
        if not sweep.cells:
            raise
    if not sweep.cells:
        raise BudgetSpent(
            f"{budget.limits.bytes:,} bytes, {budget.limits.requests:,} requests and "
            f"{budget.limits.seconds:g} seconds do not suffice for a sweep; raise them"
        )
    return Sweep(
        cells=sweep.cells,
        connection_bytes_per_second=sweep.connection_rate,
        plateau=plateau_of(sweep.cells, sweep.flat),
    )


def plateau_of(cells: Sequence[Cell], flat: frozenset[int] | set[int]) -> int | None:
    """Return the index of the cell with the fewest requests whose rate is almost that of the best.

    Args:
        cells: The cells, those of a row in the order of their requests at a time.
        flat: The sizes of the ranges whose rows went on until the rate did not grow.

    Returns:
        ``None`` if the best rate is that of the last cell of a row that was cut short.
    """
    rates = [cell.bytes_per_second for cell in cells]
    best = cells[int(np.argmax(rates))]
    # The last point of a row that was still growing is no plateau.
    if best.range_bytes not in flat and best is _row(cells, best.range_bytes)[-1]:
        return None
    # Of points that are almost the best, the one with the fewest requests: more bring only queues.
    good = [number for number, rate in enumerate(rates) if rate * GAIN >= max(rates)]
    return min(good, key=lambda number: (cells[number].concurrency, -rates[number]))


def _row(cells: Sequence[Cell], size: int) -> list[Cell]:
    return [cell for cell in cells if cell.range_bytes == size]


@dataclass
class _SweepMeasurement:
    store: Store
    shards: Sequence[ObjectInfo]
    budget: Budget
    on_cell: Callable[[Cell], object]
    cells: list[Cell] = field(default_factory=list)
    flat: set[int] = field(default_factory=set)
    """The sizes of the ranges whose rows went on until the rate did not grow."""

    def __post_init__(self) -> None:
        self._memory = np.empty(MEMORY, np.uint8)
        self._connections: dict[int, float] = {}

    @property
    def connection_rate(self) -> float | None:
        """The rate of one connection that is alone, of the largest ranges."""
        return self._connections[max(self._connections)] if self._connections else None

    async def measure_row(self, size: int, part: float) -> None:
        """Measure ranges of one size, with a part of what is left of the budget."""
        row = _Share(self.budget, part)
        rates: list[float] = []
        concurrency, last = 1, None
        while concurrency <= most_requests():
            seconds = row.seconds_for(size, concurrency, last)
            # A row that the budget cuts short is not flat: its best may not be the most.
            if seconds is None:
                return
            last = await measure_cell(
                self.store, self.shards, size, concurrency, seconds, self._memory
            )
            self._add(last)
            rates.append(last.cell.bytes_per_second)
            # One doubling without a gain may be noise of the store.
            if len(rates) > FLAT and max(rates) < GAIN * max(rates[:-FLAT]):
                self.flat.add(size)
                return
            concurrency *= 2

    def _add(self, measured: MeasuredCell) -> None:
        cell, rate = measured.cell, measured.connection_bytes_per_second
        self.cells.append(cell)
        # With several, the connections share the link, and none shows its own rate.
        if cell.concurrency == 1 and rate is not None:
            self._connections[cell.range_bytes] = rate
        self.on_cell(cell)


class _Share:
    """A part of what is left of a budget, and the plan of how to spend it on cells."""

    def __init__(self, budget: Budget, part: float) -> None:
        left = budget.left
        self._budget = budget
        self._seconds = left.seconds * part
        self._kept = Limits(
            seconds=left.seconds - self._seconds,
            bytes=left.bytes - int(left.bytes * part),
            requests=left.requests - int(left.requests * part),
        )

    def seconds_for(self, size: int, concurrency: int, last: MeasuredCell | None) -> float | None:
        """Return the length of a cell's window in seconds; ``None`` if too little is left for it.

        Args:
            size: Bytes of a range.
            concurrency: Requests at a time.
            last: The cell before, with half as many; ``None``: nothing is known.
        """
        left, reserve = self._budget.left, self._kept
        ranges = min((left.bytes - reserve.bytes) // size, left.requests - reserve.requests)
        time = left.seconds - reserve.seconds
        if last is None:
            return SHORTEST * 2 if ranges >= FIRST_RANGES and time > 0 else None
        # One range of each connection before the window, and one that goes on after it.
        each = last.range_seconds
        rounds = ranges / SHARE / concurrency - 2
        seconds = min(self._seconds / CELLS - 2 * each, rounds * each, LONGEST)
        seconds = max(seconds, SHORTEST, each)
        fits = seconds <= rounds * each and seconds + 2 * each <= time
        return seconds if fits else None


def most_requests() -> int:
    """Return the most requests at a time for which this process may open connections."""
    if sys.platform == "win32":
        return MOST_REQUESTS
    import resource

    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A connection is a file, and the process has others.
    return min(MOST_REQUESTS, max(1, files // 2))
