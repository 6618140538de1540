"""Measures the time from a request to the first byte of its answer."""

from __future__ import annotations

import time
from random import Random
from typing import TYPE_CHECKING

import numpy as np

from streamrec.flow.retry import Backoff, retried
from streamrec.measure.budget import BudgetSpent
from streamrec.measure.figures import FirstByte
from streamrec.measure.places import Places
from streamrec.measure.together import together

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from streamrec.measure.budget import Budget
    from streamrec.stores.base import ObjectInfo, Store

RANGE_BYTES = 4 << 10
MOST_TIMES = 2000
"""The 99.9th percentile is then the time of the second slowest request."""
ALONE = 8
"""Times that are measured with one request at a time, before it is decided how many may be."""
MOST_AT_A_TIME = 8
APART = 0.005
"""Seconds of a first byte for each request at a time. The event loop works less than a tenth of
that for a request, so that they do not wait for one another."""
RETRIES = 8


async def measure_first_byte(
    store: Store,
    shards: Sequence[ObjectInfo],
    budget: Budget,
    on_time: Callable[[float], object] = lambda _: None,
) -> FirstByte:
    """Measure small ranges at random places, over connections that were used before.

    One request at a time is sent, or where the store is far away, a few of them.

    Args:
        store: The shards' store, whose requests are charged to the budget.
        shards: The shards.
        budget: What may be spent; all of it may be.
        on_time: Called with the seconds of each request.

    Raises:
        BudgetSpent: Too little is left to measure anything.
        StoreError: A request failed for good.
        ConfigError: No shard holds a byte.
    """
    times: list[float] = []
    request = _Request(store, Places(shards, RANGE_BYTES))

    async def work(numbers: Iterator[int]) -> None:
        await request.seconds()  # opens the connection
        for _ in numbers:
            times.append(await request.seconds())
            on_time(times[-1])

    try:
        async with budget.in_time():
            await work(iter(range(ALONE)))
            numbers = iter(range(MOST_TIMES - ALONE))
            at_a_time = int(min(max(1, np.median(times) / APART), MOST_AT_A_TIME))
            await together(work(numbers) for _ in range(at_a_time))
    except BudgetSpent:
        if not times:
            raise
    return _figures(times)


def _figures(times: list[float]) -> FirstByte:
    p50, p99, p999 = np.quantile(times, [0.5, 0.99, 0.999], method="inverted_cdf").tolist()
    return FirstByte(seconds=sorted(times), p50=p50, p99=p99, p999=p999)


class _Request:
    """A small range that is requested at one place after the other."""

    def __init__(self, store: Store, places: Places) -> None:
        self._store, self._places = store, places
        self._memory = memoryview(bytearray(places.size))

    async def seconds(self) -> float:
        """Request a range, and return the seconds of the attempt that succeeds.

        Raises:
            StoreError: It is not retryable, or the last retry failed.
        """
        return await retried(self._attempt, Backoff(Random()), RETRIES)

    async def _attempt(self) -> float:
        url, start, stop, etag = self._places.next()
        heard: list[float] = []
        started = time.perf_counter()
        async with self._store.open_range(url, start, stop, etag=etag) as body:
            await body.fill(self._memory, lambda _: heard.append(time.perf_counter()))
        return heard[0] - started
