"""Single ranges in simulated time: when a hedge is sent, and what becomes of it."""

from __future__ import annotations

import asyncio
import threading
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast
from unittest.mock import patch

import numpy as np
import pytest

from streamrec.errors import StoreUnavailable
from streamrec.pipeline.fetch.range_downloader import (
    HEDGE_AGAIN,
    RECENT,
    SILENCE,
    AwaitedShards,
    RangeDownloader,
)
from streamrec.pipeline.fetch.range_queue import RangeRead, Shards
from streamrec.plan.order.shard_order import Extent
from streamrec.plan.reading.concurrency import (
    FEWEST_TIMES,
    MOST_AT_ONCE,
    QUIET,
    SHORTEST,
    UNKNOWN,
    UNKNOWN_WHOLE,
)
from streamrec.plan.reading.ranges import RangeRequest
from streamrec.stores.cache.cached_store import CachedStore
from streamrec.stores.cache.piece_cache import PieceCache
from streamrec.stores.cache.shelves import ProcessMemory
from tests.pipeline.simulated_store import NO_TROUBLE, SimulatedStore, Trouble, simulated
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamrec.stores.base.protocol import Store
    from streamrec.stores.cache.shelves import Piece
    from streamrec.stores.open import Stores
    from streamrec.values.columns import ByteArray

