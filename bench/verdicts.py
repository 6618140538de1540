"""Plants bottlenecks in the loopback store, a feeder or the trainer, and follows the verdicts.

Each case is measured by what ``streamrec bench`` runs. Then what its verdict says is done, and the
job is measured again. All rates are low: so what is planted is what limits, and not the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import time
import tomllib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import streamrec as sr
from bench.cases import say
from bench.harness import Column, Report, Run, benchmark, run_async, table_of
from bench.services import STORE_KEYS, daemon, store
from streamrec.config import DatasetSettings
from streamrec.measure.benchmark import Benchmark
from streamrec.measure.budget import Budget, read_prices
from streamrec.measure.figures import Figures, Job, Limits, Target, Verdict, steady_rate
from streamrec.measure.job import run_job

SECONDS = 6.0
"""Seconds of a job after the change, and of a feeder's."""
WHOLE = 90.0
"""The most seconds of a job that is read to its end."""
LOOK = 15.0
"""Seconds of the first measurement of a case; of 10, a slow link leaves too few to judge."""
PICTURE, BLOCK = 2048, 64
"""Pixels of a side of a picture, and of its parts of one colour."""
RANKS = 2
"""Clients of the feeder."""
NO_SETTING = "a change outside streamrec"
SMALL: Mapping[str, Any] = {"memory_budget": "16MiB", "lanes": 8}
"""Settings with which few and small ranges are under way, as with a store that is far faster."""


def busy(batch: Any) -> Any:
    """Work on a batch for a quarter of a second of a core, with the interpreter's lock."""
    until = time.thread_time() + 0.25
    while time.thread_time() < until:
        pass
    return dict(batch)


def slow(batch: Any) -> Any:
    """Wait for half a second, as for another service."""
    time.sleep(0.5)
    return dict(batch)


def quick(batch: Any) -> Any:
    """Do nothing."""
    return dict(batch)


@dataclass(frozen=True)
class Planted:
    """A planted bottleneck.

    Args:
        name: The name that a verdict should give.
        store: The caps of the store: options of ``python -m streamrec.devstore``.
        step: Seconds of the trainer's step, which is the next bottleneck; ``None``: no step.
        pictures: Whether a record is a picture, which takes long to decode for its size.
        instead: What is changed where the advice is no setting of streamrec.
    """

    name: str
    store: Mapping[str, float] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    step: float | None = 0.15
    shards: int = 100
    records: int = 100
    record: int = 20_000
    batch: int = 50
    pictures: bool = False
    instead: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """True if a job is read to its end, as the listing is a part of it."""
        return self.name == "listing"


NEAR = {"latency": 0.02}
IMAGES = {"image": {"kind": "image", "resize": [32, 32]}}
FED: Mapping[str, Any] = {
    **SMALL,
    "transform": "bench.verdicts:busy",
    "epochs": 1000,
    "steps_per_epoch": 50,
    "remainder": "drop",
}
CASES = (
    Planted("max_concurrency", {"latency": 0.3}, {**SMALL, "max_concurrency": 2}),
    Planted(  # a budget that holds one batch
        "memory budget",
        NEAR,
        {"memory_budget": "8MiB"},
        step=None,
        shards=24,
        records=160,
        record=100_000,
        batch=64,
    ),
    Planted("link", {**NEAR, "link": 2.5e6}, SMALL, shards=20),
    Planted("throttling", {**NEAR, "request-rate": 8}, SMALL, shards=25, records=400),
    Planted(
        "listing", {**NEAR, "page-latency": 12}, {"memory_budget": "64MiB"}, shards=400, records=5
    ),
    Planted(
        "decoding",
        NEAR,
        {**SMALL, "batch_size": 8, "features": IMAGES, "max_bytes": "256MiB"},
        step=0.05,
        shards=24,
        records=16,
        pictures=True,
    ),
    Planted(
        "transform",
        NEAR,
        {**SMALL, "transform": "bench.verdicts:slow"},
        instead={"settings": {**SMALL, "transform": "bench.verdicts:quick"}},
    ),
    Planted("trainer", {**NEAR, "link": 5e6}, SMALL, step=1.0, instead={"step": None}),
    Planted("feeder", NEAR, FED, step=0.33),
)


