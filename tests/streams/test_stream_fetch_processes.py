"""Fetch processes change nothing but who receives the bytes: batches, order and states stay."""

from __future__ import annotations

import asyncio
import gzip
import logging
import os
import signal
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import streamrec as sr
from streamrec.config import DatasetSettings, validate
from streamrec.devstore import DevStore
from streamrec.stores.processes import fetch_processes
from tests.by_day import is_day
from tests.feeder.support import serving as serving_feeder
from tests.pipeline.small_datasets import write, write_index
from tests.stores.processes.in_loop import InLoop, run_in_loop
from tests.support import asynchronous, examples

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from streamrec.config.keywords import Engine
    from streamrec.streams.stream import Stream

NUMBERS = (0, 1, 2, 3, 7)
KILLS = int(os.environ.get("STREAMREC_TEST_KILLS", "3" if is_day() else "30"))
SEED = int(os.environ.get("STREAMREC_TEST_SEED", "7"))
LENGTHS = ((40, 7, 900), (), (5000, 3), (1, 2, 3, 4, 5, 6, 7), (0,), (700, 700), (90_000,), (12,))
"""Bytes of the records of each shard."""


def objects_of(directory: Path, lengths: tuple[tuple[int, ...], ...]) -> dict[str, bytes]:
    """Write shards and their index, and return all of them by name, compressed shards too."""
    glob = write(directory, lengths)
    write_index(glob, 3000)
    found = {path.name: path.read_bytes() for path in sorted(directory.iterdir())}
    packed = {f"packed-{name}": gzip.compress(data) for name, data in found.items()}
    return found | packed


@asynccontextmanager
async def serving(objects: dict[str, bytes]) -> AsyncIterator[Callable[[str], list[str]]]:
    """Serve objects; yield a function from the beginning of names to URLs."""
    async with DevStore(anonymous=True) as devstore:
        for name, data in objects.items():
            devstore.put(f"bucket/{name}", data)

        def urls(prefix: str) -> list[str]:
            return [devstore.url(f"bucket/{name}") for name in objects if name.startswith(prefix)]

        yield urls


async def read(
    source: Sequence[str], state: Any = None, **more: Any
) -> list[tuple[list[bytes], Any]]:
    """Return the records and the state of each batch."""
    async with sr.open(list(source), max_concurrency=2, **more) as stream:
        if state is not None:
            stream.load_state_dict(state)
        return [(batch.records.to_list(), stream.state_dict()) async for batch in stream]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[InLoop]:
    return run_in_loop(monkeypatch)


SETTINGS = st.fixed_dictionaries(
    {
        "batch_size": st.integers(1, 5),
        "lanes": st.integers(1, 4),
        "shuffle": st.booleans(),
        "seed": st.integers(0, 3),
        "shuffle_window": st.sampled_from([0, 2000, 1 << 20]),
        "epochs": st.integers(1, 2),
    }
)


def test_every_number_gives_the_same_batches_and_states(
    tmp_path: Path, started: list[InLoop]
) -> None:
    objects = objects_of(tmp_path, LENGTHS)
    index = next(name for name in objects if not name.endswith(".tfrecord"))

    @settings(max_examples=examples(60))
    @given(
        SETTINGS,
        st.sampled_from(["by shard", "by record", "compressed"]),
        st.sampled_from(NUMBERS[1:]),
        st.sampled_from(NUMBERS),
        st.floats(0, 1),
    )
    @asynchronous
    async def check(
        chosen: dict[str, Any], kind: str, number: int, later: int, stop: float
    ) -> None:
        async with serving(objects) as urls:
            source = urls("packed-part-" if kind == "compressed" else "part-")
            if kind == "by record":
                [chosen["index"]] = urls(index)
            expected = await read(source, **chosen)
            assert await read(source, fetch_processes=number, **chosen) == expected
            at = min(int(stop * len(expected)), len(expected) - 1)
            rest = await read(source, expected[at][1], fetch_processes=later, **chosen)
            assert rest[: len(expected) - at - 1] == expected[at + 1 :]

    check()
    assert len({len(one.served) for one in started}) > 1, "they have read something"


