"""Measures what a feeder holds while clients come and go, a thousand of each kind.

A feeder in a process of its own reads from a loopback store. Clients connect one after the other
and leave in mid-run, are killed there, or leave before the first batch; the stream is plain or
shuffled. Now and then, when no client is there, the feeder says how much memory, and how many
descriptors, tasks and threads it has.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import tempfile
from collections.abc import Callable
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any

import click

from bench import datasets
from bench.cases import say
from bench.feeder_systems import Process
from bench.harness import Report, Run, benchmark
from bench.services import STORE_KEYS, store
from streamrec.feeder.client.client import BlockingFeed

SHARDS, RECORDS, SIZE = 8, 500, 20_000
BUDGET = "32MiB"
ORDERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "shuffled": {"shuffle": True, "shuffle_window": "8MiB"},
}
POINTS = 50
"""Number of times that the feeder reports what it holds."""
FIRST_PART = 0.1
"""Part of the clients after which the feeder should hold no more than in the end."""
MOST_GROWTH = 1.25
"""Most times as much memory as after that part: the allocator keeps some of what is freed."""
BATCHES = 3
"""Batches that a client takes before it leaves in mid-run."""

# -- clients ---------------------------------------------------------------------------------------


def take_and_close(port: int) -> None:
    with closing(_feed(port)) as feed:
        _take(feed)


def take_and_be_killed(port: int) -> None:
    """Kill a process that takes batches; what it has not read resets the connection."""
    child = os.fork()
    if not child:
        _take(_feed(port))
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)


def leave_at_once(port: int) -> None:
    """Send the subscription and its credit, and leave before the first batch."""
    _feed(port).close()


def _feed(port: int) -> BlockingFeed:
    return BlockingFeed.open(socket.create_connection(("127.0.0.1", port)))


def _take(feed: BlockingFeed) -> None:
    for _ in range(BATCHES):
        feed.receive()


KINDS: dict[str, Callable[[int], None]] = {
    "closed in mid-run": take_and_close,
    "killed in mid-run": take_and_be_killed,
    "left before the first batch": leave_at_once,
}

# -- the feeder ------------------------------------------------------------------------------------


def report(feeder: Process) -> dict[str, Any]:
    """Wait until no client is connected, and return what the feeder holds then."""
    while True:
        feeder.tell()
        held = feeder.answer()
        if not held["connections"]:
            return held


@benchmark("soak")
@click.option("--connects", default=1000, show_default=True, help="Number of clients of each kind.")
def main(_: Run, *, connects: int) -> Report:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        write_shards(root / "bucket")
        with store(root, latency=0.0, bandwidth=None) as served:
            options = {"endpoint_url": served.endpoint, **STORE_KEYS}
            soaks = {}
            for order, kind in product(ORDERS, KINDS):
                say(f"{connects:,} clients: {order}, {kind}")
                soaks[f"{order}, {kind}"] = soak(order, kind, options, connects)
    settings = {"connects": connects, "memory_budget": BUDGET, "orders": ORDERS}
    growing = [name for name, points in soaks.items() if not is_flat(points)]
    return Report(
        "",
        {"settings": settings, "soaks": soaks},
        failed=bool(growing),
        shown=f"Held more and more: {', '.join(growing) or 'nothing'}",
    )


def write_shards(directory: Path) -> None:
    datasets.write_shards(directory, SHARDS, [bytes(SIZE)] * RECORDS)


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
    with tempfile.TemporaryDirectory() as directory:
        program = ("bench.crowd", "feeder", json.dumps(settings))
        with closing(Process(program, Path(directory, "feeder.log"))) as feeder:
            port = feeder.answer()["port"]
            points = [{"clients": 0, **report(feeder)}]
            for number in range(1, connects + 1):
                KINDS[kind](port)
                if number % max(1, connects // POINTS) == 0:
                    points.append({"clients": number, **report(feeder)})
    return points


def early(points: list[dict[str, Any]]) -> dict[str, Any]:
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


if __name__ == "__main__":
    main()
