"""The whole stream, read for a while as a training job reads it, by a simulated trainer.

Shards are read in the running event loop, by the code that an ``async for`` runs, and the engine
process of a plain ``for`` too. The trainer only waits, so that nothing shares the loop's core, as
in the engine process; the hand-over from that process is not measured.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Unpack

from streamrec.feeder.client.healing import AsyncHealingFeed
from streamrec.flow.attribution import WaitClock
from streamrec.flow.cleanup import finish
from streamrec.measure.budget import BudgetSpent
from streamrec.measure.trainer import Trainer
from streamrec.pipeline.dataset import Dataset
from streamrec.pipeline.terms.memory_needs import Measures
from streamrec.values.columns import size_of

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from streamrec.config import DatasetSettings
    from streamrec.feeder.client.healing import Route
    from streamrec.flow.attribution import Collector
    from streamrec.measure.budget import Budget
    from streamrec.measure.figures import Job, Sample
    from streamrec.measure.trainer import Ended, OnSample
    from streamrec.pipeline.batch.batch import Batch
    from streamrec.pipeline.run import Run


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
    before = budget.spent.requests

    def statistics() -> Mapping[str, Any]:
        if run is None:
            return {"waits": waits.seconds()}
        # The run counts requests that the budget refuses, too.
        return {**run.statistics(), "requests": budget.spent.requests - before}

    async def read() -> None:
        nonlocal run, before
        waits.consume("list")
        began = waits.clock()
        dataset = await Dataset.open(settings, before_request=budget.before_request)
        waits.consume(None)
        if spans is not None:
            spans.add("request", "list", began, waits.clock())
        before = budget.spent.requests
        try:
            run = dataset.run(
                rank=rank,
                world_size=world_size,
                batch_size=settings.batch_size,
                position=None,
                measures=measures,
            )
            async with run:
                await trainer.take_all(run.receive)
        finally:
            await finish(dataset.aclose())

    trainer = Trainer(step_seconds, on_sample, statistics, spans)
    return trainer.job(await _ended(read(), seconds))


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
        told = {} if feed is None else feed.statistics()
        waits = _waits_of_client(trainer, told.get("waits", {}))
        return {**told, "bytes_used": received, "bytes_read": received, "waits": waits}

    async def read() -> None:
        nonlocal feed
        feed = opened = await AsyncHealingFeed.open(address, **route)

        async def receive() -> Batch:
            nonlocal received
            batch = await opened.receive()
            size = sum(map(size_of, batch.columns.values()))
            budget.take(0, size)
            received += size
            return batch

        try:
            await trainer.take_all(receive)
        finally:
            await finish(opened.aclose())

    trainer = Trainer(step_seconds, on_sample, statistics, spans)
    return trainer.job(await _ended(read(), seconds))


async def _ended(reading: Coroutine[Any, Any, None], seconds: float) -> Ended:
    """Read until something ends it, and say what."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            await reading
    except TimeoutError:
        if not limit.expired():
            raise
        return "seconds"
    except BudgetSpent:
        return "budget"
    except asyncio.CancelledError:
        return "interrupt"
    return "stream"


def _waits_of_client(trainer: Trainer, told: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds of a feeder's client by stage.

    The feeder tells what it did while its client had room for a batch. It reads ahead, and the
    client holds batches, so the trainer has not waited for all of that: its wait has the same
    proportions. What it waited beyond that was the wire.
    """
    feeder = {stage: seconds for stage, seconds in told.items() if stage != "client"}
    total, waited = sum(feeder.values()), trainer.waited
    part = min(1.0, waited / total) if total else 0.0
    waits = {stage: seconds * part for stage, seconds in feeder.items()}
    waits["wire"] = waits.get("wire", 0.0) + max(0.0, waited - total)
    waits["client"] = trainer.seconds - waited
    return {stage: seconds for stage, seconds in waits.items() if seconds > 0}