def test_a_process_that_dies_at_any_time_changes_nothing(
    tmp_path: Path, started: list[InLoop]
) -> None:
    objects, random = objects_of(tmp_path, LENGTHS), Random(SEED)
    more: dict[str, Any] = {"batch_size": 2, "shuffle": True, "epochs": 3}

    async def read_while_they_die(urls: list[str]) -> list[tuple[list[bytes], Any]]:
        seen = []
        async with sr.open(urls, max_concurrency=3, fetch_processes=2, **more) as stream:
            async for batch in stream:
                seen.append((batch.records.to_list(), stream.state_dict()))
                if started and not random.randrange(4):
                    random.choice(started[-2:]).kill()
        return seen

    @asynchronous
    async def check() -> None:
        started.clear()
        async with serving(objects) as urls:
            expected = await read(urls("part-"), **more)
            assert await read_while_they_die(urls("part-")) == expected

    for _ in range(examples(20)):
        check()


LARGE = tuple((110_000,) * 40 for _ in range(4))


def test_killed_processes_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_processes, "LONGEST_BACKOFF", 0.01)
    random, objects = Random(SEED), objects_of(tmp_path, LARGE)
    more: dict[str, Any] = {"batch_size": 4, "shuffle": True, "shuffle_window": "4MiB"}
    more |= {"memory_budget": "32MiB"}

    @asynchronous
    async def check() -> None:
        async with serving(objects) as all_urls:
            urls = all_urls("part-")
            with heard_of() as ready:
                async with (
                    sr.open(urls, epochs=None, **more) as undisturbed,
                    sr.open(urls, epochs=None, fetch_processes=2, **more) as stream,
                ):
                    for _ in range(KILLS):
                        await same_batches(undisturbed, stream, random.randrange(1, 5))
                        await ready.wait()
                        ready.clear()
                        await same_batches(undisturbed, stream, random.randrange(1, 20))
                        os.kill(random.choice(sorted(children())), signal.SIGKILL)
                    await same_batches(undisturbed, stream, 40)

    check()
    assert not children()


async def same_batches(undisturbed: Stream[Any], stream: Stream[Any], number: int) -> None:
    for _ in range(number):
        expected, seen = await anext(undisturbed), await anext(stream)
        assert seen.records.to_list() == expected.records.to_list()
        assert stream.state_dict() == undisturbed.state_dict()


@contextmanager
def heard_of() -> Iterator[asyncio.Event]:
    """Yield an event that is set whenever a process says that it is ready."""
    ready, loop = asyncio.Event(), asyncio.get_running_loop()

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "is ready" in record.getMessage():
                loop.call_soon(ready.set)

    log, listener = logging.getLogger("streamrec.stores"), Listener()
    before = log.level
    log.addHandler(listener)
    log.setLevel(logging.DEBUG)
    try:
        yield ready
    finally:
        log.removeHandler(listener)
        log.setLevel(before)


def children() -> set[int]:
    """Return the fetch processes of this one, which may have other children of tests before."""
    paths = Path("/proc/self/task").glob("*/children")
    pids = {int(pid) for path in paths for pid in path.read_text().split()}
    return {pid for pid in pids if fetch_processes.PROCESS.encode() in command_of(pid)}


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has just ended
        return b""


@pytest.mark.parametrize("engine", ["thread", "process"])
def test_for_loops_have_them_too(engine: Engine, tmp_path: Path) -> None:
    objects = objects_of(tmp_path, LENGTHS)
    with DevStore(anonymous=True) as devstore:
        for name, data in objects.items():
            devstore.put(f"bucket/{name}", data)
        urls = [devstore.url(f"bucket/{name}") for name in objects if name.startswith("part-")]
        seen = []
        for number in (0, 1):
            with sr.open(
                urls, batch_size=3, epochs=2, engine=engine, fetch_processes=number
            ) as stream:
                seen.append([(batch.records.to_list(), stream.state_dict()) for batch in stream])
        assert seen[0] == seen[1]
    assert not children()


def test_a_feeder_has_them_too(tmp_path: Path, started: list[InLoop]) -> None:
    objects = objects_of(tmp_path, LARGE)
    with DevStore(anonymous=True) as devstore:
        for name, data in objects.items():
            devstore.put(f"bucket/{name}", data)
        urls = [devstore.url(f"bucket/{name}") for name in objects if name.startswith("part-")]
        plain = {"source": urls, "batch_size": 4, "memory_budget": "64MiB"}
        seen = []
        for number in (0, 2):
            settings = validate(DatasetSettings, {**plain, "fetch_processes": number})
            with serving_feeder(settings) as address, sr.connect(f"{address}/data") as stream:
                seen.append([(batch.records.to_list(), stream.state_dict()) for batch in stream])
        assert seen[0] == seen[1]
    assert any(one.served for one in started)
