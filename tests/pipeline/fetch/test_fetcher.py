from __future__ import annotations

import asyncio
from collections import Counter, deque
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import chain, count, takewhile
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import AccessDenied, ObjectChanged, ObjectNotFound, StoreUnavailable
from streamrec.flow.pool import Prefaulter
from streamrec.pipeline.fetch import fetcher as fetch
from streamrec.pipeline.fetch import range_downloader
from streamrec.pipeline.fetch.fetcher import MOST_WAITING, MUCH_MISSING, Fetcher
from streamrec.pipeline.fetch.range_queue import Demand, RangeQueue, RangeRead, Shards
from streamrec.plan.order.shard_order import ShardOrder
from streamrec.plan.reading import ranges
from streamrec.plan.reading.concurrency import Concurrency
from streamrec.plan.reading.ranges import (
    KIB,
    LARGEST_FIRST_RANGE,
    WITHIN_RECORD,
    LaneRanges,
    MemoryPlan,
)
from streamrec.stores.base.protocol import ObjectInfo
from tests.pipeline.scripted_store import ScriptedStore
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

MIB = 1 << 20


class Never(Random):
    """A source of jitter that never waits."""

    def uniform(self, a: float, b: float) -> float:
        return 0.0


@dataclass
class Lane:
    """A lane with the same demand at any time."""

    needs: Demand
    record_size: float = 1000

    def demand(self, number: int) -> Demand:
        return self.needs


@asynccontextmanager
async def fetching(
    store: ScriptedStore,
    *,
    lanes: int = 1,
    total: int = 16 * MIB,
    known: bool = False,
    concurrency: int = 64,
    epochs: int | None = 1,
    demand: Demand = Demand(),
    near: bool = False,
    **values: Any,
) -> AsyncIterator[tuple[Fetcher, Shards]]:
    """Run a fetcher of all of a store's objects."""
    shards = Shards(sorted(store.objects))
    if known:
        shards.sizes.update(enumerate(len(store.objects[url]) for url in shards.urls))
    order = ShardOrder(len(shards.urls), lanes)

    def planner(lane: int) -> LaneRanges:
        extents = (order.extent(lane, number) for number in count())
        read = takewhile(lambda extent: extent.epoch != epochs, extents)
        return LaneRanges(read, shards.sizes, order.reach(lane))

    plan = MemoryPlan.divide(total, lanes=lanes, windows=0, near=near)
    queues = [RangeQueue(planner(lane), plan.first_range) for lane in range(lanes)]
    settings = {"stall_timeout": 30.0, "random": Never(), **values}
    limit = Concurrency(concurrency, concurrency)
    fetcher = Fetcher(
        shards, store, queues, [Lane(demand)] * lanes, plan, concurrency=limit, **settings
    )
    task = asyncio.create_task(fetcher.run())
    try:
        yield fetcher, shards
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert store.open_bodies == 0


async def drain(fetcher: Fetcher, lane: int = 0) -> list[tuple[int, bytes]]:
    """Return (shard, bytes) of a lane's ranges in order, freeing each when it is read."""
    out = []
    queue = fetcher.queues[lane]
    while not queue.ended:
        if not queue.ranges or not (queue.ranges[0].done or queue.ranges[0].error):
            await asyncio.sleep(0)  # several lanes are drained at once; only one may `wait_for`
            continue
        read = queue.drop_stored()
        if read.error is not None:
            raise read.error
        out.append((read.request.extent.shard, bytes(read.memory[: read.filled])))
        fetcher.wake()
    return out


def objects(*sizes: int) -> dict[str, bytes]:
    return {f"o{i}": bytes([i + 1]) * size for i, size in enumerate(sizes)}


def joined(parts: list[tuple[int, bytes]]) -> dict[int, bytes]:
    whole: dict[int, bytes] = {}
    for shard, data in parts:
        whole[shard] = whole.get(shard, b"") + data
    return whole


