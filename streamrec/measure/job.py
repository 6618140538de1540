"""The whole stream, read for a while as a training job reads it, by a simulated trainer.

Shards are read in the running event loop, by the code that an ``async for`` runs, and the engine
process of a plain ``for`` too. The trainer only waits, so that nothing shares the loop's core, as
in the engine process; the hand-over from that process is not measured.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, Unpack

from streamrec.feeder.client.healing import AsyncHealingFeed
from streamrec.flow.channel import EndOfStream
from streamrec.flow.cleanup import end, finish
from streamrec.flow.stages import WaitClock
from streamrec.measure.budget import BudgetSpent
from streamrec.measure.figures import Job, Sample
from streamrec.pipeline.dataset import Dataset
from streamrec.pipeline.terms.memory_needs import Measures
from streamrec.values.columns import size_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping

    from streamrec.config import DatasetSettings
    from streamrec.feeder.client.healing import Route
    from streamrec.flow.stages import Collector
    from streamrec.flow.timings import Timings
    from streamrec.measure.budget import Budget
    from streamrec.pipeline.batch.batch import Batch
    from streamrec.pipeline.run import Run

    OnSample: TypeAlias = Callable[[Sample], object]


TASKS = Path("/proc/self/task")
"""A directory for each thread; ``schedstat`` in it begins with both times in nanoseconds (Linux,
Documentation/scheduler/sched-stats)."""


class CoreSeconds(NamedTuple):
    """Seconds of all threads together."""

    ran: float
    waited: float
    """Seconds for which a thread could have run, and had no core."""


class CoreTimes:
    """The times of this process's threads from now on.

    A thread that ends is counted as it was last seen, so look now and then.
    """

    def __init__(self) -> None:
        self._before = _read()
        self._seen = dict(self._before)

    def seconds(self) -> CoreSeconds | None:
        """Return the times until now; ``None``: the system does not tell them."""
        # A thread that has ended has no file any more: its last reading stays.
        self._seen.update(_read())
        if not self._seen:
            return None
        nothing = CoreSeconds(0, 0)
        # A thread that began later had no time before.
        gone = [(now, self._before.get(thread, nothing)) for thread, now in self._seen.items()]
        return CoreSeconds(
            sum(now.ran - before.ran for now, before in gone),
            sum(now.waited - before.waited for now, before in gone),
        )


def _read() -> dict[str, CoreSeconds]:
    by_thread = {}
    for path in TASKS.glob("*/schedstat"):
        try:
            ran, waited = map(int, path.read_text().split()[:2])
        except (OSError, ValueError):  # the thread has ended, or the kernel counts nothing
            continue
        by_thread[path.parent.name] = CoreSeconds(ran / 1e9, waited / 1e9)
    return by_thread


SAMPLE_SECONDS: Final = 0.5
"""Seconds between samples: some requests of a slow store end in each."""
COUNTED = ("requests", "retries", "throttled", "hedges", "bytes_read")

Ended: TypeAlias = Literal["seconds", "stream", "budget", "interrupt"]
"""The causes of a job's end; :class:`~streamrec.measure.figures.Job` explains each."""


