"""Runs that are left free everything at once, also where the leaving task is cancelled often."""

from __future__ import annotations

import asyncio
import gc
import gzip
import threading
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from streamrec.config import DatasetSettings, Pack, validate
from streamrec.flow.pool import Pool
from streamrec.formats.examples.descriptions import describe
from streamrec.formats.examples.example import encode_example
from streamrec.formats.examples.specs import RaggedFeature
from streamrec.formats.shards.tfrecord import frame
from streamrec.pipeline.batch_cache import CachedRun
from streamrec.pipeline.dataset import Dataset
from streamrec.pipeline.lane.damage_policy import Quarantine
from tests.cancellation import cancel_in_every_turn
from tests.feeder.support import eventually, until
from tests.pipeline import user_functions
from tests.pipeline.mixes import mix_of
from tests.pipeline.small_datasets import settings_of, write
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import ThreadPoolExecutor
    from pathlib import Path

    from streamrec.pipeline.run import Run

SHARDS = ((20_000,) * 40,) * 4
KINDS = ["plain", "shuffled", "single records", "gzip", "mix", "filtered", "packed", "skipping"]


def made(kind: str, directory: Path) -> DatasetSettings:
    """Make an endless dataset that is read in one of several ways."""
    values: dict[str, Any] = {"batch_size": 4, "lanes": 2, "epochs": None}
    if kind == "mix":
        weights = [(0, {"a": 0.7, "b": 0.3})]
        return mix_of(directory, {"a": SHARDS, "b": SHARDS}, weights, **values)
    if kind == "packed":
        return settings_of(tokens(directory), pack=Pack(256), features=FEATURES, **values)
    source = write(directory, SHARDS)
    if kind == "gzip":
        for path in directory.glob("part-*"):
            path.write_bytes(gzip.compress(path.read_bytes(), compresslevel=1))
    more: dict[str, dict[str, Any]] = {
        "shuffled": {"shuffle": True, "shuffle_window": "1MiB"},
        "single records": {"batch_size": None},
        "filtered": {"filter": user_functions.is_short},
        "skipping": {"on_corrupt": "skip", "corrupt_budget": 1},
    }
    return settings_of(source, **{**values, **more.get(kind, {})})


FEATURES = describe({"tokens": RaggedFeature("int64")})


def tokens(directory: Path) -> str:
    for shard in range(4):
        records = (encode_example({"tokens": [n] * 100}) for n in range(500))
        (directory / f"part-{shard}.tfrecord").write_bytes(b"".join(map(frame, records)))
    return f"{directory}/part-*.tfrecord"


def new_run(dataset: Dataset) -> Run:
    size = dataset.settings.batch_size
    return dataset.run(rank=0, world_size=1, batch_size=size, position=None)


def held(run: Run) -> int:
    """Return the bytes that a run holds: ranges, decompressed data and columns."""
    pools = [run._assembler.fetcher.pool, run._assembler.decoder._memory._pool]
    pools += [] if run._assembler.inflater is None else [run._assembler.inflater.pool]
    return sum(pool.in_use + pool.idle for pool in pools)


async def lets_go(run: Run) -> None:
    """Wait until a run holds nothing, as its last thread may still be ending."""
    await eventually(lambda: held(run) == 0)


earlier: set[threading.Thread] = set()
"""Threads of streams that other tests have left to the collector."""


@pytest.fixture(autouse=True)
def _earlier() -> None:
    earlier.update(threading.enumerate())


def working() -> set[str]:
    """Return the names of a run's tasks and threads, without those that end by themselves."""
    try:
        names = {task.get_name() for task in asyncio.all_tasks()}
    except RuntimeError:  # no loop runs any more
        names = set()
    names |= {thread.name for thread in threading.enumerate() if thread not in earlier}
    others = ("streamrec-read", "streamrec-prefault")
    return {n for n in names if n.startswith("streamrec-") and not n.startswith(others)}


