"""Measures the rate of a store by the size of ranges and the number of requests at a time."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from streamrec.measure.budget import BudgetSpent
from streamrec.measure.cell import measure_cell
from streamrec.measure.figures import Cell, Limits, Sweep
from streamrec.measure.places import largest_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from streamrec.measure.budget import Budget
    from streamrec.measure.cell import MeasuredCell
    from streamrec.stores.base import ObjectInfo, Store

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
    sizes = [size for size in SIZES if size <= largest] or [largest]
    try:
        async with budget.in_time():
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
    if best.range_bytes not in flat and best is _row(cells, best.range_bytes)[-1]:
        return None
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
            if seconds is None:
                return
            last = await measure_cell(
                self.store, self.shards, size, concurrency, seconds, self._memory
            )
            self._add(last)
            rates.append(last.cell.bytes_per_second)
            if len(rates) > FLAT and max(rates) < GAIN * max(rates[:-FLAT]):
                self.flat.add(size)
                return
            concurrency *= 2

    def _add(self, measured: MeasuredCell) -> None:
        cell, rate = measured.cell, measured.connection_bytes_per_second
        self.cells.append(cell)
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
        left, kept = self._budget.left, self._kept
        ranges = min((left.bytes - kept.bytes) // size, left.requests - kept.requests)
        time = left.seconds - kept.seconds
        if last is None:
            return SHORTEST * 2 if ranges >= FIRST_RANGES and time > 0 else None
        # One range of each connection before the window, and one that goes on behind it.
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
    return min(MOST_REQUESTS, max(1, files // 2))
