"""Measures how soon ``/livez`` answers beside idle and slow connections to the status port.

::

    python -m bench.status_port
"""

from __future__ import annotations

import socket
import tempfile
import time
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bench.feeder_connections import write_shards
from bench.markdown import table
from bench.services import daemon

if TYPE_CHECKING:
    from bench.services import Daemon

LOOK = 200
"""Connections between two probes."""
ROUNDS = 20


@click.command()
@click.option("--idle", default=10_000, show_default=True, help="Connections that say nothing.")
@click.option("--slow", default=500, show_default=True, help="Connections that send by the byte.")
def main(*, idle: int, slow: int) -> None:
    """Open the connections, and print a table."""
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        datasets = {"plain": {"source": write_shards(Path(directory)), "batch_size": 64}}
        running = stack.enter_context(daemon(datasets))
        found = {
            "alone": [probe(running) for _ in range(ROUNDS)],
            f"{idle:,} idle": beside_idle(running, idle, stack),
            f"{slow:,} slow": beside_slow(running, slow, stack),
        }
    rows = [[what, f"{max(times):.3f}"] for what, times in found.items()]
    click.echo(table(["connections", "longest answer, s"], rows))


def probe(running: Daemon) -> float:
    """Return the seconds until ``/livez`` has answered."""
    began = time.perf_counter()
    with urllib.request.urlopen(f"http://{running.status}/livez") as answer:
        assert answer.read() == b"ok\n"
    return time.perf_counter() - began


def beside_idle(running: Daemon, count: int, stack: ExitStack) -> list[float]:
    """Open idle connections, and return the seconds of probes meanwhile."""
    times = []
    for number in range(1, count + 1):
        sock = stack.enter_context(socket.socket())
        sock.setblocking(False)
        with suppress(BlockingIOError):
            sock.connect(place(running))
        if number % LOOK == 0:
            times.append(probe(running))
    return times


def beside_slow(running: Daemon, count: int, stack: ExitStack) -> list[float]:
    """Send a byte on each of some connections, again and again, with a probe after each round."""
    slow = [stack.enter_context(socket.create_connection(place(running))) for _ in range(count)]
    times = []
    for _ in range(ROUNDS):
        for sock in slow:
            with suppress(OSError):
                sock.send(b"G")
        times.append(probe(running))
    return times


def place(running: Daemon) -> tuple[str, int]:
    """Return the address of the status port."""
    host, _, port = running.status.rpartition(":")
    return host, int(port)


if __name__ == "__main__":
    main()