@dataclass(frozen=True)
class Outcome:
    """A verdict, and what came of following it."""

    case: Planted
    verdict: Verdict
    measured: float
    """Bytes a second afterwards."""

    def facts(self) -> dict[str, Any]:
        """Return plain values."""
        verdict, predicted = self.verdict, self.verdict.predicted_bytes_per_second
        return {
            "planted": self.case.name,
            "named": verdict.bottleneck,
            "next": verdict.next_bottleneck,
            "before": verdict.bytes_per_second,
            "predicted": predicted,
            "measured": self.measured,
            "error": predicted and self.measured / predicted - 1,
            "paste": verdict.paste,
            "summary": verdict.summary,
        }


# -- one case --------------------------------------------------------------------------------------


async def measured(case: Planted) -> Outcome:
    """Measure a case, do what its verdict says, and measure it again."""
    if case.name == "feeder":
        return await _measure_with_feeder(case)
    async with serve_case(case) as source:
        settings = settings_of(case, source)
        before, verdict = _verdict_of(await first_look(case, settings))
        changed = case if verdict.paste else replace(case, **case.instead)
        after = _follow(settings_of(changed, source), verdict)
        if "cache" in verdict.paste:  # the first job fills it
            await run_job(after, _budget(), seconds=WHOLE, step_seconds=None)
        seconds = WHOLE if case.is_whole else SECONDS
        job = await run_job(after, _budget(), seconds=seconds, step_seconds=changed.step)
        record = before.bytes / before.records if before.records else case.record
        return Outcome(case, verdict, _rate(case, job, record))


async def first_look(case: Planted, settings: DatasetSettings, seconds: float = LOOK) -> Figures:
    """Measure a case as ``streamrec bench`` does."""
    target = Target(kind="store", urls=settings.urls)
    benchmark = _benchmark(case, target, WHOLE + seconds if case.is_whole else seconds)
    await benchmark.measure_dataset(settings)
    return benchmark.figures()


def _benchmark(case: Planted, target: Target, seconds: float) -> Benchmark:
    return Benchmark(target, _budget(seconds), read_prices(), _Nobody(), step_seconds=case.step)


class _Nobody:
    """A watcher who does nothing."""

    def phase(self, name: str) -> None:
        """Do nothing."""

    def note(self, text: str) -> None:
        """Do nothing."""


def _verdict_of(figures: Figures) -> tuple[Job, Verdict]:
    assert figures.job is not None
    assert figures.verdict is not None
    return figures.job, figures.verdict


def _rate(case: Planted, job: Job, record: float) -> float:
    """Return a job's bytes a second, by its records: batches of a cache count no bytes."""
    if case.is_whole:
        return job.records * record / job.seconds
    samples = [
        sample.model_copy(update={"bytes": int(sample.records * record)}) for sample in job.samples
    ]
    size = int(job.records * record)
    return steady_rate(job.model_copy(update={"samples": samples, "bytes": size}))


def _follow(settings: DatasetSettings, verdict: Verdict) -> DatasetSettings:
    plain = {**settings.model_dump(exclude_unset=True), **tomllib.loads(verdict.paste)}
    return DatasetSettings.model_validate(plain)


async def _measure_with_feeder(case: Planted) -> Outcome:
    async with serve_case(case) as source:
        _, verdict = _verdict_of(await of_feeder(case, source))
        server = tomllib.loads(verdict.paste).get("server", {})
        job, _ = _verdict_of(await of_feeder(case, source, **server))
        return Outcome(case, verdict, steady_rate(job))


