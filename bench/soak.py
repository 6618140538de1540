"""Measures what a feeder holds while clients come and go, a thousand of each kind.

::

    python -m bench.soak --output bench/results

A feeder in a process of its own reads from a loopback store. Clients connect one after the other
and leave in mid-run, are killed there, or leave before the first batch; the stream is plain or
shuffled. Now and then, when no client is there, the feeder says how much memory, and how many
descriptors, tasks and threads it has.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import streamrec as sr
from bench.console import output_option
from bench.machine import ROOT
from bench.markdown import table
from bench.progress import say
from bench.results import facts, write
from bench.services import STORE_KEYS, store
from bench.soaking.chart import draw
from bench.soaking.clients import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator

SHARDS, RECORDS, SIZE = 8, 500, 20_000
BUDGET = "32MiB"
ORDERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "shuffled": {"shuffle": True, "shuffle_window": "8MiB"},
}
POINTS = 50
"""Number of times that the feeder reports what it holds."""
QUANTITIES = ("megabytes", "descriptors", "tasks", "threads")
FIRST_PART = 0.1
"""Part of the clients after which the feeder should hold no more than in the end."""
MOST_GROWTH = 1.25
"""Most times as much memory as after that part: the allocator keeps some of what is freed."""


@dataclass
class FeederProcess:
    """A feeder in another process, which reports what it holds."""

    process: subprocess.Popen[str]
    port: int

    def report(self) -> dict[str, Any]:
        """Wait until no client is connected, and return what the feeder holds then."""
        while (report := self._ask())["connections"]:
            pass
        return report

    def _ask(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return read_line(self.process)


@click.command()
@output_option
@click.option("--connects", default=1000, show_default=True, help="Number of clients of each kind.")
def main(*, output: Path | None, connects: int) -> None:
    """Let clients come and go, print a table, and write JSON, Markdown and a chart."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        write_shards(root / "bucket")
        with store(root, latency=0.0, bandwidth=None) as served:
            options = {"endpoint_url": served.endpoint, **STORE_KEYS}
            soaks = {}
            for order, kind in product(ORDERS, KINDS):
                say(f"{connects:,} clients: {order}, {kind}")
                soaks[f"{order}, {kind}"] = soak(order, kind, options, connects)
    text = as_markdown(soaks)
    click.echo(text)
    if output is not None:
        settings = {"connects": connects, "memory_budget": BUDGET, "orders": ORDERS}
        title = f"A feeder with a budget of {BUDGET}, and its clients"
        found = facts("soak", settings=settings, soaks=soaks)
        write(output, "soak", found, text, partial(draw, soaks, title))
    sys.exit(not all(map(is_flat, soaks.values())))


def write_shards(directory: Path) -> None:
    """Write shards of plain records."""
    directory.mkdir()
    for shard in range(SHARDS):
        with sr.TFRecordWriter(str(directory / f"{shard}.tfrecord")) as writer:
            writer.write_many(bytes(SIZE) for _ in range(RECORDS))


def soak(order: str, kind: str, options: dict[str, Any], connects: int) -> list[dict[str, Any]]:
    """Return what a new feeder holds after more and more clients of a kind."""
    settings = {
        "source": "s3://bucket/*.tfrecord",
        "storage_options": options,
        "memory_budget": BUDGET,
        "batch_size": 16,
        "epochs": None,
        **ORDERS[order],
    }
    with feeder(settings) as process:
        points = [{"clients": 0, **process.report()}]
        for number in range(1, connects + 1):
            KINDS[kind](process.port)
            if number % max(1, connects // POINTS) == 0:
                points.append({"clients": number, **process.report()})
    return points


@contextlib.contextmanager
def feeder(settings: dict[str, Any]) -> Iterator[FeederProcess]:
    """Serve a dataset in another process, which ends with the ``with`` block."""
    command = [sys.executable, "-m", "bench.soaking.feeder", json.dumps(settings)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, text=True, **pipes) as process:  # type: ignore[call-overload]
        yield FeederProcess(process, read_line(process)["port"])


def read_line(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Read the next line that the feeder prints."""
    assert process.stdout is not None
    answer: dict[str, Any] = json.loads(process.stdout.readline())
    return answer


def early(points: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the point after the first part of the clients."""
    clients = FIRST_PART * points[-1]["clients"]
    return next(point for point in points if point["clients"] >= clients)


def is_flat(points: list[dict[str, Any]]) -> bool:
    """Return whether the feeder holds no more in the end than after the first part of the clients.

    Of descriptors the most count: in the beginning the listing keeps connections to the store open.
    """
    then, now = early(points), points[-1]
    first = [point["descriptors"] for point in points if point["clients"] <= then["clients"]]
    most = {
        "megabytes": MOST_GROWTH * then["megabytes"],
        "descriptors": max(first),
        "tasks": then["tasks"],
        "threads": then["threads"],
    }
    return all(now[name] <= limit for name, limit in most.items())


def as_markdown(soaks: dict[str, list[dict[str, Any]]]) -> str:
    """Return a table of what was held at first, after a tenth of the clients, and in the end."""
    [clients] = {points[-1]["clients"] for points in soaks.values()}
    after = f"after 0 / {round(FIRST_PART * clients):,} / {clients:,}"
    rows = []
    for name, points in soaks.items():
        three = points[0], early(points), points[-1]
        cells = (" / ".join(f"{point[one]:,.0f}" for point in three) for one in QUANTITIES)
        rows.append((name, *cells))
    return table((f"clients, {after}", *QUANTITIES), rows)


if __name__ == "__main__":
    main()
