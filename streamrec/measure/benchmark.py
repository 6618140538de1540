"""One benchmark: its measurements, one after the other, within a budget."""

from __future__ import annotations

import asyncio
import os
import platform
import re
import time
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from os.path import commonprefix
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from streamrec import kernel
from streamrec.config.machine import usable_cores
from streamrec.errors import ConfigError, DataError
from streamrec.flow.cleanup import end
from streamrec.flow.retry import Backoff, retry
from streamrec.masking import masked
from streamrec.measure.budget import BudgetSpent, costs, stores_of
from streamrec.measure.figures import Figures, FirstByte, Listing, Machine, Sweep
from streamrec.measure.job import run_feeder_job, run_job
from streamrec.measure.processing import measure_processing
from streamrec.measure.sweep import Places, measure_sweep, plateau_of
from streamrec.measure.verdict import judge
from streamrec.report.words import memory, rate
from streamrec.stores.base.protocol import read_range
from streamrec.stores.base.source_text import expand, is_glob
from streamrec.version import __version__

if TYPE_CHECKING:
    from collections.abc import (
        Awaitable,
        Callable,
        Collection,
        Coroutine,
        Iterable,
        Iterator,
        Sequence,
    )

    from streamrec.config import DatasetSettings
    from streamrec.feeder.client.healing import Route
    from streamrec.flow.stages import Collector
    from streamrec.measure.budget import Budget, Prices
    from streamrec.measure.figures import Cell, Processing, Sample, Target
    from streamrec.stores.base.protocol import ObjectInfo, Store
    from streamrec.stores.open import Stores


_T = TypeVar("_T")


