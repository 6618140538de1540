"""The assembler, which merges the lanes' records and has batches of them decoded, in order."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from streamrec.errors import DataError, Stalled, StoreUnavailable
from streamrec.flow.cleanup import end
from streamrec.pipeline.batch.batcher import empty_chunk
from streamrec.pipeline.fetch.extent_tracker import ExtentTracker
from streamrec.pipeline.stages import Decoding
from streamrec.plan.window import FRAME_OVERHEAD

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from streamrec.errors import StreamrecError
    from streamrec.pipeline.fetch.range_queue import Shards
    from streamrec.pipeline.run_plan import RunPlan
    from streamrec.pipeline.stages import Stages
    from streamrec.plan.position import Position

__all__ = ["Assembler"]

MOST_TOGETHER = 256
"""The most records that are sent together in a stream of single records."""
LONGEST_TURN = 0.005
"""Seconds for which batches are cut before other tasks of the loop get a turn."""
RAISE = "check what this machine is busy with, or raise stall_timeout"


class Assembler:
    """The assembler of a run's batches, which also runs the stages before it.

    Args:
        plan: The plan of the run.
        shards: The shards' names and the facts about them.
        stages: The run's stages.
        threads: Decode the batches.
    """

    def __init__(
        self, plan: RunPlan, shards: Shards, stages: Stages, threads: ThreadPoolExecutor
    ) -> None:
        self.sent = plan.position
        """The position behind the last batch that was sent."""
        self._plan = plan
        self._shards = shards
        self._stages = stages
        self._threads = threads
        self._batcher = stages.batcher
        self._extent_tracker = ExtentTracker(plan, shards)
        self._padding_row = empty_chunk()
        self._yield_at = 0.0

    async def run(self) -> None:
        """Fill the channel, and close it with the first cause of a failure."""
        stages = self._stages
        tasks = [
            asyncio.create_task(self._assemble(), name="streamrec-assemble"),
            asyncio.create_task(stages.fetcher.run(), name="streamrec-fetch"),
        ]
        if stages.inflater is not None:
            tasks.append(asyncio.create_task(stages.inflater.run(), name="streamrec-inflate"))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end(*tasks)
            self._padding_row = empty_chunk()
        failures = [task.exception() for task in tasks if not task.cancelled()]
        failure = next((failure for failure in failures if failure), None)
        await stages.channel.close(_first_cause(failure))

    async def _assemble(self) -> None:
        plan = self._plan
        step = plan.position.step
        if plan.by_record is not None and plan.by_record.borrows_padding(step):
            await self._gather(1)
            self._padding_row = self._batcher.cut(1)
        while plan.end_step is None or step < plan.end_step:
            wanted = plan.rows(step)
            await self._gather(wanted)
            if self._batcher.pending < wanted:
                await self._send_remainder(step)
                return
            rows = wanted if plan.batch_size else self._single_records(step)
            step += 1 if plan.batch_size else rows
            await self._send(rows, step)
            await self._yield_at_times()

    async def _yield_at_times(self) -> None:
        """Let other tasks of the loop run at times, so that ready batches leave at once."""
        loop = asyncio.get_running_loop()
        if loop.time() >= self._yield_at:
            await asyncio.sleep(0)
            self._yield_at = loop.time() + LONGEST_TURN

    def _single_records(self, step: int) -> int:
        """Return the number of single records to send together."""
        end = self._plan.end_step
        most = MOST_TOGETHER if end is None else min(MOST_TOGETHER, end - step)
        return min(most, self._batcher.pending)

    async def _gather(self, wanted: int) -> None:
        """Merge until ``wanted`` rows are pending, or all lanes have ended."""
        while (lane := self._batcher.gather(wanted)) >= 0:
            waited_for = (
                [self._stages.lanes[lane]] if self._plan.settings.ordered else self._stages.lanes
            )
            for error in (lane.error for lane in waited_for):
                if error is not None:
                    raise error
            await self._wait_for(lane)

    async def _wait_for(self, lane: int) -> None:
        if self._stages.inflater is not None:
            self._stages.inflater.wake()
        try:
            async with asyncio.timeout(self._plan.settings.stall_timeout):
                feed = self._feed_of(lane)
                await self._stages.fetcher.wait_for(feed, or_others=not self._plan.settings.ordered)
        except TimeoutError:
            raise self._stalled(lane) from None

    def _feed_of(self, lane: int) -> int:
        """Return the index of the feed of the lane's next record."""
        return lane + self._stages.lanes[lane].component * len(self._stages.lanes)

    def _stalled(self, lane: int) -> StreamrecError:
        """Make the error that names the stage that the lane waits for."""
        feeds, seconds = self._stages.fetcher.feeds, self._plan.settings.stall_timeout
        stored = (feed.stored for feed in (feeds[self._feed_of(lane)], *feeds))
        read = next(filter(None, stored), None)
        url = self._shards.urls[read.shard] if read else None
        if (stage := self._stages.lanes[lane].waits_for) != "fetch":
            what = url if stage == "decompress" else stage
            return Stalled(f"{what} stands still for {seconds:g} s; {RAISE}", stage=stage)
        return StoreUnavailable(
            f"fetch stalls: nothing came for {seconds:g} s; check the store and the network, or "
            "raise stall_timeout",
            url=url,
            offset=read.request.start + read.filled if read else None,
        )

    async def _send_remainder(self, step: int) -> None:
        rows, plan = self._batcher.pending, self._plan
        if plan.end_epoch is None:
            raise DataError(
                "no shard that this rank's lanes ever read holds a record, so there is nothing to "
                "repeat; check the shards, or set lanes to less"
            )
        if rows and plan.remainder != "drop":
            await self._send(rows, step + 1)

    async def _send(self, rows: int, step: int) -> None:
        chunk = self._batcher.cut(rows)
        if rows and self._plan.by_record and self._plan.by_record.borrows_padding(step):
            self._padding_row = chunk.cut(rows - 1, rows)
        position = behind = self._position(step)
        if self._plan.batch_size is None:  # single records sent together share one position
            position = replace(self.sent, step=step, skip=self.sent.skip + rows)
        padding = None
        if self._plan.remainder == "pad":
            padding = (self._plan.batch_size or 0) - rows
        chunk = chunk if rows else self._padding_row
        used = chunk.nbytes + FRAME_OVERHEAD * rows
        size = self._stages.decoder.size(chunk)
        await self._stages.channel.wait_for_room(size)
        decoding = self._threads.submit(self._stages.decoder.decode, chunk, position, padding, rows)
        del chunk  # the thread has the last reference: decoding frees the ranges
        await self._stages.channel.send(Decoding(decoding, used), size)
        self.sent = behind

    def _position(self, step: int) -> Position:
        run = self._plan.by_record
        if run is not None:
            return replace(self._plan.position, step=step, epoch=run.epoch_at(step), skip=0)
        lanes, sources = self._batcher.coordinates()
        has_sources = self._plan.has_sources
        points = sources if has_sources else lanes
        self._extent_tracker.follow(points)
        return self._plan.position.at(
            step,
            min(lanes["extent"].tolist()) if has_sources else self._extent_tracker.epoch,
            lanes,
            self._extent_tracker.tags(points, lanes),
            sources,
        )


def _first_cause(failure: BaseException | None) -> BaseException | None:
    """Return the first error inside a ``TaskGroup``'s exception groups."""
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    return failure
