"""Worlds as arithmetic: the figures that a benchmark would take there, and the rates that hold."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streamrec.config import DatasetSettings
from streamrec.flow.stages import Bottleneck
from streamrec.measure.ceilings import Reading
from streamrec.measure.figures import (
    Cell,
    Figures,
    FirstByte,
    Job,
    Limits,
    Listing,
    Machine,
    Processing,
    Stage,
    Sweep,
    Target,
)
from streamrec.plan.reading.concurrency import Limit

if TYPE_CHECKING:
    from streamrec.flow.stages import Bottleneck

MB, MIB, GIB = 10**6, 1 << 20, 1 << 30
NOTHING = Limits(seconds=0, bytes=0, requests=0)
CONCURRENCIES = (1, 4, 16, 64, 256)
BATCH = MB
"""Bytes of a batch."""


@dataclass(frozen=True)
class World:
    """A store, the way to it, a machine and a trainer."""

    latency: float = 0.01
    connection: float = 1000.0 * MB
    """Bytes a second."""
    link: float = 10_000.0 * MB
    """Bytes a second."""
    requests: float = math.inf
    """Requests a second that the store answers."""
    loop: float = 0.5
    """Seconds of a core for a GB."""
    decoding: float = 0.5
    """Seconds of a core for a GB."""
    transform: float = 0.1
    """Seconds of a core for a GB."""
    other: float = 0.0
    """Seconds of a core for a GB, of what no step of the processing shows."""
    step: float | None = None
    page: float = 0.05
    """Seconds of a listing."""
    cores: int = 8
    cause: Limit | None = None
    """The engine's own reason for which it asks for no more, where the store is the slowest."""
    shards: int = 1000
    shard: int = 128 * MB
    """Bytes."""

    def rates(self, settings: DatasetSettings) -> dict[str, float]:
        """Return the most bytes a second that each stage of a job gives."""
        reading = Reading.of(settings, self.listing())
        seconds = self.latency + reading.range_bytes / self.connection
        little = reading.in_flight * reading.range_bytes / seconds
        loop = self.loop + self.decoding + self.transform
        threads = min(4, self.cores)
        rates = {
            "first_byte": min(little, self.link, self.requests * reading.range_bytes),
            "order": 1e9 / self.loop,
            "decode": min(
                threads * 1e9 / (self.decoding + self.transform), self.cores * 1e9 / loop
            ),
        }
        if self.other:
            rates["cores"] = self.cores * 1e9 / (loop + self.other)
        if self.transform > self.decoding:
            rates["transform"] = rates.pop("decode")
        if self.step:
            rates["client"] = BATCH / self.step
        if settings.cache is not None:
            del rates["first_byte"]
        return rates

    def rate(self, settings: DatasetSettings) -> float:
        """Return the bytes a second of a job behind its listing."""
        return min(self.rates(settings).values())

    def listing(self) -> Listing:
        """Return the figures of the listing."""
        size = self.shards * self.shard
        return Listing(shards=self.shards, bytes=size, requests=1, seconds=self.page)

    def figures(self, settings: DatasetSettings, *, job: bool = True, **more: Any) -> Figures:
        """Return what a benchmark measures."""
        found: dict[str, Any] = {
            "taken": "2026-01-01T00:00:00",
            "target": Target(kind="store", urls=settings.urls),
            "machine": machine(self.cores),
            "limits": NOTHING,
            "spent": NOTHING,
            "listing": self.listing(),
            "first_byte": first_byte(self.latency),
            "sweep": self.sweep(),
            "processing": self.processing(),
            "job": self.job(settings) if job else None,
        }
        return Figures(**{**found, **more})

    def sweep(self) -> Sweep:
        """Return the sweep with ranges of 1 and 8 MiB."""
        cells = [self.cell(size, count) for size in (MIB, 8 * MIB) for count in CONCURRENCIES]
        best = max(cell.bytes_per_second for cell in cells)
        good = [
            number
            for number, cell in enumerate(cells)
            if cell.bytes_per_second >= 0.95 * best and cell.concurrency < CONCURRENCIES[-1]
        ]
        plateau = min(good, key=lambda number: cells[number].concurrency, default=None)
        return Sweep(cells=cells, connection_bytes_per_second=self.connection, plateau=plateau)

    def cell(self, size: int, count: int) -> Cell:
        """Return a cell of ten seconds."""
        alone = count * size / (self.latency + size / self.connection)
        rate = min(alone, self.link, self.requests * size, 1e9 / self.loop)
        refused = 100 if alone > self.requests * size else 0
        return Cell(
            range_bytes=size,
            concurrency=count,
            seconds=10,
            bytes=int(10 * rate),
            requests=int(10 * rate / size),
            throttled=refused,
            loop_busy=rate * self.loop / 1e9,
        )

    def processing(self) -> Processing:
        """Return the rates of the steps on one core."""
        transform = stage(self.transform) if self.transform else None
        return Processing(
            records=1000,
            bytes=100 * MB,
            stored_bytes=100 * MB,
            scan=stage(1e-3),
            crc=stage(1e-3),
            parse=stage(self.decoding),
            transform=transform,
        )

    def job(self, settings: DatasetSettings, seconds: float = 10.0) -> Job:
        """Return a job: nearly all of its time goes to its slowest stage."""
        rates = self.rates(settings)
        rate, slowest = min((rate, stage) for stage, rate in rates.items())
        size, answered = (
            int(rate * seconds),
            int(self.requests if math.isfinite(self.requests) else 0),
        )
        limited = slowest == "first_byte" and rate > 0.99 * self.requests * MIB / 8
        throttled = 100 if limited and answered else 0
        cost = self.loop + self.decoding + self.transform + self.other
        half = 0.45 * seconds
        waits = {"order": half, "decode": half} if slowest == "cores" else {slowest: 2 * half}
        return a_job(
            seconds=seconds + self.page,
            first_batch_seconds=self.page,
            batches=max(3, size // BATCH),
            bytes=size,
            requests=int(answered * seconds) + throttled if throttled else 100,
            throttled=throttled,
            step_seconds=self.step,
            concurrency_seconds={self.cause: seconds}
            if self.cause and slowest == "first_byte"
            else {},
            stalled=0.0 if slowest == "client" else 0.5,
            waits={**waits, "queue": 0.1 * seconds, "list": self.page},
            core_seconds=size * cost / 1e9,
            core_wait_seconds=0.0,
            loop_busy=min(1.0, rate * self.loop / 1e9),
        )


def a_job(**figures: Any) -> Job:
    """Return a job with the given figures."""
    found = {
        "seconds": 10.0,
        "ended": "seconds",
        "first_batch_seconds": 0.0,
        "batches": 1000,
        "records": 10_000,
        "bytes": 1000 * MB,
        "bytes_read": figures.get("bytes", 1000 * MB),
        "requests": 100,
        "stalled": 0.0,
        "waits": {"first_byte": 10.0},
        **figures,
    }
    return Job(**{name: value for name, value in found.items() if name in Job.model_fields})


def machine(cores: int = 8, **more: Any) -> Machine:
    """Return a machine."""
    found: dict[str, Any] = {
        "cpu": "a CPU",
        "cores": cores,
        "memory_bytes": 64 * GIB,
        "system": "Linux",
        "python": "3.12.0",
        "streamrec": "0.1.0",
        "kernel": "native",
    }
    return Machine(**{**found, **more})


def first_byte(latency: float) -> FirstByte:
    """Return times to first bytes, of which one is ten seconds."""
    return FirstByte(seconds=[latency] * 99, p50=latency, p99=latency, p999=10.0)


def stage(cost: float) -> Stage:
    """Return the rate of a step that takes so many seconds a GB."""
    return Stage(bytes_per_second=1e9 / cost, records_per_second=1e6 / cost)


def settings_of(**settings: Any) -> DatasetSettings:
    """Return the settings of a dataset in a bucket."""
    defaults = {"source": "s3://bucket/train-*.tfrecord", "memory_budget": "1GiB"}
    return DatasetSettings.model_validate({**defaults, **settings})


PLANTED: dict[Bottleneck, tuple[World, dict[str, Any]]] = {
    "store latency": (World(latency=0.2, step=0.002), {"max_concurrency": 4}),
    "connection bandwidth": (World(connection=5.0 * MB, step=0.01), {"max_concurrency": 8}),
    "link": (World(link=50.0 * MB, step=0.005), {}),
    "throttling": (World(requests=100.0, step=0.005), {"memory_budget": "64MiB"}),
    "memory budget": (
        World(latency=0.5, step=0.002, cause=Limit.BUFFERS),
        {"memory_budget": "64MiB"},
    ),
    "max_concurrency": (
        World(latency=0.2, step=0.002, cause=Limit.MAXIMUM),
        {"max_concurrency": 4},
    ),
    "event loop": (World(loop=20.0, step=0.01), {}),
    "decoding": (World(decoding=100.0, step=0.01), {}),
    "transform": (World(transform=100.0, step=0.01), {"transform": "module:function"}),
    "trainer": (World(step=0.1), {}),
    "listing": (World(page=100.0, shard=MB, step=0.01), {}),
    "cores": (World(cores=2, other=100.0, step=0.01), {}),
}
"""A world and settings for each bottleneck, with the trainer or the machine as the next one."""