async def together(coroutines: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Run coroutines side by side, and return what they return, in their order.

    When one of them raises, the others are cancelled, and its error is raised as it is.
    """
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await end(*tasks)


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
        # Its handshakes belong to the first request of a job, and to no later one.
        await request.seconds()  # opens the connection
        for _ in numbers:
            times.append(await request.seconds())
            on_time(times[-1])

    try:
        async with budget.in_time():
            await work(iter(range(ALONE)))
            numbers = iter(range(MOST_TIMES - ALONE))
            # Far stores would take minutes one by one; near ones would wait for this loop.
            at_a_time = int(min(max(1, np.median(times) / APART), MOST_AT_A_TIME))
            await together(work(numbers) for _ in range(at_a_time))
    except BudgetSpent:
        if not times:
            raise
    return _figures(times)


def _figures(times: list[float]) -> FirstByte:
    # A time that was measured, and not one between two of them.
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
        return await retry(self._attempt, Backoff(Random()), RETRIES)

    async def _attempt(self) -> float:
        url, start, stop, etag = self._places.next()
        # A body tells each piece that arrives; the first is the first byte.
        heard: list[float] = []
        started = time.perf_counter()
        async with self._store.open_range(url, start, stop, etag=etag) as body:
            await body.fill(self._memory, lambda _: heard.append(time.perf_counter()))
        return heard[0] - started


DIGITS = "0123456789"


def find_counted_range(urls: Collection[str]) -> str | None:
    """Return the range that stands for exactly these URLs; ``None``: none does, or it is secret."""
    if len(urls) < 2:
        return None
    # By length first: 10 comes after 9 where numbers have no zeros in front.
    first, *_, last = sorted(urls, key=lambda url: (len(url), url))
    # Digits that all names share belong to the number: 10 to 19 differ in the last one alone.
    head = commonprefix([first, last]).rstrip(DIGITS)  # noqa: RUF071 - characters are meant
    one, other = (re.fullmatch(r"(\d+)(.*)", url[len(head) :], re.DOTALL) for url in (first, last))
    # Cheap, before the range is written out: a gap in the numbers shows in the count.
    if not one or not other or int(other[1]) - int(one[1]) + 1 != len(urls):
        return None
    pattern = f"{head}{{{one[1]}..{other[1]}}}{other[2]}"
    return pattern if masked(pattern) == pattern and _stands_for(pattern, urls) else None


def _stands_for(source: str, urls: Collection[str]) -> bool:
    try:
        return not is_glob(source) and set(expand(source)) == set(urls)
    except ConfigError:  # a name with braces of its own
        return False


SAMPLE = 64
"""Shards whose sizes are looked up where a source names its shards without a listing."""


async def measure_listing(
    settings: DatasetSettings, budget: Budget
) -> tuple[Listing, list[ObjectInfo]]:
    """List the shards, and return the figures and the shards in the order of their URLs.

    Where the source names its shards, nothing is listed: the sizes of some of them are looked up,
    a request each, and the bytes of the others are estimated from these.

    Args:
        settings: The dataset's settings.
        budget: What may be spent.

    Raises:
        BudgetSpent: The listing needs more than the budget.
        StoreError: The listing failed or stalled.
    """
    before = budget.spent.requests
    async with budget.in_time(), stores_of(settings, budget) as stores:
        started = time.perf_counter()
        # By URL: the components of a mix may share shards, which are one listing's.
        infos = {
            info.url: info
            for source in settings.components.values()
            for info in await stores.resolve(source)
        }
        seconds = time.perf_counter() - started
        requests = budget.spent.requests - before
        # Behind the clock: looking up sizes is ours, and no job does it.
        shards = await _with_sizes([infos[url] for url in sorted(infos)], stores)
    sizes = [info.size for info in shards if info.size is not None]
    total = round(sum(sizes) / len(sizes) * len(shards))
    listing = Listing(
        shards=len(shards),
        bytes=total,
        requests=requests,
        seconds=seconds,
        counted=find_counted_range(infos) if _is_one_glob(settings) else None,
    )
    return listing, shards


def _is_one_glob(settings: DatasetSettings) -> bool:
    return len(settings.urls) == 1 and is_glob(settings.urls[0]) and not settings.weights


async def _with_sizes(shards: Sequence[ObjectInfo], stores: Stores) -> list[ObjectInfo]:
    """Return the shards with the sizes of some of those that have none."""
    unknown = [number for number, info in enumerate(shards) if info.size is None]
    # Evenly over all, since sizes often follow the order of names.
    sample = unknown[:: -(-len(unknown) // SAMPLE) or 1]
    infos = await together(_look_up(shards[number], stores) for number in sample)
    sizes = dict(zip(sample, infos, strict=True))
    return [sizes.get(number, info) for number, info in enumerate(shards)]


async def _look_up(shard: ObjectInfo, stores: Stores) -> ObjectInfo:
    # One byte, and no HEAD: the answer to a range names the size.
    _, info = await read_range(stores.store_for(shard.url), shard, 0, 1)
    return replace(info, url=shard.url)


CPUINFO = Path("/proc/cpuinfo")


def describe_machine() -> Machine:
    """Return the machine, the interpreter, and streamrec's version and kernel."""
    return Machine(
        cpu=_cpu_model(),
        cores=usable_cores(),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        system=f"{platform.system()} {platform.release()}",
        python=f"{platform.python_implementation()} {platform.python_version()}",
        streamrec=__version__,
        kernel="native" if kernel.implementation == "native" else "python",
    )


def _cpu_model() -> str:
    """Return the processor's name, or where the system does not tell it, its architecture."""
    try:
        lines = CPUINFO.read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


FIRST_BYTE, SWEEP, PROCESSING = 0.1, 0.4, 0.3
"""Parts of what is left of the budget, for these measurements in this order; the job gets the rest.
"""


class BenchmarkObserver(Protocol):
    """Someone who watches a benchmark."""

    def phase(self, name: str) -> None:
        """Note that a measurement begins."""
        ...

    def note(self, text: str) -> None:
        """Note what it has found."""
        ...


class Benchmark:
    """The measurements of one target.

    Args:
        target: What is measured.
        budget: What it may spend.
        prices: The prices of stores.
        watch: Told what is measured.
        step_seconds: The simulated trainer's time for a batch; ``None``: it takes the next at once.
        spans: Collects the spans of the job.
    """

    def __init__(
        self,
        target: Target,
        budget: Budget,
        prices: Prices,
        watch: BenchmarkObserver,
        *,
        step_seconds: float | None = None,
        spans: Collector | None = None,
    ) -> None:
        self._target, self._budget = target, budget
        self._prices, self._watch = prices, watch
        self._step_seconds, self._spans = step_seconds, spans
        self._taken = datetime.now(UTC).isoformat(timespec="seconds")
        self._settings: DatasetSettings | None = None
        self._found: dict[str, Any] = {}
        self._cells: list[Cell] = []
        self._unfinished: list[str] = []

    async def measure_dataset(self, settings: DatasetSettings, *, world_size: int = 1) -> None:
        """Measure a dataset's store, this machine, and the stream of rank 0.

        What was measured before an error or a cancellation is kept.

        Raises:
            StreamrecError: The shards cannot be listed or read, or a setting is wrong.
        """
        self._settings = settings
        self._watch.phase("listing")
        try:
            self._found["listing"], shards = await measure_listing(settings, self._budget)
        except BudgetSpent as error:
            self._leave_out("listing", error)
            return
        await self._measure_store(settings, shards)
        # What does not parse here would end the job, too: it runs with what fitted.
        settings = await self._measure_parsed(settings, partial(self._measure_processing, shards))
        await self._measure_parsed(settings, partial(self._run_job, world_size))

    async def measure_feeder(self, address: str, **route: Any) -> None:
        """Measure what a feeder gives to one client.

        Raises:
            StreamrecError: No feeder serves what is wanted, or the stream fails.
        """
        self._watch.phase("stream")
        options: Route = route  # type: ignore[assignment]
        self._found["job"] = await run_feeder_job(
            address, self._budget, **self._options_of_job(), **options
        )

    def figures(self) -> Figures:
        """Return all that has been measured until now, with its costs and the verdict."""
        parts = dict(self._found)
        # The cells came one by one, so an interrupted sweep has some.
        if "sweep" not in parts and self._cells:  # it was interrupted
            cells = self._cells
            parts["sweep"] = Sweep(
                cells=cells, connection_bytes_per_second=None, plateau=plateau_of(cells, set())
            )
        figures = Figures(
            taken=self._taken,
            target=self._target,
            machine=describe_machine(),
            limits=self._budget.limits,
            spent=self._budget.spent,
            unfinished=self._unfinished,
            **parts,
        )
        # In this order: costs need what was measured, and the verdict looks at all of it.
        figures = figures.model_copy(update={"costs": costs(figures, self._prices)})
        return figures.model_copy(update={"verdict": judge(figures, self._settings)})

    async def _measure_store(self, settings: DatasetSettings, shards: Sequence[ObjectInfo]) -> None:
        async def first_byte(store: Store, share: Budget) -> FirstByte:
            return await measure_first_byte(store, shards, share)

        async def sweep(store: Store, share: Budget) -> Sweep:
            return await measure_sweep(store, shards, share, self._add_cell)

        url = shards[0].url
        await self._measure("first byte", "first_byte", FIRST_BYTE, settings, url, first_byte)
        await self._measure("sweep", "sweep", SWEEP, settings, url, sweep)

    async def _measure_parsed(
        self, settings: DatasetSettings, measure: Callable[[DatasetSettings], Awaitable[None]]
    ) -> DatasetSettings:
        """Measure with the settings; return those that the records turned out to fit."""
        try:
            await measure(settings)
        except (ConfigError, DataError) as error:
            # Features that somebody gave are theirs to mend; a guess of ours is not.
            if settings.features != "infer":
                raise
            self._leave_out("parsing", error)
            settings = settings.model_copy(update={"features": None, "dtypes": None})
            await measure(settings)
        return settings

    async def _measure_processing(
        self, shards: Sequence[ObjectInfo], settings: DatasetSettings
    ) -> None:
        async def processing(store: Store, share: Budget) -> Processing:
            return await measure_processing(settings, store, shards, share)

        url = shards[0].url
        await self._measure("processing", "processing", PROCESSING, settings, url, processing)

    async def _measure(
        self,
        name: str,
        field: str,
        part: float,
        settings: DatasetSettings,
        url: str,
        measure: Callable[[Store, Budget], Awaitable[Any]],
    ) -> None:
        """Measure one thing with a part of what is left of the budget."""
        self._watch.phase(name)
        # What a measurement leaves of its share is there for the ones after it.
        share = self._budget.share(part)
        try:
            async with stores_of(settings, share) as stores:
                self._found[field] = await measure(stores.store_for(url), share)
        except BudgetSpent as error:
            self._leave_out(name, error)

    async def _run_job(self, world_size: int, settings: DatasetSettings) -> None:
        self._watch.phase("stream")
        try:
            self._found["job"] = await run_job(
                settings, self._budget, world_size=world_size, **self._options_of_job()
            )
        except BudgetSpent as error:
            self._leave_out("stream", error)

    def _options_of_job(self) -> dict[str, Any]:
        return {
            "seconds": self._budget.left.seconds,
            "step_seconds": self._step_seconds,
            "on_sample": self._note_sample,
            "spans": self._spans,
        }

    def _add_cell(self, cell: Cell) -> None:
        self._cells.append(cell)
        self._watch.note(
            f"{cell.concurrency} x {memory(cell.range_bytes)} at a time: "
            f"{rate(cell.bytes_per_second)}"
        )

    def _note_sample(self, sample: Sample) -> None:
        speed = rate(sample.bytes / sample.seconds if sample.seconds else 0.0)
        self._watch.note(f"{speed} in batches")

    def _leave_out(self, what: str, why: Exception) -> None:
        # A measurement that the budget cuts short is told, since its figures are missing in the
        # verdict.
        self._unfinished.append(f"{what}: {why}")
