"""One benchmark: its measurements, one after the other, within a budget."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from streamrec.errors import ConfigError, DataError
from streamrec.measure.budget import BudgetSpent, stores_of
from streamrec.measure.costs import costs
from streamrec.measure.figures import Figures, Sweep
from streamrec.measure.first_byte import measure_first_byte
from streamrec.measure.job import run_feeder_job, run_job
from streamrec.measure.listing import measure_listing
from streamrec.measure.machine import describe_machine
from streamrec.measure.processing import measure_processing
from streamrec.measure.sweep import measure_sweep, plateau_of
from streamrec.measure.verdict import judge
from streamrec.report.words import memory, rate

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from streamrec.config import DatasetSettings
    from streamrec.feeder.client.healing import Route
    from streamrec.flow.attribution import Collector
    from streamrec.measure.budget import Budget
    from streamrec.measure.costs import Prices
    from streamrec.measure.figures import Cell, FirstByte, Processing, Sample, Target
    from streamrec.stores.base import ObjectInfo, Store

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
        settings = await self._parsing(settings, partial(self._measure_processing, shards))
        await self._parsing(settings, partial(self._run_job, world_size))

    async def measure_feeder(self, address: str, **route: Any) -> None:
        """Measure what a feeder gives to one client.

        Raises:
            StreamrecError: No feeder serves what is wanted, or the stream fails.
        """
        self._watch.phase("stream")
        options: Route = route  # type: ignore[assignment]
        self._found["job"] = await run_feeder_job(
            address, self._budget, **self._of_job(), **options
        )

    def figures(self) -> Figures:
        """Return all that has been measured until now, with its costs and the verdict."""
        found = dict(self._found)
        if "sweep" not in found and self._cells:  # it was interrupted
            cells = self._cells
            found["sweep"] = Sweep(
                cells=cells, connection_bytes_per_second=None, plateau=plateau_of(cells, set())
            )
        figures = Figures(
            taken=self._taken,
            target=self._target,
            machine=describe_machine(),
            limits=self._budget.limits,
            spent=self._budget.spent,
            unfinished=self._unfinished,
            **found,
        )
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

    async def _parsing(
        self, settings: DatasetSettings, measure: Callable[[DatasetSettings], Awaitable[None]]
    ) -> DatasetSettings:
        """Measure with the settings; return those that the records turned out to fit."""
        try:
            await measure(settings)
        except (ConfigError, DataError) as error:
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
                settings, self._budget, world_size=world_size, **self._of_job()
            )
        except BudgetSpent as error:
            self._leave_out("stream", error)

    def _of_job(self) -> dict[str, Any]:
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
        taken = rate(sample.bytes / sample.seconds if sample.seconds else 0.0)
        self._watch.note(f"{taken} in batches")

    def _leave_out(self, what: str, why: Exception) -> None:
        self._unfinished.append(f"{what}: {why}")
