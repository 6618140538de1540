"""Measures what connections cost a feeder: memory, descriptors, and the rate of all together.

``streamrec serve`` with one and with two workers reads local shards. A thousand clients have read
their run to the end and stay connected; then two hundred read as fast as they can beside them, then
alone, and then they stop taking batches and stay. The clients are one process of this machine,
which shares its cores with the feeder.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import click

from bench import datasets
from bench.cases import say
from bench.crowd import Readers, finished, reading
from bench.harness import Column, Report, Run, benchmark, run_async, table_of
from bench.machine import title
from bench.services import Daemon, daemon
from bench.stopwatch import descriptors, proportional_megabytes, tree

SHARDS, RECORDS, SIZE = 8, 2000, 2000
SESSION = 8 << 20
"""Bytes of memory that a session may take: the least."""
WINDOWS = 3
"""Measurements of a rate, whose median counts."""
SETTLE = 2.0
"""Seconds until a change of clients no longer shows."""
COLUMNS = (
    Column("workers", "workers", str),
    Column("clients", "what", str),
    Column("MB", "pss_mb"),
    Column("KB more a client", "kb_a_client"),
    Column("files", "descriptors"),
    Column("more a client", "descriptors_a_client"),
    Column("MB/s", "mb_s"),
    Column("records/s", "records_s"),
)


@benchmark("feeder_connections")
@click.option("--idle", default=1000, show_default=True, help="Clients that are idle.")
@click.option("--busy", default=200, show_default=True, help="Clients that read.")
@click.option("--seconds", default=2.0, show_default=True, help="Time of each measurement.")
def main(_: Run, *, idle: int, busy: int, seconds: float) -> Report:
    stages: dict[int, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as directory:
        source = write_shards(Path(directory))
        for workers in (1, 2):
            with serving(source, workers, idle + busy) as running:
                stages[workers] = run_async(measure(running, idle, busy, seconds))
    rows = [{"workers": workers, **stage} for workers, some in stages.items() for stage in some]
    settings = {"idle": idle, "busy": busy, "session_bytes": SESSION, "record_bytes": SIZE}
    return Report(
        f"{title()}\n\n{table_of(COLUMNS, rows)}", {"settings": settings, "stages": stages}
    )


def write_shards(directory: Path) -> str:
    """Write shards of plain records, and return the glob of their paths."""
    return datasets.write_shards(directory, SHARDS, [bytes(SIZE)] * RECORDS)


def serving(source: str, workers: int, clients: int) -> Any:
    """Run a feeder with room for so many clients."""
    common = {"source": source, "batch_size": 64, "memory_budget": SESSION}
    datasets = {
        "long": {**common, "epochs": 1_000_000},
        "short": {**common, "epochs": 1, "steps_per_epoch": 1},
    }
    server = {
        "workers": workers,
        "memory_budget": 5 * clients * SESSION,
        "max_connections": clients,
        "log_level": "warning",
    }
    return daemon(datasets, **server)


async def measure(running: Daemon, idle: int, busy: int, seconds: float) -> list[dict[str, Any]]:
    """Return what a feeder holds at each stage, and the rates."""
    long, short = f"{running.listen}/long", f"{running.listen}/short"
    stages = [await measure_memory(running, "nobody", 0)]
    async with reading(long, 1) as readers:
        stages.append(await measure_load(running, "1 busy", 1, readers, seconds))
    base = await measure_memory(running, "left", 0)
    async with finished(short, idle):
        stages.append(await measure_memory(running, f"{idle:,} idle", idle, base))
        async with reading(long, busy) as readers:
            what = f"{idle:,} idle, {busy} busy"
            stages.append(await measure_load(running, what, busy, readers, seconds, stages[-1]))
            base = stages[-1]
    async with reading(long, busy) as readers:
        stages.append(await measure_load(running, f"{busy} busy", busy, readers, seconds))
        readers.rest()
        stages.append(await measure_memory(running, f"{busy} that take no more", busy))
    await asyncio.to_thread(running.until, lambda snapshot: not snapshot["connections"])
    stages.append(await measure_memory(running, "all have left", 0))
    return stages


async def measure_load(
    running: Daemon,
    what: str,
    clients: int,
    readers: Readers,
    seconds: float,
    base: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return what a feeder holds while clients read, and their rate together."""
    await readers.all_read(clients)
    await asyncio.sleep(SETTLE)
    rate = median([await readers.rate(seconds) for _ in range(WINDOWS)])
    found = await measure_memory(running, what, clients, base)
    return {**found, "mb_s": rate * SIZE / 1e6, "records_s": rate}


async def measure_memory(
    running: Daemon, what: str, clients: int, base: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return what all processes of a feeder hold, and how much more a client than the base."""
    say(f"{what}: {clients} clients")
    await asyncio.sleep(SETTLE)
    pids = tree(running.pid)
    found: dict[str, Any] = {
        "what": what,
        "pss_mb": sum(map(proportional_megabytes, pids)),
        "descriptors": sum(map(descriptors, pids)),
    }
    if base is not None:
        more = found["pss_mb"] - base["pss_mb"]
        found["kb_a_client"] = more * 1000 / clients
        found["descriptors_a_client"] = (found["descriptors"] - base["descriptors"]) / clients
    return found


if __name__ == "__main__":
    main()
