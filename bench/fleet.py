"""Measures what a job of 4,000 ranks over up to a million shards takes, and a small one that runs.

*Planning*: no shard is there, only the index that names them: from it follow the shards of a
source, and the records of each rank in a step. *First batches*: of a store of one shard under as
many names. Each case is a process of its own, so that its memory is its own. *A job that runs*: two
feeders serve as many ranks as their memory allows, for an epoch of local shards. Beside each number
stands what ``streamrec bench plan`` says of this job.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click

import streamrec as sr
from bench.cases import say
from bench.crowd import FRUGAL
from bench.harness import Aim, Column, Report, Run, benchmark, run_async, table_of
from bench.services import Daemon, daemon
from bench.stopwatch import proportional_megabytes, usage
from streamrec.devstore import DevStore
from streamrec.devstore.objects import Content, Recipe, StoredObject, SyntheticObjects
from streamrec.errors import FeedError
from streamrec.feeder.client.healing import AsyncHealingFeed
from streamrec.flow.channel import EndOfStream
from streamrec.formats.shards.index import Index, ShardEntry
from streamrec.formats.shards.index_names import SUFFIX
from streamrec.formats.shards.tfrecord import frame
from streamrec.measure.capacity import OPENING, Workload, plan
from streamrec.measure.simulation import simulated
from streamrec.plan.reading.ranges import MemoryPlan
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
FEEDERS, SESSIONS = 2, 16
"""The feeders of the job that runs, and the ranks for which each of them has memory."""
SESSION = 8 << 20
"""Bytes of memory of a session: the least."""
PICTURE, PICTURES = 100_000, 192
"""Bytes of a record in that job, and records of each of its shards; a shard for each rank."""
SETTLE = 3.0
"""Seconds in which feeders read ahead as far as their memory allows."""
RUN_COLUMNS = (
    Column("what", "what", str),
    Column("plan", "plan"),
    Column("run", "run"),
    Column("run / plan", lambda row: row["run"] / row["plan"]),
)


def name_of(number: int, shards: int) -> str:
    return f"train-{number:07}-of-{shards:07}.tfrecord"


def write_index(directory: Path, shards: int, records: int = RECORDS) -> str:
    """Write the index of shards that are not there; return its URL."""
    entries = (
        ShardEntry(name_of(number, shards), 32 * records, records, [0], [0], [0])
        for number in range(shards)
    )
    path = directory / f"train-{shards}.streamrec-index"
    path.write_bytes(Index(tuple(entries)).encode())
    return str(path)


class IndexedShards(SyntheticObjects):
    """A bucket of synthetic shards, with their index beside them."""

    def __init__(self, shards: Recipe, index: Recipe) -> None:
        super().__init__({"bucket": shards, SUFFIX: index})

    async def describe(self, bucket: str, key: str) -> StoredObject:
        return await super().describe(SUFFIX if key.endswith(SUFFIX) else bucket, key)

    def open(self, bucket: str, key: str) -> Content:
        return super().open(SUFFIX if key.endswith(SUFFIX) else bucket, key)


def first_batch(source: str, options: dict[str, Any], more: dict[str, Any]) -> tuple[int, int]:
    """Return the records of a stream's first batch; its store counts the requests."""

    async def take() -> int:
        async with sr.open(source, batch_size=32, storage_options=options, **more) as stream:
            return len(await anext(stream))

    return asyncio.run(take()), 0


def first_batches(directory: Path, shards: int) -> list[dict[str, Any]]:
    """Measure the first batch of a dataset of so many shards, by each of its sources."""
    index = Path(write_index(directory, shards, records=1))
    shard = directory / "shard"
    shard.write_bytes(frame(bytes(16)))
    name = f"train-{{:07}}-of-{shards:07}.tfrecord"
    of_index = Recipe(templates=[index], name=f"train-{{}}{SUFFIX}", objects=1)
    objects = IndexedShards(Recipe(templates=[shard], name=name, objects=shards), of_index)
    indexed = f"s3://bucket/train-0{SUFFIX}"
    sources: dict[str, tuple[str, dict[str, Any]]] = {
        "a glob": ("s3://bucket/train-*", {}),
        "a range": (f"s3://bucket/train-{{{0:07}..{shards - 1:07}}}-of-{shards:07}.tfrecord", {}),
        "an index": (indexed, {}),
        "an index, shuffled": (indexed, {"shuffle": True}),
        "an index, by record": (indexed, {"index": True}),
        "an index, by record, shuffled": (indexed, {"index": True, "shuffle": True}),
    }
    rows = []
    with DevStore(objects=objects) as store:
        for source, (url, more) in sources.items():
            say(f"the first batch by {source}")
            before = store.statistics.requests
            row = apart(first_batch, url, store.storage_options, more)
            row["requests"] = store.statistics.requests - before
            rows.append({"what": f"first batch by {source}", "shards": shards, **row})
    return rows


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


