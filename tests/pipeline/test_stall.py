"""``stall_timeout`` names the stage that stands still; in simulated time."""

from __future__ import annotations

import asyncio
import gc
import gzip
from concurrent.futures import Future
from typing import Any

import pytest

from streamrec.errors import DataError, Stalled, StoreUnavailable
from streamrec.flow.channel import EndOfStream
from streamrec.pipeline.lane import damage_policy
from tests.pipeline.simulated_store import (
    InlineExecutor,
    SimulatedStore,
    Trouble,
    set_executors,
    simulated,
)
from tests.pipeline.small_datasets import identities
from tests.pipeline.test_corners import build, dataset_over

SHARDS, RECORDS, SIZE = 4, 20, 60_000
TIMEOUT = 40.0


class HangingExecutor(InlineExecutor):
    """An executor whose threads never end."""

    def submit(self, *_: Any, **__: Any) -> Future[Any]:
        return Future()


class LastlyHangingExecutor(InlineExecutor):
    """An executor whose threads take all input of the decompressor and then never end."""

    def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
        _, source, _ = args
        return super().submit(*args, **kwargs) if source else Future()


class LateExecutor(InlineExecutor):
    """An executor whose threads take a second."""

    def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
        inline, future = super().submit(*args, **kwargs), Future[Any]()
        asyncio.get_running_loop().call_later(1.0, lambda: future.set_result(inline.result()))
        return future


class LateFailure(InlineExecutor):
    """An executor whose threads fail after a second."""

    def submit(self, *_: Any, **__: Any) -> Future[Any]:
        future: Future[Any] = Future()
        error = DataError("it cannot be decoded")
        asyncio.get_running_loop().call_later(1.0, lambda: future.set_exception(error))
        return future


def plain() -> SimulatedStore:
    return build([(RECORDS, SIZE)] * SHARDS)[0]


def compressed() -> SimulatedStore:
    store = plain()
    store.objects = {url: gzip.compress(data) for url, data in store.objects.items()}
    return store


async def stall(store: SimulatedStore, **values: Any) -> tuple[Exception, float]:
    """Read to the end; return the error and the seconds that it took."""
    dataset = dataset_over(store, known=True, batch_size=8, stall_timeout=TIMEOUT, **values)
    run = dataset.run(rank=0, world_size=1, batch_size=8, position=None)
    loop = asyncio.get_running_loop()
    started = loop.time()
    with pytest.raises((Stalled, StoreUnavailable)) as caught:
        async with run:
            while True:
                await run.receive()
    await dataset.aclose()
    return caught.value, loop.time() - started


@simulated
async def test_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    set_executors(monkeypatch, HangingExecutor)
    error, seconds = await stall(plain())
    assert isinstance(error, Stalled)
    assert isinstance(error, TimeoutError)
    assert error.stage == "decode"
    assert "stage decode" in str(error)
    assert "40 s" in str(error)
    assert TIMEOUT <= seconds < TIMEOUT + 1


@simulated
async def test_decompressing(monkeypatch: pytest.MonkeyPatch) -> None:
    set_executors(monkeypatch, inflating=HangingExecutor)
    error, _ = await stall(compressed())
    assert isinstance(error, Stalled)
    assert error.stage == "decompress"
    assert "o000" in str(error)


@simulated
async def test_decompressing_what_has_been_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    set_executors(monkeypatch, inflating=LastlyHangingExecutor)
    error, _ = await stall(compressed())
    assert isinstance(error, Stalled)
    assert error.stage == "decompress"
    assert "o000" in str(error)


@simulated
async def test_keeping_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    set_executors(monkeypatch)
    monkeypatch.setattr(damage_policy, "ThreadPoolExecutor", HangingExecutor)
    store = plain()
    store.objects = {url: b"?" + data[1:] for url, data in store.objects.items()}
    values = {"on_corrupt": "quarantine", "corrupt_budget": SHARDS, "quarantine": "s3://kept"}
    error, _ = await stall(store, **values)
    assert isinstance(error, Stalled)
    assert error.stage == "quarantine"


@pytest.mark.parametrize("store", [compressed, plain])
@simulated
async def test_fetching(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    set_executors(monkeypatch)
    silent = store()
    silent.trouble = lambda *_: Trouble(stalls_after=0)
    error, _ = await stall(silent)
    assert isinstance(error, StoreUnavailable)
    assert "fetch stalls" in str(error)
    assert error.url in silent.objects
    assert error.offset == 0


@simulated
async def test_a_wait_that_is_cancelled_loses_no_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    set_executors(monkeypatch, LateExecutor)
    dataset = dataset_over(plain(), known=True, batch_size=8)
    run = dataset.run(rank=0, world_size=1, batch_size=8, position=None)
    batches = []
    async with run:
        while True:
            try:
                async with asyncio.timeout(0.3):
                    batches.append(await run.receive())
            except TimeoutError:
                continue
            except EndOfStream:
                break
    assert identities(batches) == [(s, r) for r in range(RECORDS) for s in range(SHARDS)]
    await dataset.aclose()


@simulated
async def test_a_batch_that_is_there_is_taken_without_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not even for the event loop."""
    set_executors(monkeypatch)
    dataset = dataset_over(plain(), known=True, batch_size=8)
    run = dataset.run(rank=0, world_size=1, batch_size=8, position=None)
    async with run:
        first = await run.receive()
        await asyncio.sleep(60)  # in which all is read
        for step in (2, 3):
            with pytest.raises(StopIteration) as taken:
                run.receive().send(None)
            assert taken.value.value.next_position.step == first.next_position.step + step - 1
    await dataset.aclose()


@simulated
async def test_a_failure_that_nobody_waits_for_any_more_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_executors(monkeypatch, LateFailure)
    reported: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    dataset = dataset_over(plain(), known=True, batch_size=8)
    run = dataset.run(rank=0, world_size=1, batch_size=8, position=None)
    async with run:
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await run.receive()
        await asyncio.sleep(5)
    await dataset.aclose()
    del run
    gc.collect()
    assert not reported


@simulated
async def test_a_failure_comes_again_to_whoever_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    set_executors(monkeypatch, LateFailure)
    dataset = dataset_over(plain(), known=True, batch_size=8)
    run = dataset.run(rank=0, world_size=1, batch_size=8, position=None)
    async with run:
        for _ in range(2):
            with pytest.raises(DataError, match="cannot be decoded"):
                await run.receive()
    await dataset.aclose()