class Trainer:
    """A trainer that waits for a batch, and then for its step, without using a core.

    Args:
        step_seconds: Seconds of a step; ``None``: it takes the next batch at once.
        on_sample: Called with each sample.
        statistics: Returns the stream's counters, as ``stream.statistics()``, at least ``waits``.
        spans: Collects the spans of its steps; ``None``: nobody does.
    """

    def __init__(
        self,
        step_seconds: float | None,
        on_sample: OnSample,
        statistics: Callable[[], Mapping[str, Any]],
        spans: Collector | None = None,
    ) -> None:
        self._step_seconds = step_seconds
        self._on_sample = on_sample
        self._statistics = statistics
        self._spans = spans
        self._began, self._cpu = time.monotonic(), time.thread_time()
        self._cores = CoreTimes()
        self._asked: float | None = self._began
        """The time since when it waits; ``None``: it does not."""
        self._stepped = 0.0
        """The seconds of the job until the last batch, whose step begins then."""
        self._waited = 0.0
        self._first: float | None = None
        self._batches = self._records = 0
        self._samples: list[Sample] = []
        self._sampled = self._began, 0, 0
        """The time, the bytes and the records of the last sample."""
        self._counted: Mapping[str, Any] = {}
        self._ended: float | None = None
        self._loop_busy = 0.0
        self._core_seconds: CoreSeconds | None = None

    @property
    def seconds(self) -> float:
        """The seconds of the job until now, or its end."""
        return self._now() - self._began

    @property
    def waited(self) -> float:
        """The seconds until now for which it waited, for the opening and the first batch too."""
        return self._waited + (0.0 if self._asked is None else self._now() - self._asked)

    async def take_all(self, receive: Callable[[], Awaitable[Batch]]) -> None:
        """Take batches until the stream ends, and close the account whatever ends it."""
        sampling = asyncio.create_task(self._sample(), name="streamrec-sample")
        try:
            while True:
                self._count(await receive())
                await self._step()
        # The end of the data is a regular end, which `_why_ended` tells as "stream".
        except EndOfStream:
            pass
        finally:
            self._close()
            # Behind the clock: ending a task takes turns of the loop.
            await end(sampling)

    def job(self, ended: Ended) -> Job:
        """Return the figures of the job, which is over."""
        self._close()
        counters, seconds = self._counted, self.seconds
        first = seconds if self._first is None else self._first
        # The first batch waits for the opening, which says nothing of the stream.
        rest = seconds - first
        ran, waited = self._core_seconds or (None, None)
        return Job(
            seconds=seconds,
            ended=ended,
            first_batch_seconds=first,
            batches=self._batches,
            records=self._records,
            bytes=counters.get("bytes_used", 0),
            **{name: counters.get(name, 0) for name in COUNTED},
            step_seconds=self._step_seconds,
            unfinished_step_seconds=seconds - self._stepped if self._asked is None else 0.0,
            stalled=min(1.0, (self.waited - first) / rest) if rest > 0 else 0.0,
            waits=counters["waits"],
            listed_seconds=counters.get("listed_seconds"),
            concurrency=counters.get("concurrency"),
            concurrency_reason=counters.get("concurrency_reason"),
            concurrency_seconds=counters.get("concurrency_seconds", {}),
            loop_busy=self._loop_busy,
            core_seconds=ran,
            core_wait_seconds=waited,
            samples=self._samples,
        )

    async def _step(self) -> None:
        began = self._now()
        if self._step_seconds is not None:
            await asyncio.sleep(self._step_seconds)
        # Behind the step: from now on the trainer waits.
        self._asked = self._now()
        if self._spans is not None:
            self._spans.add("trainer", "step", began, self._asked, batch=self._batches)

    def _now(self) -> float:
        return time.monotonic() if self._ended is None else self._ended

    def _count(self, batch: Batch) -> None:
        # Both at once: the property adds the wait that ends here.
        self._waited, self._asked = self.waited, None
        self._stepped = self.seconds
        self._first = self.seconds if self._first is None else self._first
        self._batches += 1
        self._records += len(batch)

    def _close(self) -> None:
        """Stop the clock and keep the counters; a second call does nothing."""
        if self._ended is not None:
            return
        # The counters first, so that waits never add up to more than the seconds.
        self._counted, self._ended = self._statistics(), time.monotonic()
        busy = time.thread_time() - self._cpu
        # Two clocks may differ by a bit, and a part is 1 at most.
        self._loop_busy = min(1.0, busy / self.seconds) if self.seconds else 0.0
        self._take_sample(self._counted)

    async def _sample(self) -> None:
        while True:
            await asyncio.sleep(SAMPLE_SECONDS)
            self._take_sample(self._statistics())

    def _take_sample(self, counters: Mapping[str, Any]) -> None:
        before, nbytes, records = self._sampled
        # Not only at the end: threads of a closed run are gone by then.
        self._core_seconds = self._cores.seconds()
        self._sampled = now, received, _ = self._now(), counters.get("bytes_used", 0), self._records
        sample = Sample(
            at=now - self._began,
            seconds=now - before,
            bytes=received - nbytes,
            records=self._records - records,
            in_flight=counters.get("in_flight"),
        )
        self._samples.append(sample)
        self._on_sample(sample)


def _nobody(_: Sample) -> None:
    """Do nothing: nobody watches."""


async def run_job(
    settings: DatasetSettings,
    budget: Budget,
    *,
    seconds: float,
    step_seconds: float | None = None,
    rank: int = 0,
    world_size: int = 1,
    on_sample: OnSample = _nobody,
    spans: Collector | None = None,
) -> Job:
    """Read a rank's run of a dataset as a training job does; opening it is a part of the job.

    The figures are those up to what ended it. A cancellation is such an end, and is not passed on:
    ask ``asyncio.current_task().cancelling()``.

    Args:
        settings: Those of the dataset.
        budget: Limits the requests and the bytes.
        seconds: The most seconds to read for.
        step_seconds: The simulated trainer's time for a batch, in which it waits without using a
            core; ``None``: it takes the next one at once.
        rank: The part of the dataset to read.
        world_size: The number of parts.
        on_sample: Called each half second, with what came in it.
        spans: Collects the spans of all that the job does; ``None``: nobody does.

    Raises:
        StreamrecError: The dataset cannot be opened, or a shard cannot be read.
    """
    measures = Measures(waits=WaitClock(spans=spans))
    waits = measures.waits
    run: Run | None = None
    listed: float | None = None
    before = budget.spent.requests

    def statistics() -> Mapping[str, Any]:
        if run is None:
            return {"waits": waits.seconds()}
        # The run counts requests that the budget refuses, too.
        requests = budget.spent.requests - before
        return {**run.statistics(), "requests": requests, "listed_seconds": listed}

    async def read() -> None:
        nonlocal run, before, listed
        dataset = await _open(settings, budget, waits)
        listed = _listed_seconds(dataset.timings)
        # Requests of the opening belong to the listing, not to the run.
        before = budget.spent.requests
        try:
            run = dataset.run(
                rank=rank,
                world_size=world_size,
                # No position: the job begins where a new training begins.
                batch_size=settings.batch_size,
                position=None,
                measures=measures,
            )
            async with run:
                await trainer.take_all(run.receive)
        finally:
            await finish(dataset.aclose())

    trainer = Trainer(step_seconds, on_sample, statistics, spans)
    return trainer.job(await _why_ended(read(), seconds))


