"""What a feeder holds while clients come and go, a thousand of each kind.

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
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import streamrec as sr
from bench import machine
from bench.markdown import table
from bench.services import STORE_KEYS, store
from bench.soaking.clients import KINDS
from bench.soaking.picture import draw

if TYPE_CHECKING:
    from collections.abc import Iterator

SHARDS, RECORDS, SIZE = 8, 500, 20_000
BUDGET = "32MiB"
ORDERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "shuffled": {"shuffle": True, "shuffle_window": "8MiB"},
}
POINTS = 50
"""How often the feeder is asked."""
QUANTITIES = ("megabytes", "descriptors", "tasks", "threads")
FIRST_PART = 0.1
"""Of the clients: what the feeder holds after them is compared with what it holds in the end."""
MOST_GROWTH = 1.25
"""Memory then may be so many times what it was: the allocator keeps some of what is freed."""


@dataclass
class AskedFeeder:
    """A running feeder."""

    process: subprocess.Popen[str]
    port: int

    def held(self) -> dict[str, Any]:
        """What it has once no client is there."""
        while (held := self._ask())["connections"]:
            pass
        return held

    def _ask(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return said(self.process)


@click.command()
@click.option("--output", type=click.Path(path_type=Path), help="Directory for the results.")
@click.option("--connects", default=1000, show_default=True, help="Clients of each kind.")
def main(*, output: Path | None, connects: int) -> None:
    """Let clients come and go, print a table, and write JSON, Markdown and a picture."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        write(root / "bucket")
        with store(root, latency=0.0, bandwidth=None) as served:
            options = {"endpoint_url": served.endpoint, **STORE_KEYS}
            soaks = {
                f"{order}, {kind}": soak(order, kind, options, connects)
                for order, kind in product(ORDERS, KINDS)
            }
    text = as_markdown(soaks)
    click.echo(text)
    if output is not None:
        keep(output, soaks, text, connects)
    sys.exit(not all(map(is_flat, soaks.values())))


def write(directory: Path) -> None:
    """Shards of plain records."""
    directory.mkdir()
    for shard in range(SHARDS):
        with sr.TFRecordWriter(str(directory / f"{shard}.tfrecord")) as writer:
            writer.write_many(bytes(SIZE) for _ in range(RECORDS))


def soak(order: str, kind: str, options: dict[str, Any], connects: int) -> list[dict[str, Any]]:
    """What a feeder of its own holds after ever more clients of a kind."""
    settings = {
        "source": "s3://bucket/*.tfrecord",
        "storage_options": options,
        "memory_budget": BUDGET,
        "batch_size": 16,
        "epochs": None,
        **ORDERS[order],
    }
    with feeder(settings) as asked:
        points = [{"clients": 0, **asked.held()}]
        for number in range(1, connects + 1):
            KINDS[kind](asked.port)
            if number % max(1, connects // POINTS) == 0:
                points.append({"clients": number, **asked.held()})
    return points


@contextlib.contextmanager
def feeder(settings: dict[str, Any]) -> Iterator[AskedFeeder]:
    """Serve a dataset in another process, which ends with the block."""
    command = [sys.executable, "-m", "bench.soaking.feeder", json.dumps(settings)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=machine.ROOT, text=True, **pipes) as process:  # type: ignore[call-overload]
        yield AskedFeeder(process, said(process)["port"])


def said(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The next line of a feeder's."""
    assert process.stdout is not None
    answer: dict[str, Any] = json.loads(process.stdout.readline())
    return answer


def early(points: list[dict[str, Any]]) -> dict[str, Any]:
    """The point behind the first part of the clients."""
    clients = FIRST_PART * points[-1]["clients"]
    return next(point for point in points if point["clients"] >= clients)


def is_flat(points: list[dict[str, Any]]) -> bool:
    """Whether the feeder holds in the end what it held after the first part of the clients.

    The most descriptors count: in the beginning connections to the store are open for the listing.
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
    """A row for each soak: before any client, after a tenth of them, and in the end."""
    [clients] = {points[-1]["clients"] for points in soaks.values()}
    after = f"after 0 / {round(FIRST_PART * clients):,} / {clients:,}"
    rows = []
    for name, points in soaks.items():
        three = points[0], early(points), points[-1]
        cells = (" / ".join(f"{point[one]:,.0f}" for point in three) for one in QUANTITIES)
        rows.append((name, *cells))
    return table((f"clients, {after}", *QUANTITIES), rows)


def keep(output: Path, soaks: dict[str, list[dict[str, Any]]], text: str, connects: int) -> None:
    """Write the results."""
    facts = {
        "benchmark": "soak",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine.describe(),
        "settings": {"connects": connects, "memory_budget": BUDGET, "orders": ORDERS},
        "soaks": soaks,
    }
    (output / "soak.json").write_text(json.dumps(facts, indent=2) + "\n")
    (output / "soak.md").write_text(text + "\n")
    draw(soaks, f"A feeder with a budget of {BUDGET}, and its clients", output / "soak.svg")


if __name__ == "__main__":
    main()