@pytest.mark.parametrize("known", [False, True])
@asynchronous
async def test_every_byte_once_in_order(known: bool) -> None:
    store = ScriptedStore(objects(5 * MIB, 0, 100, 3 * MIB + 1), piece=70_000)
    async with fetching(store, known=known) as (fetcher, shards):
        parts = joined(await drain(fetcher))
    expected = {i: data for i, data in enumerate(store.objects.values()) if data or not known}
    assert parts == expected
    assert shards.sizes == {0: 5 * MIB, 1: 0, 2: 100, 3: 3 * MIB + 1}


@asynchronous
async def test_each_lane_reads_its_own_shards() -> None:
    store = ScriptedStore(objects(*[MIB] * 5))
    async with fetching(store, lanes=2) as (fetcher, _):
        both = await asyncio.gather(drain(fetcher, 0), drain(fetcher, 1))
    assert [sorted(joined(parts)) for parts in both] == [[0, 2, 4], [1, 3]]


@asynchronous
async def test_the_first_range_of_a_lane_is_small_and_the_next_grow() -> None:
    store = ScriptedStore(objects(40 * MIB))
    async with fetching(store, total=1024 * MIB, known=True) as (fetcher, _):
        await drain(fetcher)
    sizes = [stop - start for _, start, stop, _ in store.asked]
    assert sizes[0] == 512 << 10
    assert sizes[:3] == sorted(sizes[:3])
    assert max(sizes) == 8 * MIB


@asynchronous
async def test_new_memory_of_large_ranges_is_prefaulted(monkeypatch: pytest.MonkeyPatch) -> None:
    touched: list[int] = []
    monkeypatch.setattr(Prefaulter, "prefault", lambda _, memory: touched.append(len(memory)))
    store = ScriptedStore(objects(40 * MIB))
    async with fetching(store, total=1024 * MIB, known=True) as (fetcher, _):
        await drain(fetcher)
    assert set(touched) == {8 * MIB}


@asynchronous
async def test_the_thread_that_touches_memory_ends_with_the_fetcher() -> None:
    async with fetching(ScriptedStore(objects(MIB)), known=True) as (fetcher, _):
        await fetcher.aclose()
        assert fetcher._prefaulter.prefault(np.empty(0, np.uint8)) is None


@asynchronous
async def test_more_is_asked_for_when_the_heads_are_answered() -> None:
    store = ScriptedStore(objects(*[4 * MIB] * 4), gate=asyncio.Event())
    assert store.gate
    async with fetching(store, lanes=4, total=256 * MIB, known=True) as (fetcher, _):
        for _ in range(9):
            await asyncio.sleep(0)
        assert [(url, start) for url, start, *_ in store.asked] == [(f"o{i}", 0) for i in range(4)]
        store.gate.set()
        parts = await asyncio.gather(*(drain(fetcher, lane) for lane in range(4)))
    assert joined(list(chain.from_iterable(parts))) == dict(enumerate(store.objects.values()))


