"""Keeps ranged reads in flight for all lanes, the soonest needed first, within the byte budget."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from streamrec.errors import ObjectChanged, StoreError, StoreUnavailable
from streamrec.flow.pool import Pool
from streamrec.flow.retry import Backoff
from streamrec.plan.position import object_tag
from streamrec.plan.ranges import grown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from streamrec.plan.ranges import LaneRanges, MemoryPlan, RangeRequest
    from streamrec.stores.base import ObjectInfo, Store
    from streamrec.types import Octets

__all__ = ["Fetcher", "LaneFeed", "RangeRead", "Shards"]

SMALLEST_MEMORY = 1 << 16
PATIENCE_AT_START = 15.0
"""Seconds: a store that has never answered is more likely misnamed than down for a moment."""


class OpensStores(Protocol):
    """What the fetcher needs of :class:`streamrec.stores.open.Stores`."""

    def store_for(self, url: str) -> Store:
        """The store that serves the URL."""
        ...


@dataclass(slots=True)
class Shards:
    """The shards' names, and what the store has said about them."""

    urls: Sequence[str]
    sizes: dict[int, int] = field(default_factory=dict)
    etags: dict[int, str | None] = field(default_factory=dict)
    """The pinned version of each object that was listed or read."""
    encodings: dict[int, str] = field(default_factory=dict)
    """The Content-Encoding of objects that are stored with one."""
    expected_tags: dict[int, str] = field(default_factory=dict)
    """The versions that a resumed position was in the middle of, as short tags."""
    _tags: dict[int, str | None] = field(default_factory=dict)
    _hollow: set[int] = field(default_factory=set)

    def hollow(self, shard: int) -> None:
        """A compressed shard turned out to hold nothing: it is as good as empty."""
        self._hollow.add(shard)
        self.sizes[shard] = 0

    def learn(self, shard: int, info: ObjectInfo) -> None:
        """Pin what a response says.

        Raises:
            ObjectChanged: It is not the version that the resumed position was saved from.
        """
        tag = self.expected_tags.pop(shard, None)
        if tag is not None and info.etag is not None and object_tag(info.etag) != tag:
            raise ObjectChanged(
                f"the position was saved in the middle of another version of this object ({tag}) "
                f"than the store has now (ETag {info.etag}); restore the object, or begin anew",
                url=self.urls[shard],
            )
        if info.size is not None and shard not in self._hollow:
            self.sizes[shard] = info.size
        if info.encoding is not None:
            self.encodings[shard] = info.encoding
        self.etags.setdefault(shard, info.etag)

    def tag(self, shard: int) -> str | None:
        """A short tag of the object's version, if it is known."""
        if shard not in self._tags and shard in self.etags:
            self._tags[shard] = object_tag(self.etags[shard])
        return self._tags.get(shard)


@dataclass(slots=True, eq=False)
class RangeRead:
    """A range on its way into memory."""

    request: RangeRequest
    memory: Octets
    filled: int = 0
    """Bytes that have landed."""
    scanned: int = 0
    """Bytes that the scanner has consumed."""
    done: bool = False
    last_failure: StoreError | None = None
    """What was tried again."""
    error: StoreError | None = None
    """Why it was given up."""


@dataclass(slots=True, eq=False)
class LaneFeed:
    """The ranges of one lane: those to come, and those that wait to be scanned."""

    planner: LaneRanges
    size: int
    """Bytes of the next range."""
    ranges: deque[RangeRead] = field(default_factory=deque)
    has_rows: bool = False
    """Whether scanned records wait: kept by the lane."""

    @property
    def first(self) -> RangeRead | None:
        """The range that comes next."""
        return self.ranges[0] if self.ranges else None

    def drop(self) -> None:
        """The first range is used up."""
        self.ranges.popleft()

    @property
    def ahead(self) -> int:
        """Bytes that are asked for and not yet scanned."""
        return sum(len(read.memory) - read.scanned for read in self.ranges)

    @property
    def idle(self) -> bool:
        """Whether the lane has nothing at all: then its head range is due, whatever the budget."""
        return not self.ranges and not self.has_rows

    @property
    def ended(self) -> bool:
        """Whether nothing waits and nothing will come."""
        return not self.ranges and self.planner.ended


