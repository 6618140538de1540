"""A simulated trainer, which takes batches and keeps the account of a job."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from streamrec.flow.channel import EndOfStream
from streamrec.flow.cleanup import end
from streamrec.measure.core_times import CoreTimes
from streamrec.measure.figures import Job, Sample

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from streamrec.flow.attribution import Collector
    from streamrec.measure.core_times import CoreSeconds
    from streamrec.pipeline.batch.batch import Batch

    OnSample: TypeAlias = Callable[[Sample], object]

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
        except EndOfStream:
            pass
        finally:
            self._close()
            await end(sampling)

    def job(self, ended: Ended) -> Job:
        """Return the figures of the job, which is over."""
        self._close()
        told, seconds = self._counted, self.seconds
        first = seconds if self._first is None else self._first
        rest = seconds - first
        ran, waited = self._core_seconds or (None, None)
        return Job(
            seconds=seconds,
            ended=ended,
            first_batch_seconds=first,
            batches=self._batches,
            records=self._records,
            bytes=told.get("bytes_used", 0),
            **{name: told.get(name, 0) for name in COUNTED},
            step_seconds=self._step_seconds,
            stalled=min(1.0, (self.waited - first) / rest) if rest > 0 else 0.0,
            waits=told["waits"],
            concurrency=told.get("concurrency"),
            concurrency_reason=told.get("concurrency_reason"),
            concurrency_seconds=told.get("concurrency_seconds", {}),
            loop_busy=self._loop_busy,
            core_seconds=ran,
            core_wait_seconds=waited,
            samples=self._samples,
        )

    async def _step(self) -> None:
        began = self._now()
        if self._step_seconds is not None:
            await asyncio.sleep(self._step_seconds)
        self._asked = self._now()
        if self._spans is not None:
            self._spans.add("trainer", "step", began, self._asked, batch=self._batches)

    def _now(self) -> float:
        return time.monotonic() if self._ended is None else self._ended

    def _count(self, batch: Batch) -> None:
        self._waited, self._asked = self.waited, None
        self._first = self.seconds if self._first is None else self._first
        self._batches += 1
        self._records += len(batch)

    def _close(self) -> None:
        """Stop the clock and keep the counters; a second call does nothing."""
        if self._ended is not None:
            return
        self._counted, self._ended = self._statistics(), time.monotonic()
        busy = time.thread_time() - self._cpu
        self._loop_busy = min(1.0, busy / self.seconds) if self.seconds else 0.0
        self._take_sample(self._counted)

    async def _sample(self) -> None:
        while True:
            await asyncio.sleep(SAMPLE_SECONDS)
            self._take_sample(self._statistics())

    def _take_sample(self, told: Mapping[str, Any]) -> None:
        before, nbytes, records = self._sampled
        self._core_seconds = self._cores.seconds()
        self._sampled = now, received, _ = self._now(), told.get("bytes_used", 0), self._records
        sample = Sample(
            at=now - self._began,
            seconds=now - before,
            bytes=received - nbytes,
            records=self._records - records,
            in_flight=told.get("in_flight"),
        )
        self._samples.append(sample)
        self._on_sample(sample)
