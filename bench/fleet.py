"""Measures what a job of 4,000 ranks over up to a million shards takes of the code that plans it.

No shard is there, only the index that names them: from it follow the shards of a source, and the
records of each rank in a step. Each case is a process of its own, so that its memory is its own.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import re
import tempfile
import time
from pathlib import Path
from typing import Any

import click

import streamrec as sr
from bench.harness import Aim, Column, Report, Run, benchmark, say, table_of
from streamrec.formats.shards.index import Index, ShardEntry
from streamrec.measure.capacity import plan
from streamrec.measure.simulation import simulated
from streamrec.stores.open import Stores

RANKS, BATCH = 4000, 8
RECORDS = 3
"""Records of a shard."""
STEP = 5
"""The step whose records are planned: far from the first shards of each lane."""
LISTED = 100_000
"""Shards of the bucket that is listed: its server shares the machine."""
COLUMNS = (
    Column("what", "what", str),
    Column("shards", lambda row: f"{row['shards']:,}", str),
    Column("CPU, s", "cpu_seconds"),
    Column("MB", "megabytes"),
    Column("requests", lambda row: f"{row['requests']:,}", str),
)


def name_of(number: int, shards: int) -> str:
    return f"train-{number:07}-of-{shards:07}.tfrecord"


def write_index(directory: Path, shards: int) -> str:
    """Write the index of shards that are not there; return its URL."""
    entries = (
        ShardEntry(name_of(number, shards), 32 * RECORDS, RECORDS, [0], [0], [1])
        for number in range(shards)
    )
    path = directory / f"train-{shards}.streamrec-index"
    path.write_bytes(Index(tuple(entries)).encode())
    return str(path)


def list_source(source: str, options: dict[str, Any] | None = None) -> tuple[int, int]:
    """Return the shards that a source names, and the requests that this takes."""
    asked: list[int] = []

    async def find() -> int:
        stores = Stores(options, before_request=asked.append)
        try:
            return len(await stores.list_named(source))
        finally:
            await stores.aclose()

    return asyncio.run(find()), len(asked)


def plan_step(index: str, shuffle: bool) -> tuple[int, int]:
    """Plan a step of all ranks; return its different records, and the requests that this takes."""
    settings: dict[str, Any] = {"index": True, "lanes": RANKS, "shuffle": shuffle}
    rows = sr.which(index, STEP, batch_size=BATCH, world_size=RANKS, **settings)
    return len({(row.shard, row.record) for row in rows}), 2


def measure(work: Any, *arguments: Any) -> dict[str, Any]:
    """Call a function here; return what it found, and the CPU time and memory that it took."""
    before = peak_megabytes()
    began = time.process_time()
    found, requests = work(*arguments)
    return {
        "found": found,
        "requests": requests,
        "cpu_seconds": time.process_time() - began,
        "megabytes": peak_megabytes() - before,
    }


def peak_megabytes() -> float:
    """Return the most memory that this process has had.

    ``getrusage`` begins with that of the process that started this one.
    """
    status = Path("/proc/self/status").read_text()
    (kilobytes,) = re.findall(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    return int(kilobytes) * 1024 / 1e6


def apart(work: Any, *arguments: Any) -> dict[str, Any]:
    """Measure a call in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measure, (work, *arguments))


def cases(directory: Path, shards: int) -> list[dict[str, Any]]:
    """Measure the sources and the plans of so many shards."""
    index = write_index(directory, shards)
    last = name_of(shards - 1, shards).removeprefix("train-")
    counted = f"{directory}/train-{{{0:07}..{last.replace('-of', '}-of', 1)}"
    planned = min(RANKS * BATCH, shards * RECORDS)
    rows = [
        {"what": "names of a range", "expected": shards, **apart(list_source, counted)},
        {"what": "names of an index", "expected": shards, **apart(list_source, index)},
        {"what": "a step of 4,000 ranks, in order", "expected": planned}
        | apart(plan_step, index, False),
        {"what": "a step of 4,000 ranks, shuffled", "expected": planned}
        | apart(plan_step, index, True),
    ]
    for row in rows:
        if row["found"] != row["expected"]:
            raise AssertionError(f"{row['what']}: {row['found']}, not {row['expected']}")
    return [{"shards": shards, **row} for row in rows]


def listing() -> dict[str, Any]:
    """Measure the listing of a simulated bucket."""
    with simulated("latency=5ms", LISTED, 20_000) as store:
        found = apart(list_source, store.source, store.storage_options)
    return {"what": "names of a listing", "shards": LISTED, **found}


@benchmark("fleet", repeat=1)
@click.option("--shards", "counts", multiple=True, type=int, default=(100_000, 1_000_000))
def main(_: Run, *, counts: tuple[int, ...]) -> Report:
    rows = [listing()]
    with tempfile.TemporaryDirectory() as directory:
        for shards in counts:
            say(f"{shards:,} shards")
            rows += cases(Path(directory), shards)
    told = plan(f"batch=1MB,step=1s,shards={LISTED}").estimates
    (pages,) = [one.value for one in told if one.name == "requests of a listing"]
    aim = Aim(
        "requests of a listing, beside the plan",
        "times",
        1.1,
        rows[0]["requests"] / pages,
        least=False,
    )
    return Report(table_of(COLUMNS, rows), {"rows": rows}, [aim])


if __name__ == "__main__":
    main()
