"""Measures how long a program takes from its start to its first batch.

::

    python -m bench.start --output bench/results

Each measurement is a fresh process that imports streamrec, opens four small shards and takes one
batch: from files, and from stores that wait before each answer. Another opens 100,000 shards by
their numbers, with an index. The CPU time is that of all its
threads and of its engine process until the batch is there. Both times stand beside those of a
process that imports NumPy and aiohttp, which are measured in turn with all others.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from bench.cases import say
from bench.datasets import write_shards
from bench.harness import Column, Report, Run, benchmark, table_of
from bench.machine import title
from bench.services import STORE_KEYS, store
from streamrec.datasets.verify import check, index_of
from streamrec.formats.shards.index import Index
from streamrec.formats.shards.index_names import index_url

SHARDS, RECORDS, BATCH = 4, 64, 8
MANY = 100_000
"""Shards of a large dataset, of which an index tells what a listing would."""
MOST_LINKS = 10_000
"""Names of one file; file systems allow 32,000 or more."""
LATENCIES = (0.0, 0.05)
"""Seconds before each answer of a store."""
ENGINES = (None, "thread", "process")
BASE = "import numpy, aiohttp"
MARKS = """
import contextlib, glob, sys, time

def cpu():
    engines = []
    for path in glob.glob("/proc/self/task/*/children"):
        with contextlib.suppress(FileNotFoundError):
            # Threads end meanwhile.
            engines += [int(pid) for pid in open(path).read().split()]
    return time.process_time() + sum(time.clock_gettime(~pid << 3 | 2) for pid in engines)

def mark(name):
    print(name, time.monotonic(), cpu(), flush=True)
"""
"""Prints the clock and the CPU time of a process and its children, in seconds. The clock of a child
has the number that clock_getcpuclockid(3) gives: threads that have ended count, too."""
BASE_PROGRAM = f"{MARKS}\n{BASE}\nmark('first batch')"
PROGRAM = f"""{MARKS}
import streamrec as sr

mark("import")
features = {{"x": sr.FixedLenFeature((64,), "float32"), "y": sr.FixedLenFeature((), "int64")}}
with sr.open(features=features, batch_size={BATCH}, **settings) as stream:
    mark("open")
    next(iter(stream))
    mark("first batch")
"""
"""Reads what ``settings`` says, which :func:`by_engine` puts before it."""


class Program(NamedTuple):
    """A program to measure, and what it reads."""

    store: str
    engine: str
    program: str

    @property
    def name(self) -> str:
        """The store and the engine."""
        return f"{self.store}, {self.engine}" if self.engine else self.store


COLUMNS = (
    Column("program", "case", str),
    Column("import s", "import"),
    Column("open s", "open"),
    Column("first batch s", "first batch"),
    Column("CPU s", "first batch, CPU"),
    Column("CPU ratio", "ratio"),
)


@benchmark("start", repeat=15)
def main(run: Run) -> Report:
    with contextlib.ExitStack() as kept:
        cases = list(cases_below(Path(kept.enter_context(tempfile.TemporaryDirectory())), kept))
        measured: dict[str, list[dict[str, float]]] = {case.name: [] for case in cases}
        for count in range(run.repeat):
            say(f"round {count + 1} of {run.repeat}")
            for case in cases:
                measured[case.name].append(measure(case.program))
    rows = [row(case, measured[case.name], measured[BASE]) for case in cases]
    text = f"{title()}\n\n{table_of(COLUMNS, rows)}"
    return Report(text, {"settings": {"rounds": run.repeat}, "rows": rows})


def cases_below(root: Path, kept: contextlib.ExitStack) -> Iterator[Program]:
    """Write the shards, start the stores, and yield the cases."""
    records = [{"x": [float(record)] * 64, "y": record} for record in range(RECORDS)]
    source = write_shards(root / "stored" / "bucket", SHARDS, records)
    yield Program(BASE, "", BASE_PROGRAM)
    yield from by_engine("files", source, {})
    say(f"making {MANY:,} shards")
    yield from by_engine(f"{MANY:,} files", write_many(root / "many"), {}, index=True)
    for latency in LATENCIES:
        served = kept.enter_context(store(root / "stored", latency=latency, bandwidth=None))
        place = f"{1000 * latency:.0f} ms"
        s3 = {"endpoint_url": served.endpoint, **STORE_KEYS}
        yield from by_engine(f"S3, {place}", "s3://bucket/*.tfrecord", s3)
        gcs = {"endpoint_url": served.endpoint, "token": "anon"}
        yield from by_engine(f"GCS, {place}", "gs://bucket/*.tfrecord", gcs)


def write_many(directory: Path) -> str:
    """Write many small shards with their index, and return the range of their names."""
    records = [{"x": [float(record)] * 64, "y": record} for record in range(BATCH)]
    write_shards(directory, MANY // MOST_LINKS, records)
    (entry,) = index_of(asyncio.run(check([f"{directory}/00000.tfrecord"]))).entries
    names = [f"many-{shard:06}.tfrecord" for shard in range(MANY)]
    for shard, name in enumerate(names):
        os.link(directory / f"{shard // MOST_LINKS:05}.tfrecord", directory / name)
    index = Index(tuple(replace(entry, name=name) for name in names))
    Path(index_url([f"{directory}/{name}" for name in names])).write_bytes(index.encode())
    return f"{directory}/many-{{000000..{MANY - 1:06}}}.tfrecord"


def by_engine(
    place: str, source: str, options: Mapping[str, str], **more: object
) -> Iterator[Program]:
    """Yield a case for each engine."""
    for engine in ENGINES:
        settings = {"source": source, "engine": engine, "storage_options": dict(options), **more}
        yield Program(place, engine or "default", f"settings = {settings!r}\n{PROGRAM}")


def measure(program: str) -> dict[str, float]:
    """Return the seconds since its start and the CPU seconds of a program, at each of its marks."""
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=True)
    marks: dict[str, float] = {}
    for line in done.stdout.decode().splitlines():
        name, clock, cpu = line.rsplit(" ", 2)
        marks |= {name: float(clock) - began, f"{name}, CPU": float(cpu)}
    return marks


def row(case: Program, measured: list[dict[str, float]], base: list[dict[str, float]]) -> Any:
    """Return the medians of a case, and its ratio of CPU time to the base."""
    medians = {name: median(one[name] for one in measured) for name in measured[0]}
    cpu = "first batch, CPU"
    ratio = medians[cpu] / median(one[cpu] for one in base)
    return {
        "case": case.name,
        "store": case.store,
        "engine": case.engine,
        **medians,
        "ratio": ratio,
    }


if __name__ == "__main__":
    main()
