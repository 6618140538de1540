"""The run of one rank over a dataset, from a position to its end."""

from __future__ import annotations

import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from streamrec.errors import Stalled
from streamrec.flow.channel import EndOfStream
from streamrec.flow.cleanup import end, finish
from streamrec.pipeline.assembler import RAISE, Assembler
from streamrec.pipeline.batch.decoder import Suspect
from streamrec.pipeline.fetch.fetcher import COUNTERS as FETCHED
from streamrec.pipeline.lane.quarantine import corruption_log_of
from streamrec.pipeline.stages import THREADS, build_stages

if TYPE_CHECKING:
    from concurrent.futures import Future

    from streamrec.kernel.contract import Allocate
    from streamrec.pipeline.fetch.fetcher import OpensStores
    from streamrec.pipeline.fetch.range_queue import Shards
    from streamrec.pipeline.run_plan import RunPlan
    from streamrec.pipeline.stages import Decoding
    from streamrec.plan.position import Position
    from streamrec.values.batch import Batch

__all__ = ["COUNTERS", "Run"]

COUNTERS = (*FETCHED, "seconds_waited", "refetched", "decompressed_from", "decompressed_to")
"""The names of the statistics that count from the start, without those of delivery."""


class Run:
    """A run, which reads ahead in the background while ``receive`` takes its batches in order.

    Use it as an asynchronous context manager; leaving it cancels all work in progress.

    Args:
        plan: The plan of the run.
        shards: The shards' names and the facts about them.
        stores: The stores of the shards.
        allocate: Allocates the columns of batches; by default the run does.
    """

    def __init__(
        self,
        plan: RunPlan,
        shards: Shards,
        stores: OpensStores,
        allocate: Allocate | None = None,
    ) -> None:
        self.position = plan.position
        """The position of the next batch."""
        self._plan = plan
        self._shards = shards
        self._stores = stores
        self._allocate = allocate
        self._task: asyncio.Task[None] | None = None
        self._next: Decoding | None = None
        self._hangs = self._doubts = False
        self._batches = self._records = 0
        self._of_components: Counter[str] = Counter()

    def __repr__(self) -> str:
        state = "new" if self._task is None else "done" if self._task.done() else "running"
        return f"<Run {state}, step {self.position.step}>"

    async def __aenter__(self) -> Self:
        self._threads = ThreadPoolExecutor(THREADS, "streamrec-decode")
        self._corruption_log = corruption_log_of(self._plan.settings, self._shards.urls)
        self._begin()
        return self

    def _begin(self) -> None:
        """Build the stages at the plan's position, and start them."""
        self._stages = build_stages(
            self._plan,
            self._shards,
            self._stores,
            self._threads,
            self._corruption_log,
            self._allocate,
        )
        self._assembler = Assembler(self._plan, self._shards, self._stages, self._threads)
        self._task = asyncio.create_task(self._assembler.run(), name="streamrec-run")

    async def _stop(self) -> None:
        """Stop reading, and release all that is in no batch yet; a second call does nothing."""
        assert self._task is not None
        await end(self._task)
        self._stages.close()

    async def __aexit__(self, *_: object) -> None:
        await finish(self._close())

    async def _close(self) -> None:
        await self._stop()
        self._threads.shutdown(wait=not self._hangs, cancel_futures=True)
        if self._corruption_log is not None:
            self._corruption_log.close()
        self._stages.channel.clear()
        self._next = None
        self._stages.decoder.close()

    async def receive(self) -> Batch:
        """Return the next batch.

        Raises:
            EndOfStream: The run has ended; ``position`` is now the beginning of the next one.
            StreamrecError: The first cause of a failure; all batches before it were delivered.
        """
        if self._doubts:
            await self._begin_again()
        try:
            self._next = self._next or await self._stages.channel.receive()
        except EndOfStream:
            self.position = self._plan.next_run(self.position)
            raise
        try:
            batch = await self._decoded(self._next.batch)
        except Suspect:
            self._doubts = True
            return await self.receive()
        self._stages.fetcher.counts["bytes_used"] += self._next.used
        self._next = None
        self.position = batch.next_position
        self._batches += 1
        self._records += len(batch)
        if batch.components is not None:
            self._of_components.update(batch.components.rows_of(batch.origin.shards))
        return batch

    async def halt(self) -> Position | None:
        """Stop reading; batches that are ready can still be received.

        Returns:
            The position behind the ready batches, where another run can go on; ``None``: the run's
            last batch is ready, or its failure.
        """
        if self._stages.channel.is_closed:
            return None
        await finish(self._stop())
        return self._assembler.sent

    async def _begin_again(self) -> None:
        """Read again from the last batch on, and check every payload before it is merged.

        The lanes can then handle a corrupt record as ``on_corrupt`` says.
        """
        await finish(self._stop())
        counts = self._stages.fetcher.counts
        self._plan = replace(self._plan, position=self.position, is_suspicious=True)
        self._begin()
        self._stages.fetcher.counts.update(counts)
        self._next, self._doubts = None, False

    async def _decoded(self, batch: Future[Batch]) -> Batch:
        """Wait for a batch to be decoded; cancelling the wait does not lose it."""
        if not batch.done():
            seconds = self._plan.settings.stall_timeout
            arrival = asyncio.wrap_future(batch)
            arrival.add_done_callback(_retrieve)
            if not (await asyncio.wait([arrival], timeout=seconds))[0]:
                self._hangs = True
                raise Stalled(
                    f"decoding a batch took more than {seconds:g} s; {RAISE}", stage="decode"
                )
            return arrival.result()
        return batch.result()

    def statistics(self) -> dict[str, Any]:
        """Return counters since the start, and current sizes."""
        stages, log = self._stages, self._corruption_log
        is_whole_now = self._plan.is_suspicious and self.position is not self._plan.position
        return {
            "batches": self._batches,
            "records": self._records,
            "batches_ready": len(stages.channel),
            **({"components": dict(self._of_components)} if self._plan.components else {}),
            **stages.fetcher.statistics(),
            **(stages.inflater.statistics() if stages.inflater else {}),
            "refetched": stages.fetcher.counts["refetched"] + is_whole_now,
            **stages.workers.left_out(),
            **(log.statistics() if log else {}),
        }


def _retrieve(future: asyncio.Future[Batch]) -> None:
    """Retrieve a batch's exception, so that asyncio does not warn if nobody waits for it."""
    if not future.cancelled():
        future.exception()
