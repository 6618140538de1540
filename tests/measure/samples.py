"""Figures of a benchmark as a store gives them: latency holds the job back."""

from __future__ import annotations

from typing import Any

import numpy as np

from streamrec.measure.figures import (
    Ceiling,
    Cell,
    Change,
    Costs,
    Figures,
    FirstByte,
    Job,
    Limits,
    Listing,
    Machine,
    Processing,
    Sample,
    Stage,
    Sweep,
    Target,
    Verdict,
)

MIB = 1 << 20
RANGES = (256 << 10, MIB, 4 * MIB, 8 * MIB, 16 * MIB)
CONCURRENCY = (1, 4, 8, 16, 32, 64, 128)
LATENCY, CONNECTION, LINK = 0.048, 58e6, 1.18e9
"""Seconds to a first byte, bytes a second of a connection, and of the link."""


def figures(seed: int = 1, **changes: Any) -> Figures:
    """Return whole figures; some parts may be left out (``None``) or others."""
    random = np.random.default_rng(seed)
    whole = {
        "taken": "2026-03-14T09:26:53+00:00",
        "target": Target(
            kind="store",
            urls=["s3://vision-eu/imagenet/train-*.tfrecord"],
            settings={"batch_size": 256, "lanes": 16, "max_concurrency": 16, "compression": "none"},
        ),
        "machine": Machine(
            cpu="AMD EPYC 7B13",
            cores=16,
            memory_bytes=64 << 30,
            system="Linux 6.8 (x86_64)",
            python="3.12.8",
            streamrec="0.1.0",
            kernel="native",
        ),
        "limits": Limits(seconds=60.0, bytes=32_000_000_000, requests=20_000),
        "spent": Limits(seconds=52.4, bytes=24_700_000_000, requests=9_210),
        "unfinished": ["16 MiB ranges at 128 at a time: the budget of bytes was spent"],
        "listing": Listing(shards=1024, bytes=148_000_000_000, requests=2, seconds=0.21),
        "first_byte": first_byte(random),
        "sweep": sweep(random),
        "processing": processing(),
        "job": job(random),
        "costs": Costs(
            currency="USD",
            prices="S3 eu-central-1, January 2026",
            spent=0.0041,
            epoch=0.0163,
            epoch_requests=0.0151,
        ),
        "verdict": verdict(),
    }
    return Figures.model_validate({**whole, **changes})


def first_byte(random: np.random.Generator) -> FirstByte:
    usual = LATENCY * random.lognormal(0.0, 0.22, 990)
    slow = LATENCY * random.uniform(3, 18, 10)
    seconds = sorted(float(value) for value in (*usual, *slow))
    p50, p99, p999 = (float(np.quantile(seconds, q)) for q in (0.5, 0.99, 0.999))
    return FirstByte(seconds=seconds, p50=p50, p99=p99, p999=p999)


def sweep(random: np.random.Generator) -> Sweep:
    cells = [
        cell(size, many, random)
        for size in RANGES
        for many in CONCURRENCY
        if (size, many) != (16 * MIB, 128)
    ]
    plateau = next(i for i, one in enumerate(cells) if (one.range_bytes, one.concurrency) == BEST)
    return Sweep(cells=cells, connection_bytes_per_second=CONNECTION, plateau=plateau)


BEST = (8 * MIB, 32)


def cell(size: int, many: int, random: np.random.Generator) -> Cell:
    one = size / (LATENCY + size / CONNECTION)
    rate = min(one * many, LINK) * random.uniform(0.97, 1.0)
    requests = max(many, round(rate / size))
    return Cell(
        range_bytes=size,
        concurrency=many,
        seconds=requests * size / rate,
        bytes=requests * size,
        requests=requests,
        throttled=37 if (size, many) == (256 << 10, 128) else 0,
        loop_busy=min(rate / 2e9 + many * 1e-3, 1.0),
    )


def processing() -> Processing:
    def stage(rate: float) -> Stage:
        return Stage(bytes_per_second=rate, records_per_second=rate / 112_000)

    return Processing(
        records=4_571,
        bytes=512_000_000,
        stored_bytes=512_000_000,
        scan=stage(11.4e9),
        crc=stage(8.9e9),
        parse=stage(6.1e9),
        decode=stage(0.41e9),
        transform=stage(2.3e9),
    )


def job(random: np.random.Generator) -> Job:
    def rate(at: float) -> float:
        steady = 497e6 * (1 - float(np.exp(-at / 0.8)))
        return steady * random.normal(1, 0.05) * (0.55 if 11 < at < 12 else 1.0)

    samples = [
        Sample(
            at=0.25 * (i + 1),
            seconds=0.25,
            bytes=int(0.25 * rate(0.25 * (i + 1))),
            records=int(0.25 * rate(0.25 * (i + 1)) / 112_000),
            in_flight=min(16, 4 + i),
        )
        for i in range(80)
    ]
    total = sum(sample.bytes for sample in samples)
    waits = {"first_byte": 10.9, "body": 5.2, "scan": 0.3, "order": 0.5, "queue": 0.1}
    return Job(
        seconds=20.0,
        ended="seconds",
        first_batch_seconds=0.31,
        batches=sum(sample.records for sample in samples) // 256,
        records=sum(sample.records for sample in samples),
        bytes=total,
        bytes_read=int(1.04 * total),
        requests=1_260,
        retries=3,
        hedges=9,
        step_seconds=0.03,
        stalled=0.83,
        waits={**waits, "decode": 0.2, "client": 2.8},
        concurrency=16,
        concurrency_reason="max_concurrency",
        loop_busy=0.24,
        samples=samples,
    )


