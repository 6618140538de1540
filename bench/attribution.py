"""Measures what it costs to attribute each moment of a run to a stage.

::

    python -m bench.attribution --output bench/results

Local shards are read, in one process, with the attribution and without it, in turns. The measure is
the CPU time of all threads: it is steadier than the time by the clock on a machine that others use.
Beside it stands the arithmetic: the changes of stage in a run, times the cost of one.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from contextlib import contextmanager
from functools import partial
from random import Random
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from rich.console import Console

import streamrec as sr
from bench.console import output_option, repeat_option
from bench.markdown import table
from bench.results import facts, write
from streamrec.config import DatasetSettings, validate
from streamrec.flow.bridge import new_event_loop
from streamrec.flow.channel import EndOfStream
from streamrec.flow.stages import WaitClock
from streamrec.formats.examples.descriptions import describe
from streamrec.pipeline.dataset import Dataset
from streamrec.pipeline.terms.memory_needs import Measures

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SHARDS = 16
FEATURES = describe({"id": sr.FixedLenFeature((), "int64"), "body": sr.FixedLenFeature((), bytes)})
CASES: dict[str, tuple[int, int, dict[str, Any]]] = {
    "raw records of 100 kB, batches of 32": (640, 100_000, {"batch_size": 32}),
    "Examples of 500 B, batches of 256": (16_000, 500, {"batch_size": 256, "features": FEATURES}),
    "Examples of 500 B, batches of 8": (4_000, 500, {"batch_size": 8, "features": FEATURES}),
}
"""By name: the records of a shard, the bytes of a record's body, and settings."""


class Off(WaitClock):
    """A clock that charges nothing."""

    def produce(self, stage: str) -> float:  # noqa: ARG002 - of the clock
        """Do nothing."""
        return 0.0

    def consume(self, stage: str | None) -> None:
        """Do nothing."""

    def went_over(self, stage: str, moment: float) -> None:
        """Do nothing."""

    def enter(self, stage: str) -> bool:  # noqa: ARG002 - of the clock
        """Do nothing."""
        return False


class Counting(WaitClock):
    """A clock that counts the changes of stage."""

    changes = 0

    def _charge(self, until: float | None = None) -> None:
        self.changes += 1
        super()._charge(until)


@click.command()
@repeat_option(15, "Number of rounds; each reads once with the attribution, and once without.")
@output_option
def main(*, repeat: int, output: Path | None) -> None:
    """Measure, print a table, and write JSON and Markdown."""
    console = Console(stderr=True)
    with console.status("") as status, asyncio.Runner(loop_factory=new_event_loop) as runner:
        one = cost_of_a_change()
        results = {}
        for name, (records, size, settings) in CASES.items():
            status.update(name)
            with shards(records, size, settings.get("features")) as source:
                measure = measured(validated(source, settings), repeat, one)
                results[name] = runner.run(measure)
    text = as_markdown(results)
    click.echo(text)
    if output is not None:
        write(output, "attribution", facts("attribution", rounds=repeat, cases=results), text)


@contextmanager
def shards(records: int, size: int, features: Any) -> Iterator[str]:
    """Write shards of like records; yield the glob that finds them."""
    body = np.random.default_rng(0).bytes(size)
    record = sr.encode_example({"id": 0, "body": body}) if features else body
    with tempfile.TemporaryDirectory() as directory:
        for shard in range(SHARDS):
            with sr.TFRecordWriter(f"{directory}/{shard:03}.tfrecord") as writer:
                writer.write_many([record] * records)
        yield f"{directory}/*.tfrecord"


def validated(source: str, settings: dict[str, Any]) -> DatasetSettings:
    """Return the settings of a case."""
    return validate(DatasetSettings, {"source": source, "memory_budget": "256MiB", **settings})


async def measured(settings: DatasetSettings, rounds: int, one: float) -> dict[str, Any]:
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


def as_markdown(results: dict[str, dict[str, Any]]) -> str:
    """Return a table with a row for each case."""
    head = (
        "case",
        "CPU time with / without",
        "first to third quarter",
        "changes a second",
        "their part of the CPU time",
    )
    rows = []
    for name, found in results.items():
        ratio = found["cpu_ratio"]
        row = (
            name,
            f"{ratio['median']:.3f}",
            f"{ratio['first quarter']:.3f} to {ratio['third quarter']:.3f}",
            f"{found['changes_per_second']:,.0f}",
            f"{100 * found['part_of_cpu_by_arithmetic']:.2f} %",
        )
        rows.append(row)
    return table(head, rows)


if __name__ == "__main__":
    main()
