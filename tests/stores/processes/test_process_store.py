from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from streamrec.devstore import DevStore, FaultRule
from streamrec.errors import StoreUnavailable
from streamrec.stores.http.http_store import HttpStore
from streamrec.stores.processes.fetch_processes import FetchProcesses
from streamrec.stores.processes.process_store import RemoteProcessStore
from tests.stores.conformance import (
    DATA,
    LARGE,
    Backend,
    Bench,
    FaultConformance,
    StoreConformance,
    filled,
    read,
)
from tests.stores.processes.in_loop import InLoop, run_in_loop
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from streamrec.flow.shared_memory import SharedRanges


async def until_ready(processes: FetchProcesses) -> None:
    """Return when all processes are ready."""
    while not processes.processes:  # noqa: ASYNC110 - turns of the loop, until they are made
        await asyncio.sleep(0)
    for one in processes.processes:
        await one.ready.wait()


async def until_idle(processes: FetchProcesses) -> None:
    """Return when no request is open, which takes some turns of the loop after a failure."""
    while any(one.ranges for one in processes.processes):  # noqa: ASYNC110 - turns of the loop
        await asyncio.sleep(0)


class ProcessBench(Bench):
    """A store under test whose ranges are read apart."""

    processes: FetchProcesses
    memory: SharedRanges


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[InLoop]:
    return run_in_loop(monkeypatch)


@asynccontextmanager
async def process_bench(number: int = 2) -> AsyncIterator[ProcessBench]:
    processes = FetchProcesses(number, {}, ["http://x"])
    async with DevStore(anonymous=True) as devstore:
        bench = ProcessBench(
            RemoteProcessStore(HttpStore(), processes),
            url=lambda name: devstore.url("bucket/" + quote(name)),
            put=lambda name, data: devstore.put(f"bucket/{name}", data),
            devstore=devstore,
        )
        bench.processes = processes
        memory = processes.share_memory(8 << 20)
        assert memory is not None
        bench.memory = memory
        try:
            await until_ready(processes)
            yield bench
            await until_idle(processes)
        finally:
            memory.close()
            await bench.store.aclose()
            await processes.aclose()


