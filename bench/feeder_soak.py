"""Measures what a feeder of two workers holds while clients come and go at full speed, for long.

``streamrec serve`` reads from a loopback store. Sixteen clients at a time read as fast as they can,
each for some seconds: they leave in mid-run, are killed there, read slowly, leave after a batch, or
have a wrong token. Every few seconds the memory, descriptors, threads and tasks of all processes of
the daemon are noted. Nothing may grow: the medians of the last third of the time are compared with
those of the first.
"""

from __future__ import annotations

import csv
import json
import os
import random
import re
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import click
import numpy as np

import streamrec as sr
from bench.harness import OTHER, OWN, Column, Report, Run, benchmark, draw_lines, say, table_of
from bench.machine import title
from bench.services import STORE_KEYS, Daemon, daemon, store
from bench.soak import write_shards
from bench.stopwatch import descriptors, proportional_megabytes, resident_megabytes, threads, tree
from streamrec.errors import FeederRefused

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
TASKS = re.compile(r"(\d+) tasks \(")
LIFETIMES = 2.0, 40.0
"""Seconds from which each client draws how long it stays."""
SLOW = 0.2
"""Seconds that a slow client spends on each batch."""
BATCH_SIZES = 8, 16, 32
RANKS = 4
PANELS = {
    "memory (PSS) and lent budget, MB": ("pss_mb", "budget_mb"),
    "descriptors": ("descriptors",),
    "threads": ("threads",),
    "tasks": ("tasks",),
    "clients": ("connections",),
    "sent, MB/s": ("sent_mb_s",),
}
COLUMNS = (
    Column("", "name", str),
    Column("before", "before"),
    Column("first third", "first"),
    Column("last third", "last"),
    Column("most", "most"),
    Column("slope an hour", "slope_an_hour"),
    Column("all have left", "after"),
)

# -- the clients -----------------------------------------------------------------------------------


class Visit(NamedTuple):
    """One client: what it is told, and until when it stays."""

    address: str
    token: str
    seed: int
    until: float
    """Time of :func:`time.monotonic`."""

    def read(self, seconds_a_batch: float = 0.0) -> None:
        rng = random.Random(self.seed)
        with sr.connect(
            self.address,
            rank=rng.randrange(RANKS),
            world_size=RANKS,
            batch_size=rng.choice(BATCH_SIZES),
            token=self.token,
        ) as stream:
            for _ in stream:
                time.sleep(seconds_a_batch)
                if time.monotonic() > self.until:
                    return


def come_with_a_wrong_token(visit: Visit) -> None:
    try:
        visit._replace(token="wrong").read()
    except FeederRefused:
        return
    raise AssertionError("a feeder served a client with a wrong token")


KINDS: dict[str, tuple[Callable[[Visit], None], int]] = {
    "read at full speed": (Visit.read, 8),
    # Longer than anybody stays: the fleet kills it.
    "read and killed": (lambda visit: visit._replace(until=float("inf")).read(), 4),
    "read slowly": (lambda visit: visit.read(SLOW), 2),
    "left after a batch": (lambda visit: visit._replace(until=0.0).read(), 2),
    "wrong token": (come_with_a_wrong_token, 2),
}
"""Kinds of clients, and how many of 18 are of each."""


class Fleet:
    """Clients of one feeder, each a process; where one has left, the next one comes."""

    def __init__(self, address: str, token: str, seed: int) -> None:
        self._address, self._token = address, token
        self._rng = random.Random(seed)
        self._here: dict[int, tuple[str, float]] = {}
        """The kinds of those who are here, and when they have to leave."""
        self.came: Counter[str] = Counter()
        """Clients by kind."""
        self.failed: Counter[str] = Counter()
        """Clients by kind that ended otherwise than they were meant to."""

    def fill(self, size: int) -> None:
        """Note who has left, kill those who are to be killed, and let others come."""
        for pid, (kind, until) in list(self._here.items()):
            if kind == "read and killed" and time.monotonic() > until:
                os.kill(pid, signal.SIGKILL)
            self._reap(pid, kind)
        while len(self._here) < size:
            self._start()

    def close(self) -> None:
        for pid in self._here:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self._here.clear()

    def _start(self) -> None:
        [kind] = self._rng.choices(list(KINDS), [weight for _, weight in KINDS.values()])
        until = time.monotonic() + self._rng.uniform(*LIFETIMES)
        visit = Visit(self._address, self._token, self._rng.getrandbits(32), until)
        pid = os.fork()
        if not pid:
            _run(KINDS[kind][0], visit)
        self._here[pid] = kind, until
        self.came[kind] += 1

    def _reap(self, pid: int, kind: str) -> None:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if not ended:
            return
        del self._here[pid]
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        if not (killed if kind == "read and killed" else status == 0):
            self.failed[kind] += 1