@contextmanager
def feeders(source: str, ranks: int) -> Iterator[list[Daemon]]:
    """Run feeders that have memory for these ranks."""
    features = {"image": {"dtype": "bytes"}, "label": {"dtype": "int64"}}
    dataset = {"source": source, "index": True, "batch_size": BATCH, "lanes": ranks}
    dataset |= {"memory_budget": SESSION, "features": features}
    # Between machines no memory is shared.
    server: dict[str, Any] = {"memory_budget": SESSION * ranks // FEEDERS, "shared_memory": 0}
    with ExitStack() as stack:
        yield [stack.enter_context(daemon({"train": dataset}, **server)) for _ in range(FEEDERS)]


def write_pictures(directory: Path, shards: int) -> tuple[str, int]:
    """Write shards and their index; return the source, and the bytes of all shards."""
    pixels = bytes(PICTURE)
    with sr.ShardedWriter(directory / "train.tfrecord", shards=shards, index=True) as writer:
        writer.write_many({"image": pixels, "label": number} for number in range(shards * PICTURES))
    found = list(directory.glob("train-*-of-*.tfrecord"))
    return f"{directory}/train-*.tfrecord", sum(path.stat().st_size for path in found)


async def run_job(daemons: Sequence[Daemon], ranks: int) -> dict[str, Any]:
    """Read an epoch with all ranks; return what feeders took, and the ranks that they refused."""
    address = ",".join(one.listen.removeprefix("tcp://") for one in daemons)
    idle = sum(proportional_megabytes(one.pid) for one in daemons)

    async def open_feed(rank: int, **more: float) -> AsyncHealingFeed:
        route: dict[str, Any] = {"rank": rank, "world_size": ranks, **FRUGAL, **more}
        return await AsyncHealingFeed.open(f"tcp://{address}/train", **route)

    async def finish(feed: AsyncHealingFeed) -> int:
        records = 0
        while True:
            try:
                records += len(await feed.receive())
            except EndOfStream:
                return records

    async with AsyncExitStack() as stack:
        feeds = []
        for rank in range(ranks):
            feeds.append(await open_feed(rank))
            stack.push_async_callback(feeds[-1].aclose)
        refused = 0
        try:
            more = await open_feed(0, retry_for=0.0)
            stack.push_async_callback(more.aclose)
            await more.receive()
        except FeedError:
            refused = 1
        await asyncio.sleep(SETTLE)
        full = sum(proportional_megabytes(one.pid) for one in daemons)
        clients = [len(one.snapshot()["subscriptions"]) for one in daemons]
        records = sum(await asyncio.gather(*map(finish, feeds)))
        now = [one.snapshot() for one in daemons]
    return {
        "records": records,
        "refused": refused,
        "clients": max(clients),
        "session_mb": (full - idle) / ranks,
        "requests": sum(one["datasets"]["train"]["fetch"]["requests"] for one in now),
        "cpu_seconds": sum(usage(one.pid).cpu_seconds for one in daemons),
    }


def job(ranks: int = FEEDERS * SESSIONS) -> list[dict[str, Any]]:
    """Run a job; return rows of what it took, beside the plan's numbers."""
    with tempfile.TemporaryDirectory() as directory:
        source, size = write_pictures(Path(directory), ranks)
        with feeders(source, ranks) as daemons:
            before = sum(usage(one.pid).cpu_seconds for one in daemons)
            found = run_async(run_job(daemons, ranks))
    if found["records"] != ranks * PICTURES or not found["refused"]:
        raise AssertionError(f"not every record was read, or a rank too many was served: {found}")
    # Ranges grow as far as the memory of a session allows.
    grown = MemoryPlan.divide(SESSION, lanes=1, windows=0, near=True).range_size
    text = f"hosts={ranks},batch={BATCH * PICTURE},step=1s,dataset={size},range={grown},extra=0"
    told = {one.name: one.value for one in plan(text).estimates}
    core = Workload.model_fields["core"].default
    pairs = {
        "clients of a feeder": (ranks / FEEDERS, found["clients"]),
        "requests of an epoch": (told["requests"] * told["time of an epoch"], found["requests"]),
        "CPU of the feeders, s": (size / core + ranks * OPENING, found["cpu_seconds"] - before),
        "memory of a session, MB": (SESSION / 1e6, found["session_mb"]),
    }
    return [{"what": what, "plan": planned, "run": run} for what, (planned, run) in pairs.items()]


@benchmark("fleet", repeat=1)
@click.option("--shards", "counts", multiple=True, type=int, default=(100_000, 1_000_000))
def main(_: Run, *, counts: tuple[int, ...]) -> Report:
    rows = [listing()]
    with tempfile.TemporaryDirectory() as directory:
        for shards in counts:
            say(f"{shards:,} shards")
            rows += cases(Path(directory), shards)
        rows += first_batches(Path(directory), max(counts))
    told = plan(f"batch=1MB,step=1s,shards={LISTED}").estimates
    (pages,) = [one.value for one in told if one.name == "requests of a listing"]
    say("a job that runs")
    ran = job()
    ratios = {"requests of a listing": rows[0]["requests"] / pages} | {
        row["what"]: row["run"] / row["plan"] for row in ran
    }
    aims = [
        Aim(f"{what}, beside the plan", "times", 1.1, ratio, least=False)
        for what, ratio in ratios.items()
    ]
    tables = f"{table_of(COLUMNS, rows)}\n\n{table_of(RUN_COLUMNS, ran)}"
    return Report(tables, {"rows": rows, "job": ran}, aims)


if __name__ == "__main__":
    main()
