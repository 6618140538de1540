"""The fetcher: it keeps ranged reads in flight for all lanes, the soonest needed first."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from dataclasses import KW_ONLY, dataclass, field, replace
from heapq import heapify, heappop, heapreplace
from itertools import cycle
from typing import TYPE_CHECKING, Any

from streamrec.errors import OutOfMemory
from streamrec.flow.cleanup import apart
from streamrec.flow.pool import HUGE, Pool, Prefaulter, size_class
from streamrec.flow.timings import Timings
from streamrec.masking import masked
from streamrec.pipeline.fetch.range_downloader import AwaitedShards, OpensStores, RangeDownloader
from streamrec.pipeline.fetch.range_queue import A_BIT_MORE, RangeRead
from streamrec.pipeline.terms.memory_needs import FETCHED
from streamrec.plan.reading.ranges import (
    LARGEST_FIRST_SHARD,
    SMALLEST_FIRST_RANGE,
    WITHIN_RECORD,
    ReadAhead,
    grown,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from streamrec.flow.stages import Collector
    from streamrec.pipeline.fetch.range_queue import (
        Consumer,
        Demand,
        LargeRecord,
        RangeQueue,
        Shards,
    )
    from streamrec.plan.reading.concurrency import Concurrency
    from streamrec.plan.reading.next_use import NextUse
    from streamrec.plan.reading.ranges import MemoryPlan, RangeMemory, RangeRequest
    from streamrec.values.columns import ByteArray


ADJUST_SECONDS = 0.25
"""Seconds between adjustments of the concurrency: a few times the life of a request."""
MOST_WAITING = 256
"""The most ranges that one lane may have: as many as a single lane may have in flight. The budget
would hold tens of thousands of tiny shards, and it does not count the objects around each."""

HEADS_ALONE = 0.1
"""Seconds for which only lanes' heads are asked for. A store that has not answered by then is far,
and other ranges do not delay them: at 300 ms, batches that need more come 200 ms sooner. One that
has refused requests is busy, and would give other ranges the places of heads."""

MUCH_MISSING = 8 * WITHIN_RECORD
"""Bytes of a large record that the consumer waits for, while no other record is asked for. Of four
lanes with records of 140 MB, the first came after 1.2 s with the others, and after 0.5 s alone."""

SHARED_BUDGETS = 2
"""Shared memory is this many times the budget: what is not used takes none, and pieces of many
sizes leave gaps."""


@dataclass(eq=False, repr=False)
class Fetcher:
    """A reader of all lanes' ranges, the soonest needed first, within the byte budget.

    Args:
        shards: The facts about the shards; responses add to them.
        stores: The stores of the shards.
        queues: The queues to fill, one for each sublane.
        lanes: The lanes, once the fetcher runs. Sublane ``s`` is a part of lane ``s mod lanes``.
        plan: The byte budget.
        concurrency: Decides how many requests are in flight.
        stall_timeout: Seconds for which one range may fail or make no progress.
        random: The source of the retries' jitter.
        next_use: The forecast to tell which ranges are read; ``None``: nobody asks it.
        counts: The run's counters, to count on.
        timings: The run's times of requests, to count on.
        spans: Collects spans of the requests; ``None``: nobody does.
        overdrawn: Returns the bytes of the budget's ranges that decoded batches take, given the
            size of the largest record in bytes.
    """

    shards: Shards
    stores: OpensStores
    queues: Sequence[RangeQueue]
    lanes: Sequence[Consumer]
    plan: MemoryPlan
    _: KW_ONLY
    concurrency: Concurrency
    stall_timeout: float
    random: Random
    next_use: NextUse | None = None
    counts: Counter[str] = field(default_factory=Counter)
    timings: Timings = field(default_factory=Timings)
    spans: Collector | None = None
    overdrawn: Callable[[float], int] = lambda _: 0
    _reserved: int = 0
    _in_flight: int = 0
    _awaited: int = -1
    _awaited_since: float = 0.0
    _together_at: float = 0.0  # the time from which on other ranges are asked for beside heads
    _turn: int = 0  # the lane that was awaited last
    _others_do: bool = False
    _at_limit: bool = False  # the concurrency kept the last schedule from asking for more
    _limited: bool = False
    _starved: bool = False
    _full: bool = False  # a lane had no room in the last schedule
    _was_full: bool = False  # or in an earlier one of the interval
    _is_urgent: bool = False  # the consumer waits for much of a large record

    def __post_init__(self) -> None:
        self._prefaulter = Prefaulter()
        self._shared = self.stores.share_memory(SHARED_BUDGETS * self.plan.total)
        self.pool = Pool(
            self._schedule_again,
            self._prefaulter.prefault,
            *([] if self._shared is None else [self._shared.allocate]),
        )
        self._downloader = RangeDownloader(
            shards=self.shards,
            stores=self.stores,
            stall_timeout=self.stall_timeout,
            random=self.random,
            lend=self._lend,
            counts=self.counts,
            timings=self.timings,
            spans=self.spans,
        )
        self._loop = asyncio.get_running_loop()
        self._shards_awaited = AwaitedShards(self._loop.time)
        self._wake, self._news = asyncio.Event(), asyncio.Event()
        self._read_ahead = ReadAhead(self.plan)
        self._most_waiting = self.plan.first_tiny_ranges
        self._more_at = self._most_waiting * len(self.queues) + 1  # a number of requests
        for queue in self.queues:
            # A shard of unknown size may be such a one; if it has more, other ranges follow.
            queue.small_shard = queue.planner.guess = self._small_shard()

    def __repr__(self) -> str:
        ahead = sum(queue.ahead for queue in self.queues)
        return f"<Fetcher {self._in_flight} in flight, {ahead} bytes ahead, {self.pool!r}>"

    async def run(self) -> None:
        """Keep reading until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._adjust_concurrency())
            self._together_at = self._loop.time() + HEADS_ALONE
            self._loop.call_later(HEADS_ALONE, self.wake)
            prefaults = False
            while True:
                if not prefaults and self.plan.range_size >= HUGE:
                    prefaults = True
                    group.create_task(self._prefaulter.start())
                # Cleared first: who wakes the fetcher while it schedules has it schedule once more.
                self._wake.clear()
                self._schedule(group)
                await self._wake.wait()

    async def aclose(self) -> None:
        """Release all memory; nothing is read afterwards."""
        for queue in self.queues:
            queue.clear()
        self._prefaulter.close()
        # In a thread: giving back gigabytes takes time, in which the loop would stand still.
        await apart(self.pool.close)
        if self._shared is not None:
            self._shared.close()

    def wake(self) -> None:
        """Schedule again, since a lane's state or the memory in use has changed."""
        self._wake.set()

    async def wait_for(self, sublane: int, *, or_others: bool = False) -> None:
        """Wait for news of the lane (or of any): bytes, another range, its end or an error."""
        self._awaited, self._starved, self._others_do = sublane, True, or_others
        self._turn = sublane
        # More read-ahead would have spared the wait: a lane wanted to ask for more and had no room.
        if self._full:
            self._read_ahead.grow(self.counts["bytes_read"])
        # Not while all lanes are waited for the first time, before any has used a range.
        if self._has_many(self.queues[sublane]) and self.counts["requests"] >= self._more_at:
            self._most_waiting = min(MOST_WAITING, 2 * self._most_waiting)
            self._more_at = self.counts["requests"] + self._most_waiting * len(self.queues)
        self._news.clear()
        self._wake.set()
        self._awaited_since = self._loop.time()
        try:
            await self._news.wait()
        finally:
            for shard, seconds in self._wait_now().items():
                self._shards_awaited.add(shard, seconds)
            self._awaited = -1
            self.counts["waited_us"] += int((self._loop.time() - self._awaited_since) * 1e6)

    def _wait_now(self) -> dict[int, float]:
        """Return the seconds of the wait that goes on, by shard; empty if nobody waits for one."""
        ranges = self.queues[self._awaited].ranges if self._awaited >= 0 else None
        return {ranges[0].shard: self._loop.time() - self._awaited_since} if ranges else {}

    def demand(self, sublane: int) -> Demand:
        """Return the lane's demand of a sublane."""
        lanes = self.lanes
        return lanes[sublane % len(lanes)].demand(sublane // len(lanes))

    def awaits(self, sublane: int) -> bool:
        """Return whether the consumer waits for this lane."""
        return sublane == self._awaited

    def reserve(self, nbytes: int) -> None:
        """Leave so many bytes of the budget to what is made of the ranges."""
        self._reserved = nbytes

    def stage(self, sublane: int) -> str:
        """Return what a lane that needs bytes waits for: the store's answer, or the rest of it."""
        read = self.queues[sublane].stored
        return "body" if read is not None and read.filled else "first_byte"

    def notify(self, sublane: int) -> None:
        """Wake up the wait for a lane that has news."""
        # Any sublane of the awaited lane has news for it.
        is_awaited = self._awaited >= 0 and (sublane - self._awaited) % len(self.lanes) == 0
        if is_awaited or (self._others_do and not self.queues[sublane].ended):
            self._news.set()

    def acquire(self, sublane: int, size: int) -> ByteArray:
        """Allocate memory for a lane's record that straddles ranges."""
        return self.pool.acquire(size, self.queues[sublane].account)

    def statistics(self) -> dict[str, Any]:
        """Return counters and current sizes; docs/reference/metrics.md explains each."""
        return {
            **{name: self.counts[name] for name in FETCHED},
            "seconds_waited": self.counts["waited_us"] / 1e6,
            "in_flight": self._in_flight,
            "concurrency": self.concurrency.limit,
            "concurrency_reason": self.concurrency.cause.text,
            "concurrency_seconds": {str(k): s for k, s in list(self.concurrency.seconds.items())},
            "bytes_in_memory": self.pool.in_use,
            "most_bytes_in_memory": self.pool.most_in_use,
            "bytes_idle": self.pool.idle,
            "bytes_budgeted": self.plan.for_ranges,
            "timings": self.timings.to_dict(),
            "awaited_shard": self._awaited_shard(),
        }

    def _awaited_shard(self) -> dict[str, Any] | None:
        longest = self._shards_awaited.longest(self._wait_now())
        if longest is None:
            return None
        return {"url": masked(self.shards.urls[longest[0]]), "seconds": longest[1]}

    def _small_shard(self) -> float:
        """Return the bytes of a shard of which no head is read, but all at once.

        Each lane may have one like it whole at the start. Its first records come no later, as
        connections share the link. A head would cost a request, and a copy of the record at its
        end, which may be most of the shard.
        """
        room = self.plan.room(0, self._read_ahead.size)
        even = room.share + room.ahead / self.plan.lanes
        return min(even, A_BIT_MORE * self.plan.range_size, LARGEST_FIRST_SHARD)

    # -- what to read next -------------------------------------------------------------------------

    def _schedule(self, group: asyncio.TaskGroup) -> None:
        # Idle pieces count as memory of the process: they must not exceed what the budget has left.
        sizes = [lane.record_size for lane in self.lanes]
        largest = max(sizes, default=0)
        large = (queue.large.size for queue in self.queues if queue.large is not None)
        overdrawn = self.overdrawn(max(largest, *large, 0))
        taken = self._reserved + overdrawn + self.pool.in_use
        self.pool.trim(max(0, self.plan.for_ranges - taken))
        for sublane, queue in enumerate(self.queues):
            # Whatever the budget and the concurrency say: the lane's next record lies there.
            if (again := queue.repair) is not None:
                queue.add_repair(self._start(group, sublane, again, again.stop - again.start))
        room = self.plan.room(self._reserved, self._read_ahead.size)
        most = self.plan.room(self._reserved).ahead - overdrawn
        room = replace(room, ahead=min(room.ahead, most))
        self._is_urgent = self._awaited >= 0 and self.queues[self._awaited].missing > MUCH_MISSING
        for queue in self.queues:
            queue.record_size = largest
        charged = [
            queue.charged(size) for queue, size in zip(self.queues, cycle(sizes), strict=False)
        ]
        beyond = sum(map(room.beyond, charged))
        nearest = self._nearest(room, charged, beyond)
        while nearest and self._in_flight < self.concurrency.limit:
            sublane = nearest[0][-1]
            queue, size = self.queues[sublane], sizes[sublane % len(sizes)]
            if self._awaits_answer(queue):
                nearest = [one for one in nearest if not self.queues[one[-1]].ahead]
                heapify(nearest)
                continue
            before = queue.charged(size)
            if self._start_next(group, sublane, room.reach(before, beyond)):
                # The lane goes back with its new distance. Those of the others have not changed.
                heapreplace(nearest, self._need(sublane))
                beyond += room.beyond(queue.charged(size)) - room.beyond(before)
            else:
                heappop(nearest)
        self._at_limit = bool(nearest)
        self._limited = self._limited or self._at_limit

    def _nearest(
        self, room: RangeMemory, charged: list[float], beyond: float
    ) -> list[tuple[float, int, int]]:
        """Return a heap of the lanes that may ask for more, by how soon they need it."""
        self._full = False
        nearest = []
        # Computed once: this loop runs often, and most lanes have taken their share and more.
        share, reach_beyond = room.share, room.reach(room.share, beyond)
        for sublane, queue in enumerate(self.queues):
            if queue.planner.ended:
                continue
            has = charged[sublane]
            reach = reach_beyond if has >= share else room.reach(has, beyond)
            # A lane without an answer holds back the others, though it may ask for nothing itself.
            if (queue.ranges and not queue.answered) or self._allowance(sublane, queue, reach):
                nearest.append(self._need(sublane))
        self._was_full = self._was_full or self._full
        heapify(nearest)
        return nearest

    def _need(self, sublane: int) -> tuple[float, int, int]:
        """Return how soon a lane needs its next range, in bytes and then in turns; and the lane."""
        distance = self.demand(sublane).distance(self.queues[sublane].until_next)
        return distance, (sublane - self._turn) % len(self.queues), sublane

    def _awaits_answer(self, queue: RangeQueue) -> bool:
        """Return whether the request for a lane's head is still without an answer.

        Until then only heads are asked for, so that nothing else delays the first batch.
        """
        is_alone = self._loop.time() < self._together_at or self.counts["throttled"] > 0
        return is_alone and not queue.answered and queue.ahead >= self.plan.first_range

    def _start_next(self, group: asyncio.TaskGroup, sublane: int, reach: float) -> bool:
        queue = self.queues[sublane]
        size = self._allowance(sublane, queue, reach)
        if not size:
            return False
        large = queue.next_large
        if large is not None and large.waits and not self._take_memory(sublane, large):
            return False
        request = queue.planner.next(size)
        if request is None:
            if queue.ended:  # notified once, not for as long as threads work for it
                self._update(sublane)
            return False
        queue.add(self._start(group, sublane, request, size))
        # Neither a probe of the shard's beginning nor a part of a large record is a range of that
        # size.
        if not queue.planner.probes and large is None:
            queue.size = max(queue.size, grown(size, self.plan.range_size))
        return True

    def _take_memory(self, sublane: int, large: LargeRecord) -> bool:
        """Allocate the memory of a large record; return whether there was some."""
        try:
            large.memory = self.acquire(sublane, large.size)
        except MemoryError:
            large.refused = True  # the lane asks for it itself, and tells which record it is
            self._update(sublane)
        return large.memory is not None

    def _start(
        self, group: asyncio.TaskGroup, sublane: int, request: RangeRequest, allowed: int
    ) -> RangeRead:
        large = self.queues[sublane].large
        memory = None if large is None else large.place_of(request)
        is_part = memory is not None
        try:
            if memory is None:
                memory = self._memory(sublane, request.stop - request.start, allowed)
        except MemoryError as error:
            raise self._out_of_memory(error, request) from None
        read = RangeRead(request, memory, in_place=is_part)
        if self.next_use is not None:
            self.next_use.reached(sublane, request, self.shards.sizes.get(read.shard))
        self._in_flight += 1
        self._update(sublane)
        group.create_task(self._read(sublane, read))
        return read

    def _out_of_memory(self, error: MemoryError, request: RangeRequest) -> OutOfMemory:
        url = self.shards.urls[request.extent.shard]
        return OutOfMemory.of(error, url=url, offset=request.start)

    def _memory(self, sublane: int, size: int, allowed: int) -> ByteArray:
        """Allocate memory for a range.

        The last range of a shard takes a piece of the usual size, or, where it is much smaller, an
        idle one. Otherwise every shard's end would free pieces and touch new ones.
        """
        lent = allowed if size > allowed // 2 else size
        return self.pool.acquire(lent, self.queues[sublane].account, allowed)[:size]

    def _allowance(self, sublane: int, queue: RangeQueue, reach: float) -> int:
        """Return the bytes that the lane may ask for now.

        The lane that the consumer waits for may have its head whatever the budget says, if nothing
        of it is in flight: without it no memory would ever come free.
        """
        if queue.planner.ended or len(queue.ranges) >= MOST_WAITING or self._has_many(queue):
            return 0
        if self._is_urgent and (sublane != self._awaited or queue.next_large is None):
            return 0
        if (large := queue.next_large) is not None:
            return self._part(sublane, large, reach)
        if queue.least <= reach:
            is_last = queue.is_last or queue.size > reach
            return int(queue.planner.rest) if is_last else queue.size
        self._full = True
        if queue.ranges:
            return 0
        head = int(queue.planner.rest) if queue.is_last else self.plan.first_range
        if sublane == self._awaited:
            return max(head, min(int(A_BIT_MORE * queue.record_size), WITHIN_RECORD))
        return head if head <= reach else 0

    def _has_many(self, queue: RangeQueue) -> bool:
        """Return whether a lane has as many tiny ranges as it may have at present."""
        count = len(queue.ranges)  # the parts of a large record are not tiny
        return count >= self._most_waiting and queue.ahead < count * SMALLEST_FIRST_RANGE

    def _part(self, sublane: int, large: LargeRecord, reach: float) -> int:
        """Return the bytes of the next range within a large record, whose memory is taken first."""
        if large.memory is None and large.size > reach and sublane != self._awaited:
            self._full = True
            return 0
        left = large.stop - int(self.queues[sublane].planner.place_in(large.extent))
        return min(WITHIN_RECORD, left)

    def _lend(self, read: RangeRead, size: int) -> ByteArray | None:
        """Allocate memory for a hedge: within the budget, or for the lane that is waited for."""
        in_use = self.pool.in_use + self._reserved
        # The ranges' part of the budget is full whenever a link is used well, so the total counts.
        fits = in_use + size_class(size) <= self.plan.total - self.plan.reserve
        awaited = self._awaited >= 0 and read in self.queues[self._awaited].ranges
        for queue in self.queues if fits or awaited else ():
            if read in queue.ranges:
                with contextlib.suppress(MemoryError):
                    return self.pool.acquire(size, queue.account)
        return None

    # -- reads and their effects -------------------------------------------------------------------

    async def _read(self, sublane: int, read: RangeRead) -> None:
        def moved() -> None:
            # The head of the answer has come, and no byte of the body.
            if read.filled == 0:
                self.queues[sublane].answered = True
                self._wake.set()  # other ranges may have waited for the shard's size
            self._update(sublane)

        try:
            await self._downloader.download(read, moved)
        except MemoryError as error:
            raise self._out_of_memory(error, read.request) from None
        finally:
            self._in_flight -= 1
            # Only where the limit held back the last schedule does the end of a request let another
            # begin.
            if self._at_limit:
                self._wake.set()
            self._update(sublane)

    async def _adjust_concurrency(self) -> None:
        """Keep adjusting the number of concurrent requests until cancelled."""
        before, nbytes, throttled = self._loop.time(), 0, 0
        while True:
            await asyncio.sleep(ADJUST_SECONDS)
            now, counts = self._loop.time(), self.counts
            self.concurrency.observe(
                now - before,
                counts["bytes_read"] - nbytes,
                counts["throttled"] - throttled,
                limited=self._limited,
                starved=self._starved,
                full=self._was_full,
            )
            before, nbytes, throttled = now, counts["bytes_read"], counts["throttled"]
            # A wait that goes on counts in the next interval, too.
            self._limited, self._starved = False, self._awaited >= 0
            self._was_full = self._full
            self._wake.set()

    def _update(self, sublane: int) -> None:
        self.queues[sublane].changed()
        self.notify(sublane)

    def _schedule_again(self) -> None:
        """Schedule again when memory has come back; called in any thread."""
        if not self._wake.is_set():
            with contextlib.suppress(RuntimeError):  # the loop is closed: the run is over
                self._loop.call_soon_threadsafe(self._wake.set)