@pytest.mark.usefixtures("started")
class TestProcessStore(StoreConformance, FaultConformance):
    @pytest.fixture
    def backend(self) -> Backend:
        return process_bench

    @asynchronous
    async def test_shared_memory_is_filled_in_place(self) -> None:
        async with process_bench() as bench:
            bench.put("large", LARGE)
            piece = bench.memory.allocate(len(LARGE) + 9)
            assert piece is not None
            piece[:] = 0xAA
            async with bench.store.open_range(bench.url("large"), 0, 1 << 40) as body:
                assert await filled(body, piece.data[:100_000]) == 100_000
                assert await filled(body, piece.data[100_000:]) == len(LARGE) - 100_000
            assert bytes(piece) == LARGE + b"\xaa" * 9

    @asynchronous
    async def test_requests_divide_over_the_processes(self, started: list[InLoop]) -> None:
        async with process_bench(3) as bench:
            bench.put("x", DATA)
            store, url = bench.store, bench.url("x")
            async with store.open_range(url, 0, 9), store.open_range(url, 0, 9):
                async with store.open_range(url, 0, 9):
                    busy = [len(one.server._tasks) for one in started]
        assert busy == [1, 1, 1]

    @asynchronous
    async def test_nothing_is_written_once_a_cancelled_call_has_ended(
        self, started: list[InLoop]
    ) -> None:
        async with process_bench(1) as bench:
            assert bench.devstore
            bench.devstore.faults = [FaultRule(stall_after=100_000)]
            bench.put("large", LARGE)
            piece = bench.memory.allocate(len(LARGE))
            assert piece is not None
            has_begun = asyncio.Event()
            async with bench.store.open_range(bench.url("large"), 0, 1 << 40) as body:
                filling = asyncio.create_task(body.fill(piece.data, lambda _: has_begun.set()))
                await has_begun.wait()
                filling.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await filling
                assert not started[0].server._tasks, "the request has ended"
                with pytest.raises(StoreUnavailable, match="is closed"):
                    await filled(body, piece.data)

    @asynchronous
    async def test_a_process_that_dies_fails_its_requests_and_is_replaced(
        self, started: list[InLoop]
    ) -> None:
        async with process_bench(1) as bench:
            assert bench.devstore
            bench.devstore.faults = [FaultRule(stall_after=100_000, first=1)]
            bench.put("large", LARGE)
            piece = bench.memory.allocate(len(LARGE))
            assert piece is not None
            with pytest.raises(StoreUnavailable, match="ended by SIGKILL") as caught:
                async with bench.store.open_range(bench.url("large"), 0, 1 << 40) as body:
                    await body.fill(piece.data, lambda _: started[0].kill())
            assert caught.value.retryable
            assert caught.value.url == bench.url("large")
            # The stream's own store serves, and then the next process.
            assert (await read(bench.store, bench.url("large"), 5, 9))[0] == LARGE[5:9]
            while len(started) < 2:  # noqa: ASYNC110 - until its backoff is over
                await asyncio.sleep(0)
            await until_ready(bench.processes)
            async with bench.store.open_range(bench.url("large"), 0, 1 << 40) as body:
                assert len(started[1].server._tasks) == 1
                assert await filled(body, piece.data) == len(LARGE)
            assert bytes(piece) == LARGE

    @asynchronous
    async def test_a_process_that_hangs_is_killed(
        self, started: list[InLoop], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("streamrec.stores.processes.fetch_processes.GOODBYE", 0.01)
        async with process_bench(1) as bench:
            assert bench.devstore
            bench.devstore.faults = [FaultRule(stall_after=100_000)]
            bench.put("large", LARGE)
            view, has_begun = memoryview(bytearray(len(LARGE))), asyncio.Event()
            server = started[0].server
            with suppress(StoreUnavailable):
                async with bench.store.open_range(bench.url("large"), 0, 1 << 40) as body:
                    filling = asyncio.create_task(body.fill(view, lambda _: has_begun.set()))
                    await has_begun.wait()
                    server.packets._take = lambda *_: None  # it hears nothing any more
                    filling.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await filling
            assert started[0].returncode == -9

    @asynchronous
    async def test_a_process_that_never_answers_is_killed(
        self, started: list[InLoop], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("streamrec.stores.processes.fetch_processes.GOODBYE", 0.01)
        async with process_bench(1) as bench:
            [process] = bench.processes.processes
            started[0].server.packets._take = lambda *_: None
            asking = asyncio.create_task(read(bench.store, bench.url("x"), 0, 10))
            while not process.ranges:  # noqa: ASYNC110 - turns of the loop, until it has asked
                await asyncio.sleep(0)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            assert process.ranges, "it still counts"
            await process.ended.wait()
            assert started[0].returncode == -9

    @asynchronous
    async def test_waits_and_throttling_are_told(self) -> None:
        async with process_bench(1) as bench:
            assert bench.devstore
            bench.devstore.faults = [FaultRule(status=503, retry_after=7)]
            bench.put("x", DATA)
            with pytest.raises(StoreUnavailable) as caught:
                await read(bench.store, bench.url("x"), 0, 10)
            assert (caught.value.retry_after, caught.value.throttled) == (7, True)

    @asynchronous
    async def test_a_long_url_is_read_here(
        self, started: list[InLoop], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("streamrec.stores.processes.fetch_processes.MOST_LENGTH", 10)
        async with process_bench(1) as bench:
            bench.put("x", DATA)
            assert (await read(bench.store, bench.url("x"), 0, 10))[0] == DATA[:10]
            assert not started[0].stores._stores


def test_its_repr() -> None:
    store = RemoteProcessStore(HttpStore(), FetchProcesses(1, {}, []))
    assert repr(store).startswith("<RemoteProcessStore of <")