def verdict() -> Verdict:
    return Verdict(
        bottleneck="store latency",
        summary=(
            "The store takes 48 ms to the first byte of an answer, and only 16 requests are under "
            "way at a time: together they give 0.50 GB/s, while the link gives 1.17 GB/s. By "
            "Little's law, 32 requests of 8 MiB fill it."
        ),
        evidence=[
            "Batches waited for a first byte during 55% of the job's time.",
            "The sweep's rate doubles with the requests at a time, up to 32 of 8 MiB.",
            "The event loop used 24% of a core; decoding had 16 idle cores.",
        ],
        ceilings=[
            Ceiling(
                resource="store latency",
                bytes_per_second=0.52e9,
                why="16 requests of 2.0 MiB / (48 ms + 2.0 MiB / 58 MB/s) = 0.52 GB/s",
            ),
            Ceiling(
                resource="link",
                bytes_per_second=1.17e9,
                why="The best cell of the sweep: more requests brought no more bytes",
            ),
            Ceiling(
                resource="event loop",
                bytes_per_second=2.0e9,
                why="0.48 GB/s at 24% of a core: one loop gives 2.0 GB/s",
            ),
            Ceiling(
                resource="decoding",
                bytes_per_second=6.5e9,
                why="16 cores x 0.41 GB/s",
            ),
        ],
        changes=[
            Change(
                setting="max_concurrency",
                value=32,
                why="Little: 1.17 GB/s x 192 ms for a range / 8 MiB = 27 requests, and some spare",
            ),
            Change(
                setting="memory_budget",
                value="1GiB",
                why="32 ranges of 8 MiB, and as much again for what waits in order",
            ),
            Change(
                setting=None,
                why="A bucket in this machine's region halves the 48 ms to the first byte",
            ),
        ],
        paste='[datasets.train]\nmax_concurrency = 32\nmemory_budget = "1GiB"\n',
        bytes_per_second=0.48e9,
        predicted_bytes_per_second=1.15e9,
        next_bottleneck="link",
    )


def bare(**changes: Any) -> Figures:
    """Return the figures of a benchmark that was interrupted at once."""
    nothing = dict.fromkeys(
        ("listing", "first_byte", "sweep", "processing", "job", "costs", "verdict")
    )
    return figures(**{**nothing, "unfinished": ["all of it: interrupted"], **changes})


def hostile(text: str) -> Figures:
    """Return figures that hold a text wherever there is one."""
    whole = figures().model_dump()
    kept = {"kind", "kernel", "ended", "bottleneck", "resource", "next_bottleneck"}

    def changed(value: Any) -> Any:
        if isinstance(value, dict):
            return {n: value[n] if n in kept else changed(value[n]) for n in value}
        if isinstance(value, list):
            return [changed(part) for part in value]
        return text if isinstance(value, str) else value

    changed_whole = changed(whole)
    changed_whole["job"]["waits"] = {text: 3.0}
    changed_whole["target"]["settings"] = {text: text}
    return Figures.model_validate(changed_whole)


def improved() -> Figures:
    """Return the figures after the change that the verdict of the others asks for."""
    before = figures(seed=2)
    assert before.job
    assert before.verdict
    samples = [
        sample.model_copy(update={"bytes": int(2.3 * sample.bytes), "in_flight": 32})
        for sample in before.job.samples
    ]
    waits = {"first_byte": 1.1, "body": 11.6, "order": 1.2, "queue": 0.1, "decode": 0.4}
    whole = {"bytes": int(2.3 * before.job.bytes), "records": int(2.3 * before.job.records)}
    settings = {"batch_size": 256, "lanes": 16, "max_concurrency": 32, "memory_budget": "1GiB"}
    return figures(
        seed=2,
        taken="2026-03-14T09:41:10+00:00",
        target=before.target.model_copy(update={"settings": settings}),
        job=before.job.model_copy(
            update={**whole, "samples": samples, "waits": {**waits, "client": 5.6}, "stalled": 0.6}
        ),
        verdict=before.verdict.model_copy(
            update={
                "bottleneck": "link",
                "summary": "The job reads 1.08 GB/s, and the link gives 1.17 GB/s.",
                "changes": [],
                "paste": "",
                "bytes_per_second": 1.08e9,
                "predicted_bytes_per_second": 1.08e9,
                "next_bottleneck": None,
            }
        ),
    )


def extreme(number: float) -> Figures:
    """Return figures all of whose numbers are one."""

    def changed(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: changed(part) for name, part in value.items()}
        if isinstance(value, list):
            return [changed(part) for part in value]
        if isinstance(value, bool):
            return value
        if isinstance(value, float):
            return number
        return int(number) if isinstance(value, int) else value

    whole = figures().model_dump(exclude={"version"})
    return Figures.model_validate(changed(whole))