async def of_feeder(
    case: Planted,
    source: Mapping[str, Any],
    workers: int | str = 1,
    seconds: float = SECONDS,
    **server: Any,
) -> Figures:
    """Read all ranks of a feeder's dataset at a time; return the figures of the first."""
    server["workers"] = workers
    dataset = settings_of(case, source).model_dump(exclude_unset=True, exclude_none=True)
    with daemon({"train": dataset}, **server) as running:
        address = f"{running.listen}/train"
        target = Target(kind="feeder", urls=[address])
        ranks = [_benchmark(case, target, seconds) for _ in range(RANKS)]
        await asyncio.gather(
            *(
                one.measure_feeder(address, rank=rank, world_size=RANKS)
                for rank, one in enumerate(ranks)
            )
        )
        return ranks[0].figures()


def _budget(seconds: float = 1e6) -> Budget:
    return Budget(Limits(seconds=seconds, bytes=1 << 50, requests=1 << 30))


# -- what is served --------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def serve_case(case: Planted) -> AsyncIterator[dict[str, Any]]:
    """Run the store of a case; yield the source and its options."""
    with (
        tempfile.TemporaryDirectory() as directory,
        patch.dict(os.environ, XDG_CACHE_HOME=directory),  # a cache of its own
    ):
        template = Path(directory, "template")
        write_template(template, case)
        recipe = {"templates": [str(template)], "objects": case.shards}
        recipes = {"bucket": recipe}
        with store(latency=0.0, bandwidth=None, recipes=recipes, caps=case.store) as served:
            options = {"endpoint_url": served.endpoint, **STORE_KEYS}
            yield {"source": "s3://bucket/shard-*", "storage_options": options}


def settings_of(case: Planted, source: Mapping[str, Any]) -> DatasetSettings:
    plain = {**source, "batch_size": case.batch, **case.settings}
    return DatasetSettings.model_validate(plain)


def write_template(path: Path, case: Planted) -> None:
    random = np.random.default_rng(0)
    with sr.TFRecordWriter(str(path)) as writer:
        for _ in range(case.records):
            writer.write(
                {"image": _picture(random)} if case.pictures else random.bytes(case.record)
            )


def _picture(random: np.random.Generator) -> bytes:
    """Return a PNG of few colours, which takes long to decode for its size."""
    from PIL import Image

    side = PICTURE // BLOCK
    colours = random.integers(0, 255, (side, side, 3), np.uint8)
    file = BytesIO()
    Image.fromarray(np.kron(colours, np.ones((BLOCK, BLOCK, 1), np.uint8))).save(file, "PNG")
    return file.getvalue()


# -- the command -----------------------------------------------------------------------------------

COLUMNS = (
    Column("planted", "planted", str),
    Column("named", lambda found: found["named"] or "nothing", str),
    Column("before, MB/s", lambda found: found["before"] / 1e6, "{:.2f}"),
    Column("done", lambda found: "; ".join(found["paste"].splitlines()) or NO_SETTING, str),
    Column("predicted", lambda found: found["predicted"] and found["predicted"] / 1e6, "{:.2f}"),
    Column("measured", lambda found: found["measured"] / 1e6, "{:.2f}"),
    Column("off by", "error", "{:+.0%}"),
)


@benchmark("verdicts", only=True)
def main(run: Run) -> Report:
    outcomes = []
    for case in CASES:
        if run.selects(case.name):
            outcomes.append(run_async(measured(case)))
            say(f"{case.name}: {outcomes[-1].verdict.summary}")
    return Report(as_markdown(outcomes), {"verdicts": [outcome.facts() for outcome in outcomes]})


def as_markdown(outcomes: Sequence[Outcome]) -> str:
    """Return a table of what was planted, named, predicted and measured."""
    rows = [outcome.facts() for outcome in outcomes]
    return "# Verdicts on planted bottlenecks\n\n" + table_of(COLUMNS, rows)


if __name__ == "__main__":
    main()
