"""The run that delivers batches from a cache, and reads on where the cache ends."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from streamrec.flow.channel import Channel, EndOfStream
from streamrec.flow.cleanup import end, finish
from streamrec.pipeline.assembler import THREADS, Decoding
from streamrec.pipeline.batch.decoder import Work, size_of
from streamrec.pipeline.memory_needs import NO_CEILING
from streamrec.pipeline.run import COUNTERS, Run
from streamrec.stores.base import in_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamrec.kernel.contract import Allocate
    from streamrec.pipeline.batch.batch import Batch
    from streamrec.pipeline.cache.batch_cache import BatchCache
    from streamrec.pipeline.fetch.fetcher import OpensStores
    from streamrec.pipeline.fetch.range_queue import Shards
    from streamrec.pipeline.measures import Measures
    from streamrec.pipeline.memory_needs import RunCeiling
    from streamrec.pipeline.run_plan import RunPlan
    from streamrec.plan.state.position import Position


class CachedRun(Run):
    """A run with a cache of its batches.

    As long as the cache has the next batch, no store is asked. From the first one that it lacks, an
    inner run reads on to the end, and each of its batches is kept before it is delivered: whoever
    takes it may change it. The transform is called behind the cache, for each delivery.

    Args:
        plan: The plan of the run.
        shards: The shards' names and the facts about them.
        stores: The stores of the shards.
        allocate: Allocates the columns of batches that are not in the cache.
        measures: The measures to count on; by default the run has its own.
        ceiling: The limits of a feeder, and what it shares among its runs.
        cache: The cache of this run's batches.
    """

    def __init__(
        self,
        plan: RunPlan,
        shards: Shards,
        stores: OpensStores,
        allocate: Allocate | None = None,
        measures: Measures | None = None,
        ceiling: RunCeiling = NO_CEILING,
        *,
        cache: BatchCache,
    ) -> None:
        # A transform may keep the columns that it gets.
        allocate = None if plan.functions.transform else allocate
        super().__init__(plan, shards, stores, allocate, measures, ceiling)
        self._cache = cache
        self._sent = plan.position
        self._cached = 0
        """The number of batches that came from the cache, those that wait included."""
        self._inner: Run | None = None

    async def __aenter__(self) -> Self:
        settings, behind = self._plan.settings, self._plan_behind()
        most = None if settings.prefetch == "auto" else settings.prefetch
        self._channel = Channel[Decoding](self._plan.memory.waiting - behind.memory.waiting, most)
        self._threads = self._ceiling.threads("streamrec-deliver", THREADS)
        await self._ceiling.start(self._threads, THREADS)
        self._task = asyncio.create_task(self._fill(), name="streamrec-cached-run")
        return self

    async def _stop(self) -> None:
        assert self._task is not None
        await end(self._task)

    async def _close(self) -> None:
        await self._stop()
        self._next = None
        await self._end_threads(self._channel.take_all().clear)
        self._cache.close()

    async def take(self) -> Batch:
        """Return the next batch; see :class:`~streamrec.pipeline.run.Run`."""
        try:
            self._next = self._next or await self._channel.receive()
        except EndOfStream:
            self.position = self._plan.next_run(self.position)
            raise
        batch = await self._decoded(self._next)
        self._next = None
        self._count(batch)
        return batch

    def interrupt(self) -> None:
        """Decode no further; see :class:`~streamrec.pipeline.run.Run`."""
        if self._inner is not None:
            self._inner.interrupt()

    async def halt(self) -> Position | None:
        """Stop reading; see :class:`~streamrec.pipeline.run.Run`."""
        if not self._channel.is_closed:
            await finish(self._stop())
        # It may have come to its end before it could be stopped.
        return None if self._channel.is_closed else self._sent

    def statistics(self) -> dict[str, Any]:
        """Return counters since the start, and current sizes."""
        return {
            **dict.fromkeys(COUNTERS, 0),
            **(self._inner.statistics() if self._inner else {}),
            **self._delivered(),
            "batches_ready": len(self._channel),
            "cached_batches": min(self._batches, self._cached),  # they come before all others
        }

    def _plan_behind(self) -> RunPlan:
        """Return the plan of the inner run; its batches wait in one half of the reserve."""
        memory = self._plan.memory
        half = memory.reserve // 2
        return replace(
            self._plan,
            position=self._sent,
            memory=replace(memory, total=memory.total - half, reserve=memory.reserve - half),
            functions=self._plan.functions._replace(transform=None),
        )

    async def _fill(self) -> None:
        """Fill the channel, and close it at the run's end or with the cause of a failure."""
        failure = None
        try:
            await self._send_cached()
            await self._send_read()
        except EndOfStream:
            pass
        except Exception as error:  # noqa: BLE001 - whoever receives raises it
            failure = error
        await self._channel.close(failure)

    async def _send_cached(self) -> None:
        """Send batches as long as the cache has them.

        Raises:
            EndOfStream: The run has ended.
        """
        end_step = self._plan.end_step
        while end_step is None or self._sent.step < end_step:
            self.measures.waits.produce("cache")
            batch = await self._in_thread(self._cache.load)
            self.measures.waits.produce("order")
            if batch is None:
                return
            self._cached += 1
            await self._send(batch, self._transformed, copies=1)
        raise EndOfStream

    async def _send_read(self) -> None:
        """Read on, and keep what comes.

        Raises:
            EndOfStream: The run has ended.
        """
        plan = self._plan_behind()
        plan.check()
        parts = self._shards, self._stores, self._allocate, self.measures, self._ceiling
        inner = Run(plan, *parts)
        async with inner as self._inner:
            while True:
                try:
                    batch = await self._inner.take()
                except EndOfStream:
                    if plan.end_step is None:  # else it depends on the step, and is known
                        await self._in_thread(self._cache.keep_end)
                    raise
                await self._send(batch, self._kept, copies=2)

    async def _in_thread(self, call: Callable[[Position], Batch | None]) -> Batch | None:
        return await in_thread(call, self._sent, executor=self._cache.threads)

    async def _send(
        self, batch: Batch, make: Callable[[Batch, Position, Work], Batch], *, copies: int
    ) -> None:
        size = copies * sum(map(size_of, batch.columns.values()))
        await self._channel.wait_for_room(size)
        work = Work(self.measures.waits)
        making = self._threads.submit(work.run, make, batch, self._sent)
        await self._channel.send(Decoding(making, 0, work), size)
        self._sent = batch.next_position

    # -- in threads --------------------------------------------------------------------------------

    def _kept(self, batch: Batch, before: Position, work: Work) -> Batch:
        self._cache.keep(batch, before)
        return self._transformed(batch, before, work)

    def _transformed(self, batch: Batch, _before: Position, work: Work) -> Batch:
        transform = self._plan.functions.transform
        if transform is None:
            return batch
        work.note_transform()
        columns = transform.change(batch, self._shards.urls.__getitem__)
        return replace(batch, columns=columns)
