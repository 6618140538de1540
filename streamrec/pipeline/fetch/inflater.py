"""The inflater, which decompresses the lanes' ranges in threads before records are read from them.

Ranges of compressed shards are decompressed in order, while they are received, into pieces of
memory of the same budget. A lane reads the pieces in place of the ranges; those of other shards
stay as they are. A lane's offsets count decompressed bytes, so orders and positions do not depend
on the compression. A lane that begins in the middle of a compressed shard therefore reads it from
its beginning.
"""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streamrec.flow.cleanup import end_threads
from streamrec.flow.pool import Account, Pool, size_class
from streamrec.pipeline.terms.memory_needs import NO_CEILING, RunCeiling
from streamrec.plan.reading.ranges import grown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamrec.pipeline.fetch.fetcher import Fetcher
    from streamrec.pipeline.fetch.inflating_queue import InflatingQueue, Turn
    from streamrec.plan.reading.ranges import MemoryPlan

log = logging.getLogger("streamrec.pipeline")

MOST_THREADS = 16


@dataclass(eq=False, repr=False)
class Inflater:
    """A decompressor of the lanes' shards, the soonest needed first, within its part of the budget.

    Args:
        fetcher: Reads the ranges; the inflater reserves a part of its budget.
        queues: The fetcher's queues.
        plan: The byte budget.
        ceiling: What a feeder shares among its runs.
        turn: The run's turn on a core, in which a thread works.
    """

    fetcher: Fetcher
    queues: Sequence[InflatingQueue]
    plan: MemoryPlan
    ceiling: RunCeiling = NO_CEILING
    turn: Turn = nullcontext
    bytes_in: int = 0
    bytes_out: int = 0
    _busy: int = 0
    _has_said: bool = False
    _has_threads: bool = False

    def __post_init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._wake, self._starting = asyncio.Event(), asyncio.Lock()
        for queue in self.queues:
            queue.wake, queue.rereads = self.wake, self._reread
        self._most = min(MOST_THREADS, len(os.sched_getaffinity(0)), len(self.queues))
        self._threads = self.ceiling.threads("streamrec-inflate", self._most)
        self.pool = Pool(self._released)
        self._account = Account()
        if self.queues[0].setting != "auto":
            self._reserve()

    def __repr__(self) -> str:
        return f"<Inflater {self._busy} at work, {self.pool!r}>"

    async def run(self) -> None:
        """Keep decompressing until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._wake.clear()
                self._schedule(group)
                await self._wake.wait()

    def wake(self) -> None:
        """Schedule again, since a lane may have become due."""
        self._wake.set()

    async def aclose(self) -> None:
        """End the threads after their current steps and release all memory."""
        await end_threads(self._threads, self.pool.close)

    def statistics(self) -> dict[str, Any]:
        """Return counters since the start, and the memory in use."""
        stored = self.fetcher.pool
        return {
            "bytes_in_memory": stored.in_use + self.pool.in_use,
            "most_bytes_in_memory": stored.most_in_use + self.pool.most_in_use,
            "bytes_idle": stored.idle + self.pool.idle,
            "decompressed_from": self.bytes_in,
            "decompressed_to": self.bytes_out,
        }

    def _reread(self, url: str) -> None:
        if not self._has_said:
            self._has_said = True
            log.info(
                "%s is compressed, and the stream begins in the middle of it; such shards are "
                "read and decompressed from their beginnings",
                url,
            )

    def _schedule(self, group: asyncio.TaskGroup) -> None:
        waiting = [sublane for sublane, queue in enumerate(self.queues) if queue.has_work]
        for sublane in sorted(waiting, key=lambda sublane: self.queues[sublane].waiting):
            if self._busy == self._most:
                return
            if self._has_memory(sublane, self.queues[sublane]):
                self._busy += 1
                group.create_task(self._inflate(sublane))

    def _has_memory(self, sublane: int, queue: InflatingQueue) -> bool:
        """Allocate memory for the lane's next step, if the budget has some."""
        if queue.open_piece is not None:
            return True
        size = self._allowed_size(sublane, queue)
        if size:
            try:
                queue.begin_piece(self.pool.acquire(size, self._account))
            except MemoryError as error:
                raise queue.out_of_memory(error) from None
            queue.piece_size = grown(queue.piece_size, self.plan.range_size)
            self._reserve()
        return size > 0

    def _reserve(self) -> None:
        """Reserve the inflater's part of the budget, or what it holds beyond it."""
        share = self.plan.for_inflated
        self.fetcher.reserve(max(share, self.pool.in_use))
        self.pool.trim(max(0, share - self.pool.in_use))

    def _allowed_size(self, sublane: int, queue: InflatingQueue) -> int:
        """Return the bytes that the lane may have now.

        A lane without any bytes may have a head's whatever the budget says. To go on with a record
        larger than that, the consumer must wait for the lane: otherwise all might overdraw.
        """
        size = min(queue.piece_size, size_class(queue.likely_size()))
        owed = sum(map(self._is_due, range(len(self.queues)))) * self.plan.first_range
        wanted = self.pool.in_use + size_class(size) + owed
        # Ranges may have filled this part of the budget before the compression was known.
        both = wanted + self.fetcher.pool.in_use
        if wanted <= self.plan.for_inflated and both <= self.plan.for_ranges:
            return size
        is_long = queue.straddling > self.plan.first_range
        if not self._is_due(sublane) or (is_long and not self.fetcher.awaits(sublane)):
            return 0
        return min(size, self.plan.first_range)

    def _is_due(self, sublane: int) -> bool:
        """Return whether the lane has no bytes at all, so that memory for its head is kept free."""
        return self.queues[sublane].is_idle and self.fetcher.demand(sublane).is_empty

    async def _inflate(self, sublane: int) -> None:
        began = self._loop.time()
        try:
            await self._start_threads()
            taken, given = await self.queues[sublane].inflate(self._threads, self.turn)
        finally:
            self._busy -= 1
        if self.fetcher.spans is not None:
            self.fetcher.spans.add("lane", "decompress", began, self._loop.time(), lane=sublane)
        self.bytes_in += taken
        self.bytes_out += given
        self._wake.set()
        self.fetcher.wake()
        self.fetcher.notify(sublane)

    async def _start_threads(self) -> None:
        """Start the threads, once; most shards are not compressed, and need none."""
        async with self._starting:
            if not self._has_threads:
                await self.ceiling.start(self._threads, self._most)
                self._has_threads = True

    def _released(self) -> None:
        """Schedule again when memory has come back; called in any thread."""
        if not self._wake.is_set():
            with suppress(RuntimeError):  # the loop is closed: the run is over
                self._loop.call_soon_threadsafe(self._wake.set)