@asynchronous
async def test_more_is_asked_for_of_a_store_that_is_far_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its heads have no answer after a while, and the link is idle."""
    monkeypatch.setattr(fetch, "HEADS_ALONE", 0.0)
    store = ScriptedStore(objects(*[4 * MIB] * 4), gate=asyncio.Event())
    assert store.gate
    async with fetching(store, lanes=4, total=256 * MIB, known=True) as (fetcher, _):
        for _ in range(9):
            await asyncio.sleep(0)
        asked = [(url, start) for url, start, *_ in store.asked]
        assert asked[:4] == [(f"o{i}", 0) for i in range(4)]
        assert {url for url, start in asked if start} == {f"o{i}" for i in range(4)}
        store.gate.set()
        parts = await asyncio.gather(*(drain(fetcher, lane) for lane in range(4)))
    assert joined(list(chain.from_iterable(parts))) == dict(enumerate(store.objects.values()))


@asynchronous
async def test_no_more_is_asked_for_of_a_store_that_refuses_heads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetch, "HEADS_ALONE", 0.0)
    store = ScriptedStore(objects(*[4 * MIB] * 4), gate=asyncio.Event())
    counts = Counter(throttled=1)
    async with fetching(store, lanes=4, total=256 * MIB, known=True, counts=counts):
        for _ in range(9):
            await asyncio.sleep(0)
        assert [(url, start) for url, start, *_ in store.asked] == [(f"o{i}", 0) for i in range(4)]


@asynchronous
async def test_no_lane_waits_for_the_head_of_another() -> None:
    """Though a head is less than the first window needs, so that its lane needs more at once."""
    store = ScriptedStore(objects(*[4 * MIB] * 4), gate=asyncio.Event())
    assert store.gate
    demand = Demand(lacks=2 * LARGEST_FIRST_RANGE)
    settings: dict[str, Any] = {"lanes": 4, "total": 256 * MIB, "known": True, "demand": demand}
    async with fetching(store, **settings) as (fetcher, _):
        for _ in range(9):
            await asyncio.sleep(0)
        assert [(url, start) for url, start, *_ in store.asked] == [(f"o{i}", 0) for i in range(4)]
        store.gate.set()
        await asyncio.gather(*(drain(fetcher, lane) for lane in range(4)))


@asynchronous
async def test_the_lane_that_is_answered_first_does_not_take_all() -> None:
    slow = ScriptedStore(objects(*[4 * MIB] * 4), gate=asyncio.Event())
    quick = ScriptedStore(slow.objects)
    slow.store_for = lambda url: quick if url == "o0" else slow  # type: ignore[method-assign]
    assert slow.gate
    async with fetching(slow, lanes=4, total=256 * MIB, known=True) as (fetcher, _):
        for _ in range(99):
            await asyncio.sleep(0)
        assert fetcher.queues[0].answered
        assert len(quick.asked) == 2  # the second is as far away as the others' first
        slow.gate.set()
        await asyncio.gather(*(drain(fetcher, lane) for lane in range(4)))
        assert len(quick.asked) == 5  # a head, and ranges of 1 MiB


@asynchronous
async def test_of_tiny_shards_a_lane_asks_for_as_many_as_a_head_holds() -> None:
    store = ScriptedStore(objects(*[10_000] * 99), gate=asyncio.Event())
    async with fetching(store, total=256 * MIB, known=True):
        for _ in range(9):
            await asyncio.sleep(0)
        assert len(store.asked) == -(-LARGEST_FIRST_RANGE // 10_000)


@asynchronous
@pytest.mark.parametrize(("size", "requests"), [(1400 * KIB, 1), (1600 * KIB, 2)])
async def test_a_shard_that_is_a_bit_larger_than_a_range_is_one_request(
    size: int, requests: int
) -> None:
    store = ScriptedStore(objects(*[size] * 8))
    async with fetching(store, lanes=4, total=256 * MIB, known=True) as (fetcher, _):
        await asyncio.gather(*(drain(fetcher, lane) for lane in range(4)))
    assert fetcher.plan.range_size == MIB
    asked = Counter(url for url, *_ in store.asked)
    # A lane's first shard begins with its head, unless one request reads it.
    first = 1 if requests == 1 else 3
    assert [asked[f"o{shard}"] for shard in range(8)] == [first] * 4 + [requests] * 4


@asynchronous
async def test_shards_of_unknown_size_are_one_request_each_if_they_are_small_and_alike() -> None:
    store = ScriptedStore(objects(*(1400 * KIB + 1000 * shard for shard in range(8))))
    async with fetching(store, lanes=4, total=256 * MIB) as (fetcher, _):
        parts = await asyncio.gather(*(drain(fetcher, lane) for lane in range(4)))
    assert joined(list(chain.from_iterable(parts))) == dict(enumerate(store.objects.values()))
    assert Counter(url for url, *_ in store.asked) == dict.fromkeys(store.objects, 1)


@given(
    st.lists(st.integers(1, 1600 * KIB), min_size=1, max_size=12),
    st.integers(1, 5),
    st.sampled_from([2, 256]),
    st.integers(0, 99),
)
@asynchronous
async def test_small_shards_are_one_request_each_however_little_room_there_is(
    sizes: list[int], lanes: int, megabytes: int, seed: int
) -> None:
    # Not hypothesis' own: how often the loop asks it may depend on timing.
    random = Random(seed)
    store = ScriptedStore(objects(*sizes))
    settings: dict[str, Any] = {"lanes": min(lanes, len(sizes)), "total": megabytes * MIB}
    async with fetching(store, known=True, **settings) as (fetcher, _):
        small, held = fetcher.queues[0].small_shard, deque[RangeRead](maxlen=30)
        parts = []
        while not all(queue.ended for queue in fetcher.queues):
            # The lane that is waited for is any lane, so others keep their memory meanwhile.
            lane = random.choice([k for k, queue in enumerate(fetcher.queues) if not queue.ended])
            queue = fetcher.queues[lane]
            while not (queue.ended or (queue.ranges and queue.ranges[0].done)):
                await fetcher.wait_for(lane)
            if queue.ranges:
                held.append(queue.drop_stored())  # as rows hold it that wait in a window
                parts.append((held[-1].shard, bytes(held[-1].memory)))
    asked = Counter(url for url, *_ in store.asked)
    assert all(asked[url] == 1 for url, data in store.objects.items() if len(data) <= small)
    equal = joined(parts) == dict(enumerate(map(store.objects.get, sorted(store.objects))))
    assert equal  # megabytes, which a failure would compare line by line


@asynchronous
async def test_a_shard_of_one_record_is_one_request_however_little_room_there_is() -> None:
    store, lane = ScriptedStore(objects(*[2 * MIB] * 12)), Lane(Demand(), 2 * MIB - 100)
    async with fetching(store, lanes=4, total=8 * MIB, known=True) as (fetcher, _):
        fetcher.lanes = [lane] * 4
        assert fetcher.queues[0].small_shard < 2 * MIB
        for number in range(12):
            queue = fetcher.queues[number % 4]
            while not (queue.ranges and queue.ranges[0].done):
                await fetcher.wait_for(number % 4)
            assert queue.drop_stored().shard == number
            assert fetcher.pool.in_use <= fetcher.plan.for_ranges + 2 * MIB
    assert {url: stop - start for url, start, stop, _ in store.asked} == dict.fromkeys(
        store.objects, 2 * MIB
    )
    assert len(store.asked) == 12


@asynchronous
async def test_a_large_record_at_a_time_does_not_make_a_large_shard_one_request() -> None:
    store = ScriptedStore(objects(40 * MIB))
    async with fetching(store, total=1024 * MIB, known=True) as (fetcher, _):
        fetcher.lanes = [Lane(Demand(), 39 * MIB)]
        await drain(fetcher)
    assert max(stop - start for _, start, stop, _ in store.asked) == 8 * MIB


@asynchronous
async def test_the_version_is_pinned_by_the_first_answer() -> None:
    store = ScriptedStore(objects(3 * MIB), etags={"o0": '"abc"'})
    async with fetching(store) as (fetcher, shards):
        await drain(fetcher)
    assert [etag for _, _, _, etag in store.asked] == [None] + ['"abc"'] * (len(store.asked) - 1)
    assert shards.etags[0] == '"abc"'


@asynchronous
async def test_a_body_that_breaks_off_goes_on_at_its_last_byte() -> None:
    broken = StoreUnavailable("reset")
    store = ScriptedStore(objects(MIB), faults=deque([(1000, broken), (500, broken), None]))
    async with fetching(store, known=True, concurrency=1) as (fetcher, _):
        assert joined(await drain(fetcher)) == {0: store.objects["o0"]}
        assert fetcher.statistics()["retries"] == 2
        assert fetcher.statistics()["bytes_read"] == MIB
    starts = [start for _, start, _, _ in store.asked]
    assert {1000, 1500} <= set(starts)


@asynchronous
async def test_bytes_are_news_before_their_range_is_whole() -> None:
    store = ScriptedStore(objects(3000), piece=1000)
    seen = [0]
    async with fetching(store, known=True) as (fetcher, _):
        while seen[-1] < 3000:
            await fetcher.wait_for(0)
            seen.append(fetcher.queues[0].ranges[0].filled)
    assert {1000, 2000} <= set(seen)


@asynchronous
async def test_what_will_not_pass_fails_at_once() -> None:
    store = ScriptedStore(objects(MIB), faults=deque([ObjectNotFound("gone", url="o0")]))
    async with fetching(store) as (fetcher, _):
        with pytest.raises(ObjectNotFound, match="gone") as caught:
            await drain(fetcher)
        assert caught.value.fields() == {"url": "o0", "offset": 0}
        assert fetcher.statistics()["retries"] == 0


@asynchronous
async def test_a_store_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_downloader, "PATIENCE_AT_START", 0.02)
    refused = StoreUnavailable("connection refused")
    store = ScriptedStore(objects(MIB), faults=deque([refused] * 10**5))
    async with fetching(store) as (fetcher, _):
        with pytest.raises(
            StoreUnavailable, match=r"no byte came.*connection refused.*endpoint"
        ) as e:
            await drain(fetcher)
    assert e.value.fields() == {"url": "o0", "offset": 0}


@asynchronous
async def test_an_error_names_the_byte_that_is_missing() -> None:
    store = ScriptedStore(objects(MIB))
    store.faults.extend([(1000, StoreUnavailable("reset")), AccessDenied("no", url="o0")])
    async with fetching(store, concurrency=1) as (fetcher, _):
        with pytest.raises(AccessDenied) as caught:
            await drain(fetcher)
    assert caught.value.fields() == {"url": "o0", "offset": 1000}


@asynchronous
async def test_an_error_that_two_ranges_share_names_the_place_in_each() -> None:
    """One of a token, say."""
    shared = AccessDenied("no", url="o0")
    reset = StoreUnavailable("reset")
    store = ScriptedStore(objects(100, 100))
    store.faults.extend([(10, reset), shared, (20, reset), shared])
    async with fetching(store, known=True, lanes=2, concurrency=1) as (fetcher, _):
        lanes = [drain(fetcher, lane) for lane in range(2)]
        errors = await asyncio.gather(*lanes, return_exceptions=True)
    assert [getattr(error, "offset", None) for error in errors] == [10, 20]
    assert shared.offset is None


@asynchronous
async def test_a_store_that_hangs_is_given_up_after_the_stall_timeout() -> None:
    store = ScriptedStore(objects(MIB), gate=asyncio.Event())
    async with fetching(store, stall_timeout=0.02) as (fetcher, _):
        with pytest.raises(StoreUnavailable, match="raise stall_timeout") as caught:
            await drain(fetcher)
    assert caught.value.fields() == {"url": "o0", "offset": 0}


@asynchronous
async def test_concurrency_is_bounded() -> None:
    store = ScriptedStore(objects(*[MIB] * 30))
    async with fetching(store, lanes=10, concurrency=3, total=64 * MIB) as (fetcher, _):
        await asyncio.gather(*(drain(fetcher, lane) for lane in range(10)))
    assert store.most_open == 3


@asynchronous
async def test_memory_stays_within_the_budget_while_nobody_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ranges, "FIRST_READ_AHEAD", ranges.LARGEST_READ_AHEAD)
    store = ScriptedStore(objects(*[30 * MIB] * 4))
    async with fetching(store, lanes=4, total=32 * MIB, known=True) as (fetcher, _):
        for _ in range(2000):
            await asyncio.sleep(0)
        assert 8 * MIB < fetcher.pool.in_use <= 24 * MIB
        assert "0 in flight" in repr(fetcher)


@asynchronous
async def test_what_batches_overdraw_is_not_read_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "FIRST_READ_AHEAD", ranges.LARGEST_READ_AHEAD)
    store = ScriptedStore(objects(*[30 * MIB] * 4))
    async with fetching(
        store, lanes=4, total=32 * MIB, known=True, overdrawn=lambda _: 16 * MIB
    ) as (
        fetcher,
        _,
    ):
        for _ in range(2000):
            await asyncio.sleep(0)
        assert 4 * MIB < fetcher.pool.in_use <= 8 * MIB


@asynchronous
async def test_what_batches_overdraw_leaves_the_first_read_ahead() -> None:
    """It comes off the whole budget, of which little is read ahead at first."""
    store = ScriptedStore(objects(*[90 * MIB] * 2))
    async with fetching(
        store, lanes=2, total=1024 * MIB, known=True, overdrawn=lambda _: 512 * MIB
    ) as (fetcher, _):
        for _ in range(2000):
            await asyncio.sleep(0)
        assert fetcher.pool.in_use > 64 * MIB


@asynchronous
async def test_the_largest_record_tells_what_batches_will_overdraw() -> None:
    """Before it has its memory, and so before there is a batch of it."""
    store, seen = ScriptedStore(objects(90 * MIB)), []

    def overdrawn(largest: float) -> int:
        seen.append((largest, queue.large is not None and queue.large.memory is None))
        return 0

    async with fetching(store, total=256 * MIB, overdrawn=overdrawn) as (fetcher, _):
        (queue,) = fetcher.queues
        await asyncio.sleep(0)
        assert queue.find_large(queue.ranges[0].request.extent, 0, 60 * MIB) is not None
        fetcher.wake()
        for _ in range(9):
            await asyncio.sleep(0)
    assert seen[0] == (Lane.record_size, False)
    assert (60 * MIB, True) in seen


@asynchronous
async def test_more_is_read_ahead_only_for_a_consumer_that_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ranges, "FIRST_READ_AHEAD", 8 * MIB)
    store = ScriptedStore(objects(90 * MIB))
    async with fetching(store, total=1024 * MIB, known=True) as (fetcher, _):
        for _ in range(999):
            await asyncio.sleep(0)
        assert fetcher.pool.in_use <= 8 * MIB + LARGEST_FIRST_RANGE
        for _ in range(8):
            await wait_in_vain(fetcher, 0)
        for _ in range(999):
            await asyncio.sleep(0)
        assert 12 * MIB < fetcher.pool.in_use <= 2.6 * 8 * MIB + LARGEST_FIRST_RANGE


@asynchronous
async def test_ranges_are_read_ahead_beside_memory_for_decompressed_data() -> None:
    store = ScriptedStore(objects(90 * MIB))
    async with fetching(store, total=1024 * MIB, known=True) as (fetcher, _):
        fetcher.reserve(fetcher.plan.for_inflated)
        for _ in range(999):
            await asyncio.sleep(0)
        assert fetcher.pool.in_use > 64 * MIB


async def wait_in_vain(fetcher: Fetcher, lane: int) -> None:
    waiting = asyncio.create_task(fetcher.wait_for(lane))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])


@asynchronous
async def test_of_tiny_shards_without_end_only_so_many_are_read_ahead() -> None:
    store = ScriptedStore(objects(100, 100))
    async with fetching(store, lanes=2, total=1024 * MIB, epochs=None, known=True) as (fetcher, _):
        for _ in range(50 * MOST_WAITING):
            await asyncio.sleep(0)
        assert [len(queue.ranges) for queue in fetcher.queues] == [MOST_WAITING] * 2
        assert [queue.ahead for queue in fetcher.queues] == [100 * MOST_WAITING] * 2
        fetcher.queues[0].drop()
        assert fetcher.queues[0].ahead == 100 * (MOST_WAITING - 1)


@asynchronous
async def test_of_tiny_files_more_are_read_ahead_only_for_a_consumer_that_waits() -> None:
    store = ScriptedStore(objects(100, 100))
    async with fetching(store, lanes=2, epochs=None, known=True, near=True) as (fetcher, _):
        for most in (3, 6, 12, 24):
            for _ in range(50 * most):
                await asyncio.sleep(0)
            assert [len(queue.ranges) for queue in fetcher.queues] == [most] * 2
            used = 0
            while fetcher._most_waiting == most:
                await wait_in_vain(fetcher, 0)
                used += 1
                for queue in fetcher.queues:
                    queue.drop()
                fetcher.wake()
                for _ in range(50):
                    await asyncio.sleep(0)
            assert used <= most + 2  # about as many as a lane may have


@asynchronous
async def test_a_starving_lane_gets_its_head_whatever_the_budget() -> None:
    """All memory is held by one consumer, and another lane needs a byte: it comes."""
    store = ScriptedStore(objects(30 * MIB, 30 * MIB))
    async with fetching(store, lanes=2, total=8 * MIB, known=True) as (fetcher, _):
        held = []
        for _ in range(3):
            while not fetcher.queues[0].ranges or not fetcher.queues[0].ranges[0].done:
                await fetcher.wait_for(0)
            held.append(fetcher.queues[0].drop_stored().memory)
            fetcher.wake()
        while not fetcher.queues[1].ranges or not fetcher.queues[1].ranges[0].done:
            await fetcher.wait_for(1)
        del held


@asynchronous
async def test_a_starving_lane_gets_a_whole_record_by_one_request() -> None:
    """A head and then the rest would take the latency twice, for each record."""
    store = ScriptedStore(objects(30 * MIB))
    record = 400 * KIB
    async with fetching(store, lanes=1, total=8 * MIB, known=True) as (fetcher, _):
        lane = fetcher.lanes[0]
        assert isinstance(lane, Lane)
        lane.record_size = record
        queue, held = fetcher.queues[0], []
        while fetcher.pool.in_use <= fetcher.plan.for_ranges:
            await fetcher.wait_for(0)
            while queue.ranges and queue.ranges[0].done:
                held.append(queue.drop_stored().memory)
        assert len(queue.ranges[-1].memory) > max(record, fetcher.plan.first_range)


@asynchronous
async def test_a_starving_lane_gets_a_small_shard_whole_whatever_the_budget() -> None:
    store = ScriptedStore(objects(700 * KIB))
    async with fetching(store, total=8 * MIB, known=True, epochs=None) as (fetcher, _):
        queue, held = fetcher.queues[0], []
        while fetcher.pool.in_use <= fetcher.plan.for_ranges:
            await fetcher.wait_for(0)
            while queue.ranges and queue.ranges[0].done:
                held.append(queue.drop_stored().memory)
        assert {stop - start for _, start, stop, _ in store.asked} == {700 * KIB}


@asynchronous
async def test_a_hedge_that_finds_no_memory_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: object) -> None:
        raise MemoryError

    store = ScriptedStore(objects(MIB), gate=asyncio.Event())
    async with fetching(store, known=True) as (fetcher, _):
        await asyncio.sleep(0)
        read = fetcher.queues[0].ranges[0]
        lent = fetcher._lend(read, 1000)
        assert lent is not None
        assert len(lent) == 1000
        monkeypatch.setattr(fetcher.pool, "acquire", exhausted)
        assert fetcher._lend(read, 1000) is None


@asynchronous
async def test_only_the_lane_that_is_waited_for_gets_a_hedge_beyond_the_budget() -> None:
    store = ScriptedStore(objects(30 * MIB, 30 * MIB), gate=asyncio.Event())
    async with fetching(store, lanes=2, total=8 * MIB, known=True) as (fetcher, _):
        await asyncio.sleep(0)
        first, second = (queue.ranges[0] for queue in fetcher.queues)
        assert fetcher._lend(first, 8 * MIB) is None
        waiting = asyncio.create_task(fetcher.wait_for(1))
        await asyncio.sleep(0)
        assert fetcher._lend(first, 8 * MIB) is None
        lent = fetcher._lend(second, 8 * MIB)
        assert lent is not None
        assert len(lent) == 8 * MIB
        waiting.cancel()


@asynchronous
async def test_the_end_of_a_request_lets_the_next_begin_where_requests_are_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody has to ask for it, and no timer does."""
    monkeypatch.setattr(fetch, "ADJUST_SECONDS", 3600)
    store = ScriptedStore(objects(*[1000] * 8))
    async with fetching(store, lanes=8, known=True, concurrency=1) as (fetcher, _):
        all_there = asyncio.Event()

        def received() -> None:
            if all(queue.ranges and queue.ranges[0].done for queue in fetcher.queues):
                all_there.set()

        for queue in fetcher.queues:
            monkeypatch.setattr(queue, "changed", received)
        await asyncio.wait_for(all_there.wait(), 30)
    assert store.most_open == 1