class Fetcher:
    """Reads the ranges of all lanes.

    Args:
        shards: What is known about them; learns more.
        stores: Serve the bytes.
        planners: One a lane.
        plan: The byte budget.
        concurrency: The most requests in flight.
        stall_timeout: Seconds for which one range may fail or stand still.
        random: Of the retries' jitter.
    """

    def __init__(
        self,
        shards: Shards,
        stores: OpensStores,
        planners: Sequence[LaneRanges],
        plan: MemoryPlan,
        *,
        concurrency: int,
        stall_timeout: float,
        random: Random,
    ) -> None:
        self.feeds = [LaneFeed(planner, plan.head) for planner in planners]
        self.counts: Counter[str] = Counter()
        self.claimed = 0
        """Bytes of the budget for ranges that are for something else: what is decompressed."""
        self.landed: Callable[[int], None] = _nothing
        """Called with a lane whenever something has landed for it."""
        self._shards = shards
        self._stores = stores
        self._plan = plan
        self._concurrency = concurrency
        self._stall_timeout = stall_timeout
        self._random = random
        self._in_flight = 0
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._awaited = -1
        self._news = asyncio.Event()
        self.pool = Pool(self._released)

    def __repr__(self) -> str:
        ahead = sum(feed.ahead for feed in self.feeds)
        return f"<Fetcher {self._in_flight} in flight, {ahead} bytes ahead, {self.pool!r}>"

    async def run(self) -> None:
        """Keep reading until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._wake.clear()
                self._schedule(group)
                await self._wake.wait()

    def wake(self) -> None:
        """Look again at what should be read: a lane's state or the memory in use has changed."""
        self._wake.set()

    async def wait_for(self, lane: int) -> None:
        """Wait until the lane has news: bytes, another range, its end, or an error."""
        self._awaited = lane
        self._news.clear()
        self._wake.set()
        await self._news.wait()

    def tell(self, lane: int) -> None:
        """The lane has news: who waits for them looks again."""
        if lane == self._awaited:
            self._news.set()

    def statistics(self) -> dict[str, Any]:
        """Counters since the start."""
        return {
            "requests": self.counts["requests"],
            "retries": self.counts["retries"],
            "bytes_read": self.counts["bytes_read"],
            "in_flight": self._in_flight,
            "bytes_in_memory": self.pool.in_use,
        }

    def _schedule(self, group: asyncio.TaskGroup) -> None:
        self.pool.trim(max(0, self._plan.for_ranges - self.claimed - self.pool.in_use))
        order = sorted(range(len(self.feeds)), key=lambda lane: self.feeds[lane].ahead)
        while self._in_flight < self._concurrency:
            started = [lane for lane in order if self._start_next(group, lane)]
            if not started:
                return
            order = sorted(started, key=lambda lane: self.feeds[lane].ahead)

    def _start_next(self, group: asyncio.TaskGroup, lane: int) -> bool:
        feed = self.feeds[lane]
        size = self._allowed_size(feed)
        if size == 0 or self._in_flight >= self._concurrency:
            return False
        request = feed.planner.next(size)
        if request is None:
            self._tell(lane)
            return False
        memory = self.pool.acquire(memory_size(request.stop - request.start))
        read = RangeRead(request, memory[: request.stop - request.start])
        feed.ranges.append(read)
        feed.size = grown(size, self._plan.range_size)
        self._in_flight += 1
        self._tell(lane)
        group.create_task(self._read(lane, read))
        return True

    def _allowed_size(self, feed: LaneFeed) -> int:
        if feed.planner.ended:
            return 0
        owed = sum(other.idle for other in self.feeds) * self._plan.head
        taken = self.pool.in_use + self.claimed
        if taken + memory_size(feed.size) + owed <= self._plan.for_ranges:
            return feed.size
        return self._plan.head if feed.idle else 0

    async def _read(self, lane: int, read: RangeRead) -> None:
        backoff = Backoff(self._random)
        try:
            async with asyncio.timeout(self._patience()) as deadline:
                while not await self._attempt(lane, read, deadline, backoff):
                    pass
        except StoreError as error:
            read.error = error
        except TimeoutError:
            read.error = self._stalled(read)
        finally:
            self._in_flight -= 1
            self._wake.set()
            self._tell(lane)

    async def _attempt(
        self, lane: int, read: RangeRead, deadline: asyncio.Timeout, backoff: Backoff
    ) -> bool:
        self.counts["requests"] += 1
        try:
            await self._receive(lane, read, deadline, backoff)
        except StoreError as error:
            if not error.retryable:
                raise
            self.counts["retries"] += 1
            read.last_failure = error
            await asyncio.sleep(backoff.next(getattr(error, "retry_after", None)))
            return False
        read.done = True
        return True

    async def _receive(
        self, lane: int, read: RangeRead, deadline: asyncio.Timeout, backoff: Backoff
    ) -> None:
        request, shard = read.request, read.request.extent.shard
        url = self._shards.urls[shard]
        store = self._stores.store_for(url)
        begin = request.start + read.filled
        etag = self._shards.etags.get(shard)
        async with store.open_range(url, begin, request.stop, etag=etag) as body:
            self._shards.learn(shard, body.info)
            self._wake.set()  # the size may be what other ranges of the shard waited for
            expected = max(0, min(request.stop, self._shards.sizes[shard]) - request.start)
            view = read.memory.data
            while read.filled < expected:
                landed = await body.readinto(view[read.filled : expected])
                if landed == 0:
                    raise StoreUnavailable("the response ended early", url=url)
                read.filled += landed
                self.counts["bytes_read"] += landed
                backoff.reset()
                deadline.reschedule(self._loop.time() + self._stall_timeout)
                self._tell(lane)

    def _patience(self) -> float:
        if self.counts["bytes_read"]:
            return self._stall_timeout
        return min(self._stall_timeout, PATIENCE_AT_START)

    def _stalled(self, read: RangeRead) -> StoreUnavailable:
        failure = read.last_failure
        return StoreUnavailable(
            f"no byte came from offset {read.request.start + read.filled} on for "
            f"{self._patience():g} s{f' ({failure.message})' if failure else ''}; check the "
            "endpoint and the network, or raise stall_timeout",
            url=self._shards.urls[read.request.extent.shard],
        )

    def _tell(self, lane: int) -> None:
        self.landed(lane)
        self.tell(lane)

    def _released(self) -> None:
        """Called in any thread when memory has come back."""
        if not self._wake.is_set():
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody reads any more
                self._loop.call_soon_threadsafe(self._wake.set)


def _nothing(_: int) -> None:
    """Where nobody wants to know."""


def memory_size(size: int) -> int:
    """What is taken from the pool for a range: a power of two, so that it can be used again."""
    return max(SMALLEST_MEMORY, 1 << (size - 1).bit_length())
