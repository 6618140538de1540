"""The run of one rank over a dataset, from a position to its end."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from streamrec.errors import MissingFeature, Stalled, WrongFeatureType
from streamrec.flow.channel import EndOfStream
from streamrec.flow.cleanup import apart, end, end_threads, finish
from streamrec.flow.pool import Abandoned
from streamrec.pipeline.assembler import RAISE, THREADS, Assembler
from streamrec.pipeline.batch.decoder import SuspectPayload, TooManyTogether
from streamrec.pipeline.lane.damage_policy import corruption_log_of
from streamrec.pipeline.terms.memory_needs import NO_CEILING, Measures

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamrec.kernel.contract import Allocate
    from streamrec.pipeline.assembler import Decoding
    from streamrec.pipeline.batch.batch import Batch
    from streamrec.pipeline.fetch.range_downloader import OpensStores
    from streamrec.pipeline.fetch.range_queue import Shards
    from streamrec.pipeline.terms.memory_needs import RunCeiling
    from streamrec.pipeline.terms.run_plan import RunPlan
    from streamrec.plan.state.position import Position

INFERRED = (
    "; the specs were inferred from the first records of some shards: give those that `streamrec "
    'info` prints in place of "infer", and correct this one'
)
"""The end of an error about a feature whose spec nobody gave."""


class Run:
    """A run, which reads ahead in the background while ``receive`` takes its batches in order.

    Use it as an asynchronous context manager; leaving it cancels all work in progress.

    Args:
        plan: The plan of the run.
        shards: The shards' names and the facts about them.
        stores: The stores of the shards.
        allocate: Allocates the columns of batches; by default the run does.
        measures: The measures to count on; by default the run has its own.
        ceiling: The limits of a feeder, and what it shares among its runs.
    """

    def __init__(
        self,
        plan: RunPlan,
        shards: Shards,
        stores: OpensStores,
        *,
        allocate: Allocate | None = None,
        measures: Measures | None = None,
        ceiling: RunCeiling = NO_CEILING,
    ) -> None:
        self.position = plan.position
        """The position of the next batch."""
        self.measures = measures or Measures()
        self._plan = plan
        self._shards = shards
        self._stores = stores
        self._allocate = allocate
        self._ceiling = ceiling
        self._task: asyncio.Task[None] | None = None
        self._next: Decoding | None = None
        self._hangs = False
        self._batches = self._records = 0
        self._of_components: Counter[str] = Counter()

    def __repr__(self) -> str:
        state = "new" if self._task is None else "done" if self._task.done() else "running"
        return f"<{type(self).__name__} {state}, step {self.position.step}>"

    async def __aenter__(self) -> Self:
        self._threads = self._ceiling.threads("streamrec-decode", THREADS)
        await self._ceiling.start(self._threads, THREADS)
        # One for the whole run: what is read again, after a new beginning, counts on the same
        # budget.
        self._corruption_log = corruption_log_of(self._plan.settings, self._shards.urls)
        self._begin()
        return self

    def _begin(self) -> None:
        """Start the stages at the plan's position."""
        plan, shards = self._plan, self._shards
        self._assembler = Assembler(
            plan,
            shards,
            self._stores,
            threads=self._threads,
            corruption_log=self._corruption_log,
            allocate=self._allocate,
            measures=self.measures,
            ceiling=self._ceiling,
        )
        self._task = asyncio.create_task(self._assembler.run(), name="streamrec-run")

    async def _begin_again(self, plan: RunPlan) -> None:
        """Read again from the next batch on, by a changed plan."""
        await self._stop()
        # Else its threads would decode what nobody takes, beside those of the new stages.
        self._assembler.abandon()
        self._plan = replace(plan, position=self.position)
        self._next = None
        self._begin()

    async def _stop(self) -> None:
        """Stop reading, and release all that is in no batch yet; a second call does nothing."""
        assert self._task is not None
        await end(self._task)
        await self._assembler.aclose()

    async def __aexit__(self, *_: object) -> None:
        await finish(self._close())

    async def _close(self) -> None:
        await self._stop()
        self._assembler.abandon()
        # They hold memory that threads may still write into, so they go after the threads.
        batches = self._assembler.channel.take_all()
        if self._next is not None:
            batches.append((self._next, 0))
            self._next = None
        await self._end_threads(batches.clear, self._assembler.decoder.close)
        if self._corruption_log is not None:
            await self._corruption_log.aclose()

    async def _end_threads(self, *then: Callable[[], object]) -> None:
        """Wait until the threads have ended, unless one of them hangs; then make some calls."""
        if self._hangs:
            # A thread that hangs would hold up whoever closes the run for ever.
            self._threads.shutdown(wait=False, cancel_futures=True)
            await apart(*then)
        else:
            await end_threads(self._threads, *then)

    async def receive(self) -> Batch:
        """Return the next batch.

        Raises:
            EndOfStream: The run has ended; ``position`` is now the beginning of the next one.
            StreamrecError: The first cause of a failure; all batches before it were delivered.
        """
        self.measures.waits.consume(None)
        try:
            return await self.take()
        finally:
            self.measures.waits.consume("client")

    async def take(self) -> Batch:
        """Return the next batch as :meth:`receive` does, but do not note that anybody waits."""
        try:
            return await self._take()
        except (MissingFeature, WrongFeatureType) as error:
            if self._plan.is_inferred and not error.message.endswith(INFERRED):
                error.message += INFERRED
            raise

    async def _take(self) -> Batch:
        try:
            self._next = self._next or await self._assembler.channel.receive()
        except EndOfStream:
            self.position = self._plan.next_run(self.position)
            raise
        try:
            batch = await self._wait_for(self._next)
        except SuspectPayload:  # a lane can read the record once more, and tell which one it is
            await finish(self._begin_again(replace(self._plan, is_suspicious=True)))
            batch = await self._take()
            # Only now: if the record is damaged in the store, the lane has raised that above.
            self.measures.counts["refetched"] += 1
            return batch
        except Abandoned:  # somebody has interrupted the wait, and goes on after all
            await finish(self._begin_again(self._plan))
            return await self._take()
        except TooManyTogether as many:
            if self._plan.is_one_by_one or self._plan.batch_size is not None:
                raise many.cause from None
            await finish(self._begin_again(replace(self._plan, is_one_by_one=True)))
            return await self._take()
        self.measures.counts["bytes_used"] += self._next.used
        if self._next.work.memory is not None:
            self._next.work.memory.deliver()
        self._next = None
        self._count(batch)
        return batch

    def _count(self, batch: Batch) -> None:
        """Go to the position after a batch that is delivered, and count it."""
        self.position = batch.next_position
        self._batches += 1
        self._records += len(batch)
        if batch.components is not None:
            self._of_components.update(batch.components.rows_of(batch.origin.shards))

    def after(self, steps: int) -> Position:
        """Return the position after steps that nobody reads; as :meth:`.run_plan.RunPlan.after`."""
        return self._plan.after(steps)

    def interrupt(self) -> None:
        """Decode no further than to the end of the pictures begun, from any thread.

        Nobody waits any more. Who still takes the next batch has it read again.
        """
        if self._plan.settings.ordered:  # else what is read again may be other records
            self._assembler.abandon()

    async def halt(self) -> Position | None:
        """Stop reading; batches that are ready can still be received.

        Returns:
            The position after the ready batches, where another run can go on; ``None``: the run's
            last batch is ready, or its failure.
        """
        channel = self._assembler.channel
        # A closed channel has the end or the failure: it must not be cut off from that.
        if not channel.is_closed:
            await finish(self._stop())
        # It may have come to its end before it could be stopped.
        return None if channel.is_closed else self._assembler.sent

    async def _wait_for(self, decoding: Decoding) -> Batch:
        """Wait for a batch to be decoded; cancelling the wait does not lose it."""
        batch, waits = decoding.batch, self.measures.waits
        if not batch.done():
            seconds = self._plan.settings.stall_timeout
            arrival = asyncio.wrap_future(batch)
            arrival.add_done_callback(_retrieve)
            with waits.waiting_for("decode"):
                await asyncio.wait([arrival], timeout=seconds)
                if decoding.work.transform_since is not None:
                    waits.went_over("transform", decoding.work.transform_since)
            if not batch.done():  # it may be, where this loop was busy with something else
                self._hangs = True
                raise Stalled(
                    f"decoding a batch took more than {seconds:g} s; {RAISE}", stage="decode"
                )
        return batch.result()

    def statistics(self) -> dict[str, Any]:
        """Return counters since the start, and current sizes."""
        return {
            **self._counts(),
            **self._assembler.statistics(),
            **(self._corruption_log.statistics() if self._corruption_log else {}),
        }

    def _counts(self) -> dict[str, Any]:
        """Return counters of what was received."""
        named = {"components": dict(self._of_components)} if self._plan.components else {}
        waits = self.measures.waits.seconds()
        return {"batches": self._batches, "records": self._records, "waits": waits, **named}


def _retrieve(future: asyncio.Future[Batch]) -> None:
    """Retrieve a batch's exception, so that asyncio does not warn if nobody waits for it."""
    if not future.cancelled():
        future.exception()
