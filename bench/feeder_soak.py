"""Measures what a feeder of two workers holds while clients come and go at full speed, for long.

::

    python -m bench.feeder_soak --output bench/results

``streamrec serve`` reads from a loopback store. Sixteen clients at a time read as fast as they can,
each for some seconds: they leave in mid-run, are killed there, read slowly, leave after a batch, or
have a wrong token. Every few seconds the memory, descriptors, threads and tasks of all processes of
the daemon are noted. Nothing may grow: the medians of the last third of the time are compared with
those of the first.
"""

from __future__ import annotations

import csv
import sys
import tempfile
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from bench.console import output_option
from bench.machine import title
from bench.markdown import number, table
from bench.progress import say
from bench.results import facts, write
from bench.services import STORE_KEYS, daemon, store
from bench.soak import write_shards
from bench.soaking.dumps import Dumps
from bench.soaking.fleet import Fleet
from bench.soaking.timeline import draw
from bench.usage import descriptors, proportional_megabytes, resident_megabytes, threads, tree

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from bench.services import Daemon

TOKEN = "a-token-of-the-bench"
SERVER = {
    "workers": 2,
    "memory_budget": "384MiB",
    "token": TOKEN,
    "log_format": "json",
    "log_level": "info",
}
DATASET: dict[str, Any] = {
    "source": "s3://bucket/*.tfrecord",
    "memory_budget": "32MiB",
    "batch_size": 16,
    "epochs": 1000,
    "steps_per_epoch": 1000,
    "shuffle": True,
    "shuffle_window": "8MiB",
}
CLIENTS = 16
TURN = 0.1
"""Seconds between two looks at the clients."""
REST = 40.0
"""Seconds after the last client has left until what is held is noted: idle connections to the store
are closed by then."""
MOST_GROWTH: dict[str, float] = {
    "pss_mb": 1.05,
    "rss_mb": 1.05,
    "descriptors": 1.05,
    "threads": 1.05,
    "tasks": 1.1,
}
"""Most times the first third's median; what clients do at a time is drawn, so all of it wavers."""