async def _open(settings: DatasetSettings, budget: Budget, waits: WaitClock) -> Dataset:
    """Open a dataset; all of it is charged to the listing, whatever else it reads."""
    waits.consume("list")
    began = waits.clock()
    dataset = await Dataset.open(settings, before_request=budget.before_request)
    waits.consume(None)
    if waits.spans is not None:
        waits.spans.add("request", "list", began, waits.clock())
    return dataset


def _listed_seconds(timings: Timings) -> float:
    """Return the seconds of all listings."""
    stores = timings.to_dict().values()
    return float(sum(store["list"]["duration"]["sum"] for store in stores if "list" in store))


async def run_feeder_job(
    address: str,
    budget: Budget,
    *,
    seconds: float,
    step_seconds: float | None = None,
    on_sample: OnSample = _nobody,
    spans: Collector | None = None,
    **route: Unpack[Route],
) -> Job:
    """Receive a rank's run from a feeder as a training job does.

    Args:
        address: As for ``streamrec.connect``.
        budget: Limits the bytes; it does not count the feeder's own requests.
        seconds: As for :func:`run_job`, with the arguments that follow.
        step_seconds: The simulated trainer's time for a batch.
        on_sample: Called each half second.
        spans: Collects the spans of the trainer; the feeder's are not known here.
        **route: Those of `AsyncHealingFeed.open`; the rank is 0 of 1 by default.

    Raises:
        StreamrecError: No feeder serves what is wanted, or the stream fails.
    """
    feed: AsyncHealingFeed | None = None
    received = 0

    def statistics() -> Mapping[str, Any]:
        counters = {} if feed is None else feed.statistics()
        waits = _waits_of_client(trainer, counters.get("waits", {}))
        return {**counters, "bytes_used": received, "bytes_read": received, "waits": waits}

    async def read() -> None:
        nonlocal feed
        # The closure below needs a name that is never None.
        feed = opened = await AsyncHealingFeed.open(address, **route)

        async def receive() -> Batch:
            nonlocal received
            batch = await opened.receive()
            # A feeder sends batches whole, so the budget ends the job between two of them.
            size = sum(map(size_of, batch.columns.values()))
            budget.take(0, size)
            received += size
            return batch

        try:
            await trainer.take_all(receive)
        finally:
            await finish(opened.aclose())

    trainer = Trainer(step_seconds, on_sample, statistics, spans)
    return trainer.job(await _why_ended(read(), seconds))


async def _why_ended(reading: Coroutine[Any, Any, None], seconds: float) -> Ended:
    """Read until something ends it, and say what."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            await reading
    except TimeoutError:
        # A time-out of a store is an error, and not the end of our time.
        if not limit.expired():
            raise
        return "seconds"
    except BudgetSpent:
        return "budget"
    # Swallowed: what was measured until now is worth reporting.
    except asyncio.CancelledError:
        return "interrupt"
    return "stream"


def _waits_of_client(trainer: Trainer, waits: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds of a feeder's client by stage.

    The feeder tells what it did while its client had room for a batch. It reads ahead, and the
    client holds batches, so the trainer has not waited for all of that: its wait has the same
    proportions. What it waited beyond that was the wire.
    """
    feeder = {stage: seconds for stage, seconds in waits.items() if stage != "client"}
    total, waited = sum(feeder.values()), trainer.waited
    # A feeder that was waited for longer than it worked had its batches on the way.
    part = min(1.0, waited / total) if total else 0.0
    waits = {stage: seconds * part for stage, seconds in feeder.items()}
    waits["wire"] = waits.get("wire", 0.0) + max(0.0, waited - total)
    waits["client"] = trainer.seconds - waited
    return {stage: seconds for stage, seconds in waits.items() if seconds > 0}