def _run(go: Callable[[Visit], None], visit: Visit) -> None:
    """Run a client in a process of its own, and end that."""
    code = 1
    try:
        go(visit)
        code = 0
    except BaseException:  # noqa: BLE001 - the process ends here, and its parent counts it
        traceback.print_exc(limit=-1)
    finally:
        os._exit(code)


# -- the feeder ------------------------------------------------------------------------------------


class Dumps:
    """The dumps of a daemon whose log is JSON.

    Args:
        daemon: The daemon, which must outlive this.
    """

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._log = daemon.log.open()
        self._rest = ""

    def ask(self) -> None:
        os.kill(self._daemon.pid, signal.SIGUSR1)

    def tasks(self) -> int:
        """Return the number of tasks in the dumps that were logged since the last call."""
        *lines, self._rest = (self._rest + self._log.read()).split("\n")
        messages = (json.loads(line)["message"] for line in lines)
        return sum(int(found[1]) for found in map(TASKS.match, messages) if found)

    def close(self) -> None:
        self._log.close()


@benchmark("feeder_soak")
@click.option("--minutes", default=30.0, show_default=True, help="Time that clients come and go.")
@click.option("--every", default=5.0, show_default=True, help="Seconds between two samples.")
@click.option("--seed", default=1, show_default=True, help="Seed of what the clients do.")
def main(run: Run, *, minutes: float, every: float, seed: int) -> Report:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        write_shards(root / "bucket")
        with store(root, latency=0.0, bandwidth=None) as served:
            options = {"endpoint_url": served.endpoint, **STORE_KEYS}
            with daemon({"train": {**DATASET, "storage_options": options}}, **SERVER) as running:
                rows, clients = soak(running, minutes * 60, every, seed)
    if run.output is not None:
        run.output.mkdir(parents=True, exist_ok=True)
        write_csv(run.output / "feeder_soak.csv", rows)
    settings = {"minutes": minutes, "clients": CLIENTS, "server": SERVER, "dataset": DATASET}
    heading = f"A feeder of two workers, and {CLIENTS} clients at a time that come and go"
    return Report(
        as_markdown(rows, clients),
        {"settings": settings, "clients": clients, "compared": compare_thirds(rows)},
        draw=partial(draw, rows, heading),
        failed=bool(find_growth(rows) or clients["failed"]),
    )


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
    pids = tree(running.pid)
    return {
        "processes": len(pids),
        "pss_mb": sum(map(proportional_megabytes, pids)),
        "rss_mb": sum(map(resident_megabytes, pids)),
        "descriptors": sum(map(descriptors, pids)),
        "threads": sum(map(threads, pids)),
    }


def compare_thirds(rows: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
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


def find_growth(rows: Sequence[Mapping[str, float]]) -> list[str]:
    found = compare_thirds(rows)
    return [
        name
        for name, most in MOST_GROWTH.items()
        if found[name]["last"] > most * found[name]["first"]
    ]


def as_markdown(rows: Sequence[Mapping[str, float]], clients: Mapping[str, Any]) -> str:
    """Return the machine, a table of first and last third, what was there when all had left."""
    body = [
        {"name": name, **found, **{when: clients[when].get(name) for when in ("before", "after")}}
        for name, found in compare_thirds(rows).items()
    ]
    came = ", ".join(f"{count:,} {kind}" for kind, count in sorted(clients["came"].items()))
    failed, minutes = sum(clients["failed"].values()), rows[-1]["seconds"] / 60
    clients_line = f"{minutes:.0f} minutes. Clients: {came}. Ended otherwise than meant: {failed}."
    growth = f"Grown: {', '.join(find_growth(rows)) or 'nothing'}."
    return "\n\n".join((title(), clients_line, table_of(COLUMNS, body), growth))


def write_csv(path: Path, rows: Sequence[Mapping[str, float]]) -> None:
    """Write a line for each sample; a file that exists is replaced."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: round(value, 1) for name, value in row.items()} for row in rows)


def draw(rows: Sequence[Mapping[str, float]], title: str, target: Path) -> None:
    """Draw what the daemon holds, over the time."""
    minutes = [row["seconds"] / 60 for row in rows]
    panels = {
        label: [
            (minutes, [row[name] for row in rows], {"color": color, "linewidth": 0.8})
            for name, color in zip(names, (OWN, OTHER), strict=False)
        ]
        for label, names in PANELS.items()
    }
    draw_lines(panels, "minutes", title, target)


if __name__ == "__main__":
    main()