SIZE = 1 << 20
LATENCY = 0.05
DATA = Random(1).randbytes(SIZE)
STALL = Trouble(stalls_after=0)
BROKEN = Trouble(refused=StoreUnavailable("the connection broke"))
HALF_STALL = Trouble(stalls_after=SIZE // 2)


class Scene:
    """A downloader of one object from a store that fails the first requests of a range."""

    def __init__(self, *, bandwidth: float = 60e6, stall_timeout: float = 300.0) -> None:
        self.asked_at: list[float] = []
        self.troubles: list[Trouble] = []
        self.moves = 0
        self.store = SimulatedStore(
            {"o": DATA}, latency=LATENCY, bandwidth=bandwidth, piece=64 << 10, trouble=self._trouble
        )
        self.lends: Callable[[], bool] = lambda: True
        self.downloader = RangeDownloader(
            Shards(["o"]), self.store, stall_timeout, Random(1), self._lend
        )

    async def get(self, *troubles: Trouble) -> float:
        """Download the object, and return the seconds that it took."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        self.troubles, self.asked_at = list(troubles), []
        read = RangeRead(RangeRequest(Extent(0, 0, 0), 0, SIZE), memory(SIZE))
        await self.downloader.download(read, self._moved)
        assert (read.done, read.error) == (True, None)
        assert read.memory.tobytes() == DATA
        assert self.store.open_bodies == 0, "who has lost is cancelled and waited for"
        return loop.time() - started

    async def learn(self) -> float:
        """Download often enough to learn how long requests take."""
        return [await self.get() for _ in range(FEWEST_TIMES)][-1]

    @property
    def hedges(self) -> tuple[int, int, int]:
        """The counts of all hedges, of those that won and of those that lost."""
        counts = self.downloader.counts
        return counts["hedges"], counts["hedges_won"], counts["hedges_lost"]

    def _trouble(self, *_: object) -> Trouble:
        self.asked_at.append(asyncio.get_running_loop().time())
        return self.troubles.pop(0) if self.troubles else NO_TROUBLE

    def _lend(self, _: RangeRead, size: int) -> ByteArray | None:
        return memory(size) if self.lends() else None

    def _moved(self) -> None:
        self.moves += 1


def memory(size: int) -> ByteArray:
    return np.empty(size, np.uint8)


@simulated
async def test_a_request_is_learned_with_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    learned: list[float] = []
    await scene.get()  # the clock does not stand at zero any more
    monkeypatch.setattr(
        scene.downloader.hedging, "finished", lambda _, seconds, __: learned.append(seconds)
    )
    seconds = await scene.get()
    assert learned == [pytest.approx(seconds, abs=1e-6)]


@pytest.mark.parametrize("trouble", [STALL, HALF_STALL])
@simulated
async def test_silence_is_hedged_before_anything_is_known(trouble: Trouble) -> None:
    scene = Scene()
    usual = LATENCY + SIZE / 60e6
    assert await scene.get(trouble) <= UNKNOWN + 2 * usual
    assert scene.hedges == (1, 1, 0)


@pytest.mark.parametrize("trouble", [STALL, HALF_STALL])
@simulated
async def test_a_stall_on_a_slow_link_is_noticed_by_its_silence(trouble: Trouble) -> None:
    """All requests take a second, but none is silent for long."""
    scene = Scene(bandwidth=SIZE)
    usual = await scene.learn()
    assert usual > 1.0
    started = asyncio.get_running_loop().time()
    await scene.get(trouble)
    assert scene.asked_at[1] - started <= usual / 2 + 0.4
    assert scene.hedges == (1, 1, 0)


@simulated
async def test_the_hedge_asks_for_what_is_missing() -> None:
    scene = Scene()
    await scene.learn()
    await scene.get(HALF_STALL)
    assert scene.store.asked[-1] == ("o", SIZE // 2, SIZE)
    assert scene.downloader.counts["bytes_read"] == (FEWEST_TIMES + 1) * SIZE


@simulated
async def test_a_hedge_that_stalls_too_is_followed_by_another() -> None:
    scene = Scene()
    usual = await scene.learn()
    for _ in range(100):  # hedges are a share of the requests
        await scene.get()
    patience = scene.downloader.hedging.silence(SIZE)
    assert patience <= 3 * LATENCY + SHORTEST
    seconds = await scene.get(STALL, STALL, STALL)
    assert seconds <= 3 * patience + 3 * HEDGE_AGAIN + usual + LATENCY
    assert scene.hedges == (3, 1, 2)


@simulated
async def test_requests_that_are_slow_all_at_once_are_hedged_a_few_at_a_time() -> None:
    scene = Scene()
    for _ in range(15):
        await scene.learn()
    count = 2 * MOST_AT_ONCE
    reads = [RangeRead(RangeRequest(Extent(0, 0, 0), 0, SIZE), memory(SIZE)) for _ in range(count)]
    scene.troubles, scene.asked_at = [STALL] * count, []
    await asyncio.gather(*(scene.downloader.download(read, lambda: None) for read in reads))
    assert all(read.done for read in reads)
    hedged_at = scene.asked_at[count:]
    assert len(hedged_at) == count
    for earlier, later in zip(hedged_at, hedged_at[MOST_AT_ONCE:], strict=False):
        assert later > earlier + LATENCY


@simulated
async def test_a_loop_that_was_late_gives_a_request_as_much_time_more() -> None:
    """Bytes that the store has sent may still be on their way through the loop."""
    scene = Scene()
    await scene.learn()
    loop = asyncio.get_running_loop()
    clock = loop._clock  # type: ignore[attr-defined]
    late = scene.downloader.hedging.silence(SIZE)

    def busy() -> None:
        clock.now += late

    loop.call_later(late * 0.9, busy)
    started = loop.time()
    await scene.get(STALL)
    assert scene.asked_at[1] - started >= 2.5 * late
    assert scene.hedges == (1, 1, 0)


@simulated
async def test_a_hedge_that_is_asked_to_slow_down_is_the_last_for_a_while() -> None:
    scene = Scene()
    for _ in range(4):
        await scene.learn()
    refused = StoreUnavailable("the store asks to slow down (503)", throttled=True)
    seconds = await scene.get(STALL, Trouble(refused=refused))
    assert QUIET < seconds < QUIET + 1.0
    assert scene.downloader.counts["throttled"] == 1
    assert scene.hedges == (2, 1, 1)


@simulated
async def test_a_first_request_that_comes_back_wins_over_its_hedge() -> None:
    scene = Scene()
    await scene.learn()
    assert await scene.get(Trouble(stalls_after=SIZE // 2, stall=0.4), STALL) < 1.0
    assert scene.hedges == (1, 0, 1)


@simulated
async def test_what_comes_too_slowly_is_hedged_by_its_whole_time() -> None:
    scene = Scene()
    await scene.get(Trouble(slowness=200.0))
    assert UNKNOWN_WHOLE <= scene.asked_at[1] - scene.asked_at[0] <= UNKNOWN_WHOLE + HEDGE_AGAIN
    for _ in range(2):  # hedges are a share of the requests
        await scene.learn()
    await scene.get(Trouble(slowness=200.0))
    assert scene.asked_at[1] - scene.asked_at[0] < 0.5
    assert scene.hedges == (2, 2, 0)


@simulated
async def test_without_memory_there_is_no_hedge_and_with_it_soon() -> None:
    scene = Scene()
    loop = asyncio.get_running_loop()
    scene.lends = lambda: loop.time() > 5.0
    seconds = await scene.get(STALL)
    assert 5.0 < seconds < 5.0 + 2 * HEDGE_AGAIN + 2 * LATENCY + SIZE / 60e6
    assert scene.hedges == (1, 1, 0)


@simulated
async def test_a_loop_that_was_busy_does_not_take_its_own_silence_for_the_stores() -> None:
    """The clock has gone on, and what has come meanwhile is still to be received."""
    scene = Scene()
    await scene.learn()
    loop = asyncio.get_running_loop()
    clock = loop._clock  # type: ignore[attr-defined]

    def busy() -> None:
        clock.now += 2.0

    loop.call_later(LATENCY + SIZE / 60e6 / 2, busy)
    await scene.get()
    assert scene.hedges == (0, 0, 0)


@pytest.mark.parametrize("fault", [NO_TROUBLE, BROKEN])
@simulated
async def test_a_machine_that_slept_does_not_take_a_new_store_for_a_silent_one(
    fault: Trouble,
) -> None:
    """The first bytes came, or the connection was lost, while nobody could look."""
    scene = Scene()
    clock = asyncio.get_running_loop()._clock  # type: ignore[attr-defined]

    def sleep() -> None:
        clock.now += 900.0

    asyncio.get_running_loop().call_later(LATENCY / 2, sleep)
    await scene.get(fault)
    assert len(scene.asked_at) == (1 if fault is NO_TROUBLE else 2)
    assert scene.downloader.counts["cut"] == 0


@simulated
async def test_cancelled_in_mid_race_both_requests_end() -> None:
    scene = Scene()
    task = asyncio.create_task(scene.get(STALL, STALL))
    await asyncio.sleep(UNKNOWN + LATENCY + 0.01)
    assert scene.store.open_bodies == 2
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert scene.store.open_bodies == 0


@simulated
async def test_the_times_of_requests_that_succeed_are_counted() -> None:
    scene = Scene()
    await scene.get(BROKEN)
    await scene.get()
    (operations,) = scene.downloader.timings.to_dict().values()
    first, whole = operations["read"]["first_byte"], operations["read"]["duration"]
    assert sum(first["counts"]) == sum(whole["counts"]) == 2
    # The first piece of 64 KiB comes after the latency, and 1 MiB takes 16 times as long as it.
    assert first["sum"] == pytest.approx(2 * (LATENCY + (64 << 10) / 60e6), rel=0.01)
    assert whole["sum"] == pytest.approx(2 * (LATENCY + SIZE / 60e6), rel=0.01)


@simulated
async def test_bodies_that_break_off_but_move_are_no_stall() -> None:
    """The whole takes 128 s, and 50 s without a byte would end it."""
    scene = Scene(bandwidth=8 << 10, stall_timeout=50.0)
    scene.lends = lambda: False
    breaks = Trouble(breaks_after=SIZE // 4)
    assert await scene.get(breaks, breaks, breaks) > 100.0
    assert scene.downloader.counts["retries"] == 3


@simulated
async def test_a_silent_request_that_cannot_be_hedged_is_cut_and_counted() -> None:
    scene = Scene()
    await scene.get()  # the store has answered before
    scene.lends = lambda: False
    assert SILENCE <= await scene.get(STALL) <= SILENCE + 5.0
    assert scene.hedges == (0, 0, 0)
    counts = scene.downloader.counts
    assert (counts["cut"], counts["retries"]) == (1, 1)


@asynchronous
async def test_a_look_into_a_cache_that_is_cancelled_is_no_request() -> None:
    """As that of the slower of two that hedge; a request of the store counts even so."""
    looks, goes_on = asyncio.Event(), threading.Event()
    cache = PieceCache(ProcessMemory(SIZE), SIZE)
    store = CachedStore(cast("Store", SimulatedStore({"o": DATA}, latency=0.0)), cache)
    stores = cast("Stores", SimpleNamespace(store_for=lambda _: store))
    downloader = RangeDownloader(Shards(["o"]), stores, 300.0, Random(1), lambda *_: None)
    loop = asyncio.get_running_loop()

    def find(*_: object) -> list[Piece]:
        loop.call_soon_threadsafe(looks.set)
        goes_on.wait(60)
        return []

    async def read() -> None:
        async with downloader._open("o", 0, SIZE, '"v"'):
            pass

    with patch.object(cache, "find", find):
        reading = asyncio.create_task(read())
        await looks.wait()
        reading.cancel()
        goes_on.set()
        with pytest.raises(asyncio.CancelledError):
            await reading
    assert downloader.counts["requests"] == downloader.counts["cache_hits"] == 0
    await read()
    assert downloader.counts["requests"] == 1
    cache.close()


class TestAwaitedShards:
    def test_waits_for_a_shard_add_up_with_the_one_that_goes_on(self) -> None:
        shards = AwaitedShards(lambda: 0.0)
        assert shards.longest({}) is None
        for shard, seconds in ((7, 1.0), (8, 1.5), (7, 1.0)):
            shards.add(shard, seconds)
        assert shards.longest({}) == (7, 2.0)
        assert shards.longest({8: 1.0}) == (8, 2.5)

    @pytest.mark.parametrize(("later", "expected"), [(0.9, (7, 1.0)), (1.9, (7, 1.0)), (2.1, None)])
    def test_waits_are_forgotten(self, later: float, expected: tuple[int, float] | None) -> None:
        now = 0.0
        shards = AwaitedShards(lambda: now)
        shards.add(7, 1.0)
        # Looked at on the way, as a report does, or not at all.
        now = min(later, 1.1) * RECENT
        shards.longest({})
        now = later * RECENT
        assert shards.longest({}) == expected