@asynchronous
async def test_cancelling_in_the_middle_closes_every_body() -> None:
    store = ScriptedStore(objects(*[MIB] * 8), gate=asyncio.Event())
    async with fetching(store, lanes=8) as (fetcher, _):
        for _ in range(20):
            await asyncio.sleep(0)
        assert store.open_bodies == 8
        assert fetcher.statistics()["in_flight"] == 8


def test_learning_another_size_than_the_position_had() -> None:
    shards = Shards(["o0", "o1", "o2"], sizes={2: 7})
    for shard in range(2):
        shards.expect(shard, 5)
    with pytest.raises(ObjectChanged, match="of 5 bytes, but it now has 6"):
        shards.learn(0, ObjectInfo("o0", 6, '"same"'))
    shards.learn(1, ObjectInfo("o1", 5, '"other"'))
    with pytest.raises(ObjectChanged, match="of 5 bytes, but it now has 7"):
        shards.expect(2, 5)


@asynchronous
async def test_the_shard_that_is_waited_for_is_named() -> None:
    store = ScriptedStore(objects(300, 300))
    async with fetching(store, lanes=2, known=True) as (fetcher, _):
        assert fetcher.statistics()["awaited_shard"] is None
        while not fetcher.queues[1].ranges or not fetcher.queues[1].ranges[0].done:
            await fetcher.wait_for(1)
        assert fetcher.statistics()["awaited_shard"]["url"] == sorted(store.objects)[1]


