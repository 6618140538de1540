"""The run of one rank over a dataset, from a position to its end."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from streamrec.errors import DataError, Stalled, StoreUnavailable
from streamrec.flow.channel import Channel, EndOfStream
from streamrec.flow.cleanup import end, finish
from streamrec.flow.work_sharing import WorkSharing
from streamrec.pipeline.batch.batcher import Batcher, empty_chunk
from streamrec.pipeline.batch.decoder import Decoder, Suspect
from streamrec.pipeline.fetch.extent_tracker import ExtentTracker
from streamrec.pipeline.fetch.fetcher import COUNTERS as FETCHED
from streamrec.pipeline.fetch.fetcher import Fetcher, OpensStores
from streamrec.pipeline.fetch.inflater import Inflater
from streamrec.pipeline.lane.lane import Lane
from streamrec.pipeline.lane.lane_sources import Sources
from streamrec.pipeline.lane.ordering_stages import InOrder, Stage, WindowShuffle
from streamrec.pipeline.lane.quarantine import corruption_log_of
from streamrec.pipeline.lane.threaded_stages import Workers
from streamrec.plan.concurrency import MOST, START, Concurrency
from streamrec.plan.coordinates import Coordinates
from streamrec.plan.ranges import LaneRanges
from streamrec.plan.window import FRAME_OVERHEAD

if TYPE_CHECKING:
    from streamrec.errors import StreamrecError
    from streamrec.kernel.contract import Allocate
    from streamrec.pipeline.fetch.range_queue import Shards
    from streamrec.pipeline.run_plan import RunPlan
    from streamrec.plan.position import Position
    from streamrec.values.batch import Batch

__all__ = ["COUNTERS", "Run"]

COUNTERS = (*FETCHED, "seconds_waited", "refetched", "decompressed_from", "decompressed_to")
"""The names of the statistics that count from the start, without those of delivery."""

THREADS = min(4, os.cpu_count() or 1)
"""The number of decoding threads."""
MOST_TOGETHER = 256
"""The most records that are sent together in a stream of single records."""
RAISE = "check what this machine is busy with, or raise stall_timeout"
LONGEST_TURN = 0.005
"""Seconds for which batches are cut before other tasks of the loop get a turn."""


class _Decoding(NamedTuple):
    """A batch that is being decoded."""

    batch: Future[Batch]
    used: int
    """Bytes of its records' frames."""


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
        self._next: _Decoding | None = None
        self._hangs = self._doubts = False
        self._batches = self._records = 0
        self._of_components: Counter[str] = Counter()
        self._yield_at = 0.0

    def __repr__(self) -> str:
        state = "new" if self._task is None else "done" if self._task.done() else "running"
        return f"<Run {state}, step {self.position.step}>"

    async def __aenter__(self) -> Self:
        self._threads = ThreadPoolExecutor(THREADS, "streamrec-decode")
        self._corruption_log = corruption_log_of(self._plan.settings, self._shards.urls)
        self._begin()
        return self

    def _begin(self) -> None:
        """Start all parts of the run at the plan's position."""
        plan = self._plan
        self._sent, self._padding_row = plan.position, empty_chunk()
        self._decoder = self._make_decoder()
        channel_most = None if plan.settings.prefetch == "auto" else plan.settings.prefetch
        self._channel: Channel[_Decoding] = Channel(plan.memory.waiting, channel_most)
        self._lanes: list[Lane] = []
        self._fetcher = self._make_fetcher()
        self._inflater = self._make_inflater()
        self._workers = Workers(
            plan, self._shards.urls, self._threads, self._decoder, self._fetcher
        )
        self._sources = Sources(plan, self._shards, self._fetcher, self._corruption_log)
        self._lanes += [self._make_lane(j, lane) for j, lane in enumerate(plan.own_lanes)]
        self._extent_tracker = ExtentTracker(plan, self._shards)
        skip = plan.position.skip if plan.by_record is None else 0
        self._batcher = Batcher(self._lanes, skip, ordered=plan.settings.ordered)
        self._task = asyncio.create_task(self._produce(), name="streamrec-run")

    async def _stop(self) -> None:
        """Stop reading, and release all that is in no batch yet; a second call does nothing."""
        assert self._task is not None
        await end(self._task)
        if self._inflater is not None:
            self._inflater.close()
        self._fetcher.close()
        # Otherwise reference cycles would hold the memory until the garbage collector runs.
        self._lanes.clear()
        self._padding_row = empty_chunk()
        self._batcher.close()

    async def __aexit__(self, *_: object) -> None:
        await finish(self._close())

    async def _close(self) -> None:
        await self._stop()
        self._threads.shutdown(wait=not self._hangs, cancel_futures=True)
        if self._corruption_log is not None:
            self._corruption_log.close()
        self._channel.clear()
        self._next = None
        self._decoder.close()

    async def receive(self) -> Batch:
        """Return the next batch.

        Raises:
            EndOfStream: The run has ended; ``position`` is now the beginning of the next one.
            StreamrecError: The first cause of a failure; all batches before it were delivered.
        """
        if self._doubts:
            await self._begin_again()
        try:
            self._next = self._next or await self._channel.receive()
        except EndOfStream:
            self.position = self._plan.next_run(self.position)
            raise
        try:
            batch = await self._decoded(self._next.batch)
        except Suspect:
            self._doubts = True
            return await self.receive()
        self._fetcher.counts["bytes_used"] += self._next.used
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
        if self._channel.is_closed:
            return None
        await finish(self._stop())
        return self._sent

    async def _begin_again(self) -> None:
        """Read again from the last batch on, and check every payload before it is merged.

        The lanes can then handle a corrupt record as ``on_corrupt`` says.
        """
        await finish(self._stop())
        counts = self._fetcher.counts
        self._plan = replace(self._plan, position=self.position, is_suspicious=True)
        self._begin()
        self._fetcher.counts.update(counts)
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
        is_whole_now = self._plan.is_suspicious and self.position is not self._plan.position
        return {
            "batches": self._batches,
            "records": self._records,
            "batches_ready": len(self._channel),
            **({"components": dict(self._of_components)} if self._plan.components else {}),
            **self._fetcher.statistics(),
            **(self._inflater.statistics() if self._inflater else {}),
            "refetched": self._fetcher.counts["refetched"] + is_whole_now,
            **self._workers.left_out(),
            **(self._corruption_log.statistics() if self._corruption_log else {}),
        }

    def _make_decoder(self) -> Decoder:
        plan = self._plan
        features: Any = plan.settings.features
        return Decoder(
            features,
            self._shards.urls,
            single=plan.batch_size is None or plan.settings.pack is not None,
            share=WorkSharing(self._threads, THREADS - 1).share,
            functions=plan.functions,
            masks=plan.keeps_placeholders,
            components=plan.components,
            checks_large=plan.checks_late,
            allocate=self._allocate,
        )

    def _make_fetcher(self) -> Fetcher:
        plan, position = self._plan, self._plan.position
        compression = plan.settings.compression
        planners = []
        for feed, (order, lane) in enumerate(plan.feeds):
            extent, offset = plan.points[feed].item()[:2]
            tag = position.tags.T.item(feed) if position.tags.size else 0
            if tag:
                self._shards.expected_tags[order.extent(lane, extent).shard] = tag
            planners.append(
                LaneRanges(
                    plan.extents(feed, extent),
                    self._shards.sizes,
                    order.reach(lane),
                    offset=offset if offset and compression == "none" else None,
                    probes=offset > 0 and compression == "auto",
                )
            )
        most = plan.settings.max_concurrency
        most = MOST if most == "auto" else most
        return Fetcher(
            self._shards,
            self._stores,
            planners,
            self._lanes,
            plan.memory,
            concurrency=Concurrency(max(START, len(planners)), most),
            stall_timeout=plan.settings.stall_timeout,
            random=Random(),
        )

    def _make_inflater(self) -> Inflater | None:
        plan, setting = self._plan, self._plan.settings.compression
        if setting == "none":
            return None
        offsets = plan.points["offset"].tolist()
        return Inflater(self._fetcher, self._shards, plan.memory, setting, offsets)

    def _make_lane(self, j: int, lane: int) -> Lane:
        plan = self._plan
        coordinates = Coordinates(*plan.starts[j].item())
        start = self._sources.start(j, coordinates)
        epoch = start.extent if plan.has_sources else plan.epoch(j)
        stage: Stage = InOrder(start.row)
        if plan.windows is not None:
            stage = WindowShuffle(
                plan.windows,
                lane,
                epoch,
                start,
                plan.buckets,
                keeps_placeholders=plan.keeps_placeholders,
            )
        patience = plan.patience(lane)
        return Lane(
            self._sources.of(j, start),
            stage,
            start,
            filter_stage=self._workers.filter_stage(j, patience),
            packing=self._workers.packing(j, start, patience),
            record_size=plan.memory.first_range / 4,
        )

    async def _produce(self) -> None:
        """Fill the channel, and close it with the first cause of a failure."""
        tasks = [
            asyncio.create_task(self._assemble(), name="streamrec-assemble"),
            asyncio.create_task(self._fetcher.run(), name="streamrec-fetch"),
        ]
        if self._inflater is not None:
            tasks.append(asyncio.create_task(self._inflater.run(), name="streamrec-inflate"))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end(*tasks)
        failures = [task.exception() for task in tasks if not task.cancelled()]
        failure = next((failure for failure in failures if failure), None)
        await self._channel.close(_first_cause(failure))

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
            waited_for = [self._lanes[lane]] if self._plan.settings.ordered else self._lanes
            for error in (lane.error for lane in waited_for):
                if error is not None:
                    raise error
            await self._wait_for(lane)

    async def _wait_for(self, lane: int) -> None:
        if self._inflater is not None:
            self._inflater.wake()
        try:
            async with asyncio.timeout(self._plan.settings.stall_timeout):
                feed = self._feed_of(lane)
                await self._fetcher.wait_for(feed, or_others=not self._plan.settings.ordered)
        except TimeoutError:
            raise self._stalled(lane) from None

    def _feed_of(self, lane: int) -> int:
        """Return the index of the feed of the lane's next record."""
        return lane + self._lanes[lane].component * len(self._lanes)

    def _stalled(self, lane: int) -> StreamrecError:
        """Make the error that names the stage that the lane waits for."""
        feeds, seconds = self._fetcher.feeds, self._plan.settings.stall_timeout
        stored = (feed.stored for feed in (feeds[self._feed_of(lane)], *feeds))
        read = next(filter(None, stored), None)
        url = self._shards.urls[read.shard] if read else None
        if (stage := self._lanes[lane].waits_for) != "fetch":
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
            position = replace(self._sent, step=step, skip=self._sent.skip + rows)
        padding = None
        if self._plan.remainder == "pad":
            padding = (self._plan.batch_size or 0) - rows
        chunk = chunk if rows else self._padding_row
        used = chunk.nbytes + FRAME_OVERHEAD * rows
        size = self._decoder.size(chunk)
        await self._channel.wait_for_room(size)
        decoding = self._threads.submit(self._decoder.decode, chunk, position, padding, rows)
        del chunk  # the thread has the last reference: decoding frees the ranges
        await self._channel.send(_Decoding(decoding, used), size)
        self._sent = behind

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
            int(lanes["extent"].min()) if has_sources else self._extent_tracker.epoch,
            lanes,
            self._extent_tracker.tags(points, lanes),
            sources,
        )


def _first_cause(failure: BaseException | None) -> BaseException | None:
    """Return the first error inside a ``TaskGroup``'s exception groups."""
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    return failure


def _retrieve(future: asyncio.Future[Batch]) -> None:
    """Retrieve a batch's exception, so that asyncio does not warn if nobody waits for it."""
    if not future.cancelled():
        future.exception()
