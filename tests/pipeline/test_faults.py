"""Faults of the store lose, repeat or reorder no record, end in bounded time, and are counted."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamrec.errors import (
    AccessDenied,
    CorruptRecord,
    ObjectChanged,
    ObjectNotFound,
    StoreError,
    StoreMisbehaved,
    StoreUnavailable,
    StreamrecError,
)
from streamrec.flow.channel import EndOfStream
from streamrec.pipeline.fetch.range_downloader import PATIENCE_AT_START, SILENCE
from tests.pipeline.simulated_store import (
    NO_TROUBLE,
    SimulatedStore,
    Trouble,
    set_executors,
    simulated,
)
from tests.pipeline.small_datasets import identities
from tests.pipeline.test_corners import build, dataset_over
from tests.support import examples

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamrec.pipeline.run import Run

SHARDS, RECORDS, SIZE = 8, 40, 110_000
SLOW_DOWN = StoreUnavailable("the store asks to slow down (503 SlowDown)", throttled=True)
WAIT_TWO = StoreUnavailable("too many requests (429)", throttled=True, retry_after=2.0)
RESET = StoreUnavailable("the connection broke: reset")


@pytest.fixture(autouse=True)
def _no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    set_executors(monkeypatch)


async def deliver(
    trouble: Callable[[int, str, int, int], Trouble],
    *,
    most_wait: float = 1e9,
    **values: Any,
) -> tuple[dict[str, Any], float]:
    """Read everything, check the order, and return the statistics and the seconds it took."""
    store, _ = build([(RECORDS, SIZE)] * SHARDS)
    store.trouble = trouble
    dataset = dataset_over(store, known=True, batch_size=16, memory_budget="64MiB", **values)
    run = dataset.run(rank=0, world_size=1, batch_size=16, position=None)
    loop, batches = asyncio.get_running_loop(), []
    started = last = loop.time()
    async with run:
        while True:
            try:
                batches.append(await run.receive())
            except EndOfStream:
                break
            if len(batches) > 1:
                assert loop.time() - last <= most_wait
            last = loop.time()
    assert identities(batches) == [(s, r) for r in range(RECORDS) for s in range(SHARDS)]
    check_statistics(run, store)
    await dataset.aclose()
    return run.statistics(), loop.time() - started


def check_statistics(run: Run, store: SimulatedStore) -> None:
    statistics = run.statistics()
    whole = sum(map(len, store.objects.values()))
    assert statistics["bytes_used"] == whole
    assert statistics["bytes_read"] >= whole
    assert statistics["requests"] == len(store.asked)
    assert statistics["bytes_in_memory"] == statistics["in_flight"] == 0
    assert statistics["hedges"] == statistics["hedges_won"] + statistics["hedges_lost"]


async def fail(trouble: Callable[[int, str, int, int], Trouble], **values: Any) -> StreamrecError:
    """Read until it fails, and return the error."""
    store, _ = build([(RECORDS, SIZE)] * SHARDS)
    store.trouble = trouble
    dataset = dataset_over(store, known=True, batch_size=16, **values)
    run = dataset.run(rank=0, world_size=1, batch_size=16, position=None)
    with pytest.raises(StreamrecError) as caught:
        async with run:
            while True:
                await run.receive()
    await dataset.aclose()
    return caught.value


def some(share: float, trouble: Trouble, seed: int = 1) -> Callable[[int, str, int, int], Trouble]:
    """Give some requests trouble, by chance."""
    random = Random(seed)
    return lambda *_: trouble if random.random() < share else NO_TROUBLE


def first(count: int, trouble: Trouble) -> Callable[[int, str, int, int], Trouble]:
    """Give the first requests trouble."""
    return lambda number, *_: trouble if number < count else NO_TROUBLE


@simulated
async def test_without_any_trouble_nothing_is_read_twice() -> None:
    statistics, seconds = await deliver(lambda *_: NO_TROUBLE)
    assert statistics["bytes_read"] == statistics["bytes_used"]
    for name in ("retries", "throttled", "cut", "hedges", "refetched"):
        assert statistics[name] == 0
    assert seconds < 1.0


@pytest.mark.parametrize(
    ("trouble", "counted"),
    [
        (Trouble(refused=SLOW_DOWN), {"retries", "throttled"}),
        (Trouble(refused=WAIT_TWO), {"retries", "throttled"}),
        (Trouble(refused=RESET), {"retries"}),
        (Trouble(breaks_after=0), {"retries"}),
        (Trouble(breaks_after=100_000), {"retries"}),
        (Trouble(stalls_after=0), {"hedges", "hedges_won"}),
        (Trouble(stalls_after=100_000), {"hedges", "hedges_won"}),
        (Trouble(slowness=500.0), {"hedges", "hedges_won"}),
    ],
    ids=["503", "429", "reset", "reset-in-body", "truncated", "stall", "stall-in-body", "slow"],
)
@simulated
async def test_one_request_in_ten(trouble: Trouble, counted: set[str]) -> None:
    statistics, seconds = await deliver(some(0.1, trouble))
    for name in counted:
        assert statistics[name] > 0, name
    assert statistics["hedges"] <= 1 + 0.05 * statistics["requests"]
    assert seconds < 5 * SILENCE


@simulated
async def test_a_body_that_breaks_off_goes_on_at_its_last_byte() -> None:
    statistics, _ = await deliver(some(0.3, Trouble(breaks_after=300_000)))
    assert statistics["bytes_read"] == statistics["bytes_used"]


@simulated
async def test_a_storm_of_503_shrinks_the_number_of_requests() -> None:
    loop = asyncio.get_running_loop()

    def storm(*_: object) -> Trouble:
        return Trouble(refused=SLOW_DOWN) if loop.time() < 3.0 else NO_TROUBLE

    statistics, seconds = await deliver(storm)
    assert 3.0 < seconds < 20.0
    assert statistics["concurrency"] < 64
    assert statistics["concurrency_reason"]
    assert statistics["hedges"] <= 1 + 0.05 * statistics["requests"]


@simulated
async def test_retry_after_is_honoured() -> None:
    statistics, seconds = await deliver(first(8, Trouble(refused=WAIT_TWO)))
    assert statistics["throttled"] == 8
    assert 2.0 < seconds < 8.0


@simulated
async def test_an_outage_of_twenty_seconds() -> None:
    """Everything that is under way breaks, and nothing is answered for a while."""
    loop = asyncio.get_running_loop()

    def outage(number: int, *_: object) -> Trouble:
        if number < 40:
            return Trouble(breaks_after=100_000)
        return Trouble(refused=RESET) if loop.time() < 20.0 else NO_TROUBLE

    statistics, seconds = await deliver(outage)
    assert 20.0 < seconds < 40.0
    assert statistics["retries"] < 64 + 10 * seconds, "no more than the rate of retries"
    assert statistics["bytes_read"] <= 1.1 * statistics["bytes_used"]


@simulated
async def test_one_stall_in_a_hundred_never_shows() -> None:
    statistics, _ = await deliver(some(0.01, Trouble(stalls_after=0, stall=10.0)), most_wait=1.0)
    assert statistics["hedges_won"] > 0
    assert statistics["cut"] == 0


@simulated
async def test_a_store_that_drips_is_cut_and_given_up() -> None:
    """A byte now and then is no life: it would take years."""
    error = await fail(lambda *_: Trouble(slowness=60e6 / 10), stall_timeout=60.0)
    assert isinstance(error, StoreUnavailable)
    assert "fetch stalls" in str(error)


@pytest.mark.parametrize("offset", [0, 9, 12, 500, SIZE + 15, 5 * (SIZE + 16) + 20])
@simulated
async def test_a_byte_that_is_wrong_once_is_read_again(offset: int) -> None:
    seen: list[int] = []

    def flip(number: int, url: str, start: int, stop: int) -> Trouble:
        if url == "o003" and start <= offset < stop and not seen:
            seen.append(number)
            return Trouble(flips=offset)
        return NO_TROUBLE

    statistics, _ = await deliver(flip)
    assert statistics["refetched"] == 1
    assert statistics["retries"] == 0


@simulated
async def test_a_byte_that_stays_wrong_is_corrupt() -> None:
    error = await fail(lambda _, url, *__: Trouble(flips=500) if url == "o003" else NO_TROUBLE)
    assert isinstance(error, CorruptRecord)
    assert (error.url, error.offset, error.record) == ("o003", 0, 0)


@pytest.mark.parametrize(
    "error",
    [
        AccessDenied("the signature has expired", url="o"),
        ObjectNotFound("there is no such object", url="o"),
        ObjectChanged("this run reads version 1, the store now has 2", url="o"),
        StoreMisbehaved("the answer's Content-Range is wrong", url="o"),
    ],
)
@simulated
async def test_what_will_not_pass_fails_at_once_and_by_type(error: StoreError) -> None:
    loop = asyncio.get_running_loop()
    started = loop.time()
    found = await fail(first(1, Trouble(refused=error)))
    assert (type(found), str(found)) == (type(error), str(error.at(0)))
    assert loop.time() - started < 1.0


@simulated
async def test_a_store_that_never_answers_is_given_up_soon() -> None:
    loop = asyncio.get_running_loop()
    started = loop.time()
    error = await fail(lambda *_: Trouble(refused=RESET))
    assert "reset" in str(error)
    assert loop.time() - started < 2 * PATIENCE_AT_START


@simulated
async def test_silence_for_ever_is_an_error_that_names_the_stage() -> None:
    loop = asyncio.get_running_loop()

    def dead(*_: object) -> Trouble:
        return Trouble(stalls_after=0) if loop.time() > 0.1 else NO_TROUBLE

    error = await fail(dead, stall_timeout=40.0, memory_budget="16MiB")
    assert "fetch stalls" in str(error)
    assert "40 s" in str(error)


TROUBLES = st.lists(
    st.sampled_from(
        [
            NO_TROUBLE,
            Trouble(refused=SLOW_DOWN),
            Trouble(refused=WAIT_TWO),
            Trouble(refused=RESET),
            Trouble(breaks_after=1),
            Trouble(breaks_after=400_000),
            Trouble(stalls_after=0, stall=8.0),
            Trouble(stalls_after=200_000),
            Trouble(slowness=30.0),
        ]
    ),
    max_size=60,
)


@settings(max_examples=examples(20), deadline=None)
@given(TROUBLES, st.sampled_from([1, 3, 8]), st.sampled_from([2, 64, "auto"]))
def test_any_mixture(troubles: list[Trouble], lanes: int, requests: int | str) -> None:
    @simulated
    async def mixture() -> None:
        store, _ = build([(60, 70_000)] * SHARDS)
        store.trouble = lambda number, *_: (
            troubles[number] if number < len(troubles) else NO_TROUBLE
        )
        dataset = dataset_over(
            store, known=False, lanes=lanes, max_concurrency=requests, batch_size=7
        )
        run = dataset.run(rank=0, world_size=1, batch_size=7, position=None)
        batches = []
        async with run:
            while True:
                try:
                    batches.append(await run.receive())
                except EndOfStream:
                    break
        assert sorted(identities(batches)) == [(s, r) for s in range(SHARDS) for r in range(60)]
        check_statistics(run, store)
        await dataset.aclose()

    with pytest.MonkeyPatch.context() as patch:
        set_executors(patch)
        mixture()