@asynchronous
async def test_nothing_delays_a_large_record_that_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ranges, "FIRST_READ_AHEAD", 2 * MIB)
    gate = asyncio.Event()
    gate.set()
    store = ScriptedStore(objects(100 * MIB, 100 * MIB), gate=gate)
    async with fetching(store, lanes=2, total=1024 * MIB, known=True) as (fetcher, _):
        for _ in range(99):
            await asyncio.sleep(0)
        gate.clear()
        queue, before = fetcher.queues[0], len(store.asked)
        assert queue.find_large(queue.ranges[0].request.extent, 0, 60 * MIB) is not None
        fetcher._read_ahead.size = 512 * MIB
        waiting = asyncio.create_task(fetcher.wait_for(0))
        for _ in range(99):
            await asyncio.sleep(0)
        assert len(store.asked) > before + MUCH_MISSING // WITHIN_RECORD
        assert {url for url, *_ in store.asked[before:]} == {"o0"}
        assert max(stop for _, _, stop, _ in store.asked[before:]) == 60 * MIB
        gate.set()
        await waiting
        for _ in range(999):
            await asyncio.sleep(0)
        assert queue.missing == 0
        fetcher.wake()
        for _ in range(99):
            await asyncio.sleep(0)
        assert {url for url, *_ in store.asked[before:]} == {"o0", "o1"}