@contextmanager
def no_collector() -> Iterator[None]:
    """Disable the garbage collector, so that reference cycles stay."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.parametrize("kind", KINDS)
@asynchronous
async def test_nothing_waits_for_the_collector_of_cycles(kind: str, tmp_path: Path) -> None:
    dataset = await Dataset.open(made(kind, tmp_path))
    with no_collector():
        async with new_run(dataset) as run:
            await run.receive()
            await eventually(lambda: run.statistics()["batches_ready"] > 0)
        await lets_go(run)
    await dataset.aclose()


@pytest.mark.parametrize("kind", KINDS)
@asynchronous
async def test_leaving_is_not_cut_short(kind: str, tmp_path: Path) -> None:
    dataset = await Dataset.open(made(kind, tmp_path))
    run, received = new_run(dataset), asyncio.Event()

    async def read() -> None:
        async with run:
            await run.receive()
            received.set()
            await asyncio.Event().wait()

    reading = asyncio.create_task(read())
    await received.wait()
    await cancel_in_every_turn(asyncio.wait_for(reading, None))
    assert not working()
    await lets_go(run)
    await dataset.aclose()


def threads_of(run: Run, kind: str) -> ThreadPoolExecutor:
    if kind == "gzip":
        assert run._assembler.inflater is not None
        return run._assembler.inflater._threads
    if kind == "quarantine":
        assert run._corruption_log is not None
        assert isinstance(run._corruption_log.sink, Quarantine)
        return run._corruption_log.sink._threads
    return run._threads


@pytest.mark.parametrize("kind", ["plain", "cached", "gzip", "quarantine"])
@asynchronous
async def test_the_loop_turns_while_threads_end(kind: str, tmp_path: Path) -> None:
    more: dict[str, dict[str, Any]] = {
        "cached": {"epochs": 2, "cache": {"folder": "memory", "of": "batches"}},
        "quarantine": {
            "on_corrupt": "quarantine",
            "corrupt_budget": 1,
            "quarantine": str(tmp_path / "kept"),
        },
    }
    settings = validate(DatasetSettings, {**dict(made(kind, tmp_path)), **more.get(kind, {})})
    dataset, gate = await Dataset.open(settings), threading.Event()
    run = new_run(dataset)
    async with run:
        await run.receive()
        threads = threads_of(run, kind)
        at_work = threads.submit(gate.wait, 20)
        await eventually(at_work.running)

        async def open_the_gate() -> None:
            await eventually(lambda: threads._shutdown)
            gate.set()

        opening = asyncio.create_task(open_the_gate())
    await opening
    assert at_work.result(0), "no other task had a turn while the run waited for its threads"
    await dataset.aclose()


@pytest.mark.parametrize("turns", range(8))
def test_a_loop_that_ends_meanwhile_leaves_nothing(turns: int, tmp_path: Path) -> None:
    left: list[Run] = []

    async def leave(dataset: Dataset, received: asyncio.Event) -> None:
        async with new_run(dataset) as run:
            left.append(run)
            await run.receive()
            received.set()

    async def main() -> None:
        received = asyncio.Event()
        leaving = asyncio.create_task(leave(await Dataset.open(made("plain", tmp_path)), received))
        await received.wait()
        for _ in range(turns):
            await asyncio.sleep(0)
        assert not leaving.done()

    asyncio.run(main())
    until(lambda: held(left[0]) == 0)
    assert not [name for name in working() if "decode" in name]


@asynchronous
async def test_a_halt_is_not_cut_short(tmp_path: Path) -> None:
    dataset = await Dataset.open(made("plain", tmp_path))
    async with new_run(dataset) as run:
        await run.receive()
        await cancel_in_every_turn(run.halt())
        assert not working() - {"streamrec-decode_0", "streamrec-decode_1"}
        assert run._assembler.fetcher.pool.idle == 0
        end = await run.halt()
        assert end is not None
        while run.position.step < end.step:
            await run.receive()
    await dataset.aclose()


@pytest.mark.parametrize("kind", ["plain", "gzip", "cached"])
@asynchronous
async def test_memory_is_freed_apart_from_the_loop(kind: str, tmp_path: Path) -> None:
    more = {"epochs": 2, "cache": {"folder": "memory", "of": "batches"}} if kind == "cached" else {}
    settings = validate(DatasetSettings, {**dict(made(kind, tmp_path)), **more})
    dataset, freed = await Dataset.open(settings), set()
    run = new_run(dataset)
    async with run:
        batch = await run.receive()
        await eventually(lambda: run.statistics()["batches_ready"] > 0)
        waiting = (run._channel if isinstance(run, CachedRun) else run._assembler.channel)._values
        await eventually(waiting[0][0].batch.done)
        column = waiting[0][0].batch.result()["records"].offsets
        weakref.finalize(column, lambda: freed.add(threading.get_ident()))
        del column, batch, waiting
    assert freed
    assert threading.get_ident() not in freed
    await dataset.aclose()


@asynchronous
async def test_pools_are_emptied_apart_from_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closing, closed = set(), Pool.close

    def close(pool: Pool) -> None:
        closing.add(threading.get_ident())
        closed(pool)

    monkeypatch.setattr(Pool, "close", close)
    dataset = await Dataset.open(made("gzip", tmp_path))
    async with new_run(dataset) as run:
        await run.receive()
    assert closing
    assert threading.get_ident() not in closing
    await dataset.aclose()
