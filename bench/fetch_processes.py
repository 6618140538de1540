"""Measures a stream over TLS with fetch processes: its rate, and the CPU time of each part.

::

    python -m bench.fetch_processes --output bench/results

nginx serves shards of records of 110 KB on loopback, and ``async for`` reads them. The figures are
of all that comes after the first epochs, so that no start is among them. With more cores than parts
that work, the rate follows from the CPU seconds a GB of the busiest part.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import click

from bench.cases import say
from bench.datasets import write_shards
from bench.harness import Column, Report, Run, benchmark, table_of
from bench.machine import title
from bench.services import nginx, self_signed

SHARDS, RECORDS, RECORD_BYTES, BATCH = 8, 600, 110_000, 64
WARM = 2
"""Epochs before those that are measured: the processes start in the first one."""
PROGRAM = f"""
import asyncio, glob, time
import streamrec as sr

def cpu_of(pid):
    return time.clock_gettime(~pid << 3 | 2)

def processes():
    paths = glob.glob("/proc/self/task/*/children")
    return [int(pid) for path in paths for pid in open(path).read().split()]

def cpu():
    return time.process_time(), sum(map(cpu_of, processes()))

async def main():
    features = {{"x": sr.FixedLenFeature((), bytes), "y": sr.FixedLenFeature((), "int64")}}
    async with sr.open(features=features, batch_size={BATCH}, **settings) as stream:
        nbytes = 0
        async for batch in stream:
            if stream.epoch == {WARM} and not nbytes:
                began, before = time.monotonic(), cpu()
            if stream.epoch >= {WARM}:
                nbytes += batch["x"].values.nbytes
        seconds, after = time.monotonic() - began, cpu()
    orderer, fetch = (b - a for a, b in zip(before, after))
    print(nbytes, seconds, orderer, fetch)

asyncio.run(main())
"""
"""Reads what ``settings`` says, which :func:`measure` puts before it. The clock of a child has the
number that clock_getcpuclockid(3) gives: threads that have ended count, too."""

COLUMNS = (
    Column("fetch processes", "fetch_processes", str),
    Column("MB/s", "megabytes_per_second"),
    Column("ratio", "ratio"),
    Column("CPU s/GB, orderer", "orderer"),
    Column("CPU s/GB, fetch processes", "fetch"),
)


@benchmark("fetch_processes", repeat=3)
@click.option("--gigabytes", default=4.0, show_default=True, help="Bytes to read in a measurement.")
@click.option("--plain", is_flag=True, help="Read over HTTP without TLS.")
@click.option("--most", default=2, show_default=True, help="Most fetch processes.")
def main(run: Run, gigabytes: float, plain: bool, most: int) -> Report:
    epochs = WARM + max(1, round(gigabytes * 1e9 / (SHARDS * RECORDS * RECORD_BYTES)))
    numbers = range(most + 1)
    measured: dict[int, list[dict[str, float]]] = {number: [] for number in numbers}
    with tempfile.TemporaryDirectory() as directory, self_signed() as certificate:
        if not plain and certificate is None:
            raise click.UsageError("There is no openssl to make a certificate; add --plain.")
        root = Path(directory)
        record = {"x": os.urandom(RECORD_BYTES), "y": 1}
        write_shards(root / "bucket", SHARDS, [record] * RECORDS)
        names = sorted(path.name for path in (root / "bucket").iterdir())
        with nginx(root, None if plain else certificate) as (endpoint, _):
            urls = [f"{endpoint}/bucket/{name}" for name in names]
            environment = {} if certificate is None else certificate.trust
            for count in range(run.repeat):
                say(f"round {count + 1} of {run.repeat}")
                for number in numbers:
                    settings = {"source": urls, "epochs": epochs, "fetch_processes": number}
                    measured[number].append(measure(settings, environment))
    rows = rows_of(measured)
    text = f"{title()}\n\n{table_of(COLUMNS, rows)}"
    facts = {"rounds": run.repeat, "gigabytes": gigabytes, "tls": not plain}
    return Report(text, {"settings": facts, "rows": rows})


def measure(settings: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, float]:
    """Return the rate and the CPU seconds a GB of a stream with these settings."""
    done = subprocess.run(
        [sys.executable, "-c", f"settings = {dict(settings)!r}\n{PROGRAM}"],
        stdout=subprocess.PIPE,
        env={**os.environ, **environment},
        check=True,
    )
    nbytes, seconds, orderer, fetch = map(float, done.stdout.split())
    gigabytes = nbytes / 1e9
    return {
        "megabytes_per_second": nbytes / 1e6 / seconds,
        "orderer": orderer / gigabytes,
        "fetch": fetch / gigabytes,
    }


def rows_of(measured: Mapping[int, Sequence[Mapping[str, float]]]) -> list[dict[str, Any]]:
    """Return the medians by number of processes, and the ratios of their rates to that of none."""
    rate = "megabytes_per_second"
    base = median(one[rate] for one in measured[0])
    rows = []
    for number, figures in measured.items():
        medians = {name: median(one[name] for one in figures) for name in figures[0]}
        rows.append({"fetch_processes": number, **medians, "ratio": medians[rate] / base})
    return rows


if __name__ == "__main__":
    main()