@click.command()
@output_option
@click.option("--minutes", default=30.0, show_default=True, help="Time that clients come and go.")
@click.option("--every", default=5.0, show_default=True, help="Seconds between two samples.")
@click.option("--seed", default=1, show_default=True, help="Seed of what the clients do.")
def main(*, output: Path | None, minutes: float, every: float, seed: int) -> None:
    """Let clients come and go, print a table, and write CSV, JSON, Markdown and a chart."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        write_shards(root / "bucket")
        with store(root, latency=0.0, bandwidth=None) as served:
            options = {"endpoint_url": served.endpoint, **STORE_KEYS}
            with daemon({"train": {**DATASET, "storage_options": options}}, **SERVER) as running:
                rows, clients = soak(running, minutes * 60, every, seed)
    text = as_markdown(rows, clients)
    click.echo(text)
    if output is not None:
        settings = {"minutes": minutes, "clients": CLIENTS, "server": SERVER, "dataset": DATASET}
        content = facts("feeder_soak", settings=settings, clients=clients, compared=compared(rows))
        heading = f"A feeder of two workers, and {CLIENTS} clients at a time that come and go"
        output.mkdir(parents=True, exist_ok=True)
        write_csv(output / "feeder_soak.csv", rows)
        write(output, "feeder_soak", content, text, partial(draw, rows, heading))
    sys.exit(bool(grown(rows) or clients["failed"]))


def soak(
    running: Daemon, seconds: float, every: float, seed: int
) -> tuple[list[dict[str, float]], dict[str, Any]]:
    """Return the samples, and how many clients there were and what became of them."""
    fleet = Fleet(f"{running.listen}/train", TOKEN, seed)
    with closing(Dumps(running)) as dumps, closing(fleet):
        idle = sample(running)
        rows = list(samples(running, fleet, dumps, seconds, every))
        clients = {"came": dict(fleet.came), "failed": dict(fleet.failed)}
    left = running.until(lambda snapshot: not snapshot["connections"])
    time.sleep(REST)
    after = {**sample(running), "budget_mb": left["budget"]["lent"] / 1e6}
    return rows, {**clients, "before": idle, "after": after}


def samples(
    running: Daemon, fleet: Fleet, dumps: Dumps, seconds: float, every: float
) -> Iterator[dict[str, float]]:
    """Yield what the daemon holds, again and again while clients come and go."""
    began = last = time.monotonic()
    sent = sent_bytes(running.snapshot())
    while (now := time.monotonic()) < began + seconds:
        fleet.fill(CLIENTS)
        if now < last + every:
            time.sleep(TURN)
            continue
        snapshot = running.snapshot()
        before, sent = sent, sent_bytes(snapshot)
        say(f"{fleet.came.total()} clients came")
        yield {
            "seconds": now - began,
            **sample(running),
            "tasks": dumps.tasks(),  # of the dump that the last sample asked for
            "connections": snapshot["connections"],
            "budget_mb": snapshot["budget"]["lent"] / 1e6,
            "sent_mb_s": (sent - before) / 1e6 / (now - last),
            "clients": fleet.came.total(),
            "failed": fleet.failed.total(),
        }
        dumps.ask()
        last = now


def sent_bytes(snapshot: Mapping[str, Any]) -> int:
    total: int = snapshot["datasets"]["train"]["sent"]["bytes"]
    return total


def sample(running: Daemon) -> dict[str, float]:
    """Return what all processes of a daemon hold now."""
    pids = tree(running.pid)
    return {
        "processes": len(pids),
        "pss_mb": sum(map(proportional_megabytes, pids)),
        "rss_mb": sum(map(resident_megabytes, pids)),
        "descriptors": sum(map(descriptors, pids)),
        "threads": sum(map(threads, pids)),
    }


def compared(rows: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Return, for each quantity, the medians of the first and the last third, and the slope."""
    third = max(len(rows) // 3, 1)
    hours = np.array([row["seconds"] for row in rows]) / 3600
    names = [name for name in rows[0] if name not in ("seconds", "clients", "failed")]
    found = {}
    for name in names:
        # Nobody was asked for a dump before the first sample.
        values = np.array([row[name] for row in rows])
        first, last = (float(median(part)) for part in (values[1 : third + 1], values[-third:]))
        slope = float(np.polyfit(hours[1:], values[1:], 1)[0]) if len(rows) > 2 else 0.0
        most = float(values.max())
        found[name] = {"first": first, "last": last, "most": most, "slope_an_hour": slope}
    return found


def grown(rows: Sequence[Mapping[str, float]]) -> list[str]:
    """Return the quantities that have grown."""
    found = compared(rows)
    return [
        name
        for name, most in MOST_GROWTH.items()
        if found[name]["last"] > most * found[name]["first"]
    ]


def as_markdown(rows: Sequence[Mapping[str, float]], clients: Mapping[str, Any]) -> str:
    """Return the machine, a table of first and last third, what was there when all had left."""
    head = ("", "before", "first third", "last third", "most", "slope an hour", "all have left")
    body = []
    for name, found in compared(rows).items():
        values = (found[key] for key in ("first", "last", "most", "slope_an_hour"))
        around = (clients[when].get(name) for when in ("before", "after"))
        before, after = map(number, around)
        body.append((name, before, *map(number, values), after))
    came = ", ".join(f"{count:,} {kind}" for kind, count in sorted(clients["came"].items()))
    growth = ", ".join(grown(rows)) or "nothing"
    failed = sum(clients["failed"].values())
    minutes = rows[-1]["seconds"] / 60
    return "\n\n".join(
        (
            title(),
            f"{minutes:.0f} minutes. Clients: {came}. Ended otherwise than meant: {failed}.",
            table(head, body),
            f"Grown: {growth}.",
        )
    )


def write_csv(path: Path, rows: Sequence[Mapping[str, float]]) -> None:
    """Write a line for each sample; a file that exists is replaced."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: round(value, 1) for name, value in row.items()} for row in rows)


if __name__ == "__main__":
    main()
