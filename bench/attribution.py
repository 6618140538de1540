"""Measures what it costs to attribute each moment of a run to a stage.

Local shards are read, in one process, with the attribution and without it, in turns. The measure is
the CPU time of all threads: it is steadier than the time by the clock on a machine that others use.
Beside it stands the arithmetic: the changes of stage in a run, times the cost of one.
"""

from __future__ import annotations

import tempfile
import time
from functools import partial
from pathlib import Path
from random import Random
from statistics import median, quantiles
from typing import Any

import numpy as np

import streamrec as sr
from bench.cases import say
from bench.datasets import write_shards
from bench.harness import Column, Report, Run, benchmark, run_async, table_of
from streamrec.config import DatasetSettings, validate
from streamrec.flow.channel import EndOfStream
from streamrec.flow.stages import WaitClock
from streamrec.formats.examples.descriptions import describe
from streamrec.pipeline.dataset import Dataset
from streamrec.pipeline.terms.memory_needs import Measures

SHARDS = 16
FEATURES = describe({"id": sr.FixedLenFeature((), "int64"), "body": sr.FixedLenFeature((), bytes)})
CASES: dict[str, tuple[int, int, dict[str, Any]]] = {
    "raw records of 100 kB, batches of 32": (320, 100_000, {"batch_size": 32}),
    "Examples of 500 B, batches of 256": (8_000, 500, {"batch_size": 256, "features": FEATURES}),
    "Examples of 500 B, batches of 8": (2_000, 500, {"batch_size": 8, "features": FEATURES}),
}
"""By name: the records of a shard, the bytes of a record's body, and settings."""
COLUMNS = (
    Column("case", "name", str),
    Column("CPU time with / without", lambda row: row["cpu_ratio"]["median"], "{:.3f}"),
    Column(
        "first to third quarter",
        lambda row: row["cpu_ratio"],
        "{0[first quarter]:.3f} to {0[third quarter]:.3f}",
    ),
    Column("changes a second", "changes_per_second", "{:,.0f}"),
    Column(
        "their part of the CPU time", lambda row: 100 * row["part_of_cpu_by_arithmetic"], "{:.2f} %"
    ),
)


class Off(WaitClock):
    """A clock that charges nothing."""

    def produce(self, stage: str) -> float:  # noqa: ARG002 - of the clock
        return 0.0

    def consume(self, stage: str | None) -> None: ...

    def went_over(self, stage: str, moment: float) -> None: ...

    def enter(self, stage: str) -> bool:  # noqa: ARG002 - of the clock
        return False


class Counting(WaitClock):
    """A clock that counts the changes of stage."""

    changes = 0

    def _charge(self, until: float | None = None) -> None:
        self.changes += 1
        super()._charge(until)


@benchmark("attribution", repeat=15)
def main(run: Run) -> Report:
    one, results = cost_of_a_change(), {}
    for name, (records, size, settings) in CASES.items():
        say(name)
        body = np.random.default_rng(0).bytes(size)
        record = sr.encode_example({"id": 0, "body": body}) if "features" in settings else body
        with tempfile.TemporaryDirectory() as directory:
            source = write_shards(Path(directory), SHARDS, [record] * records)
            values = {"source": source, "memory_budget": "256MiB", **settings}
            results[name] = run_async(
                measure_case(validate(DatasetSettings, values), run.repeat, one)
            )
    rows = [{"name": name, **found} for name, found in results.items()]
    return Report(table_of(COLUMNS, rows), {"rounds": run.repeat, "cases": results})


async def measure_case(settings: DatasetSettings, rounds: int, one: float) -> dict[str, Any]:
    """Read with the attribution and without it, in rounds, each time in another order."""
    counting = Counting()
    wall, cpu = await read(settings, counting)
    times: dict[str, list[float]] = {"with": [], "without": []}
    kinds = {"with": WaitClock, "without": Off}
    for number in range(rounds):
        for kind in Random(number).sample(list(kinds), 2):
            times[kind].append((await read(settings, kinds[kind]()))[1])
    ratios = [a / b for a, b in zip(times["with"], times["without"], strict=True)]
    first, _, third = quantiles(ratios, n=4)
    return {
        "changes": counting.changes,
        "changes_per_second": counting.changes / wall,
        "seconds_per_change": one,
        "part_of_cpu_by_arithmetic": counting.changes * one / cpu,
        "cpu_ratio": {"median": median(ratios), "first quarter": first, "third quarter": third},
        "cpu_seconds": times,
    }


async def read(settings: DatasetSettings, waits: WaitClock) -> tuple[float, float]:
    """Read an epoch; return the seconds, and the CPU seconds of all threads."""
    dataset = await Dataset.open(settings)
    measures = Measures(waits=waits)
    began, cpu = time.perf_counter(), time.process_time()
    try:
        async with dataset.run(
            rank=0, world_size=1, batch_size=settings.batch_size, position=None, measures=measures
        ) as run:
            while True:
                await run.receive()
    except EndOfStream:
        return time.perf_counter() - began, time.process_time() - cpu
    finally:
        await dataset.aclose()


def cost_of_a_change(times: int = 100_000) -> float:
    """Return the CPU seconds that a change of stage takes, the least of some attempts."""
    waits = WaitClock()
    change = partial(waits.produce, "scan")
    costs = []
    for _ in range(5):
        began = time.process_time()
        for _ in range(times):
            change()
        costs.append((time.process_time() - began) / times)
    return min(costs)


if __name__ == "__main__":
    main()
