"""The assembler: it merges the lanes' records, and has batches of them decoded, in order."""

from __future__ import annotations

import asyncio
import os
from contextlib import nullcontext
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from streamrec.errors import ConfigError, DataError, Stalled, StoreUnavailable
from streamrec.flow.channel import Channel
from streamrec.flow.cleanup import end
from streamrec.flow.cores import share_work
from streamrec.flow.pool import DecodedMemory
from streamrec.flow.retry import Silence
from streamrec.flow.timings import LoopShare
from streamrec.formats.examples.needs import decode_anew
from streamrec.pipeline.batch.decoder import Decoder, Work, empty_chunk
from streamrec.pipeline.fetch.fetcher import Fetcher
from streamrec.pipeline.fetch.inflating_queue import Inflater, InflatingQueue
from streamrec.pipeline.fetch.range_queue import RangeQueue
from streamrec.pipeline.lane.batcher import Batcher, DealtBatcher, ExtentTracker
from streamrec.pipeline.lane.lane_builder import LaneBuilder
from streamrec.pipeline.lane.record_reader import lead
from streamrec.pipeline.terms.memory_needs import NO_CEILING, most_waiting
from streamrec.plan.order.coordinates import POINTS, Coordinates
from streamrec.plan.order.window import FRAME_OVERHEAD
from streamrec.plan.reading.concurrency import MOST, START, Concurrency
from streamrec.plan.reading.ranges import LaneRanges

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future, ThreadPoolExecutor
    from contextlib import AbstractContextManager

    from streamrec.errors import StreamrecError
    from streamrec.formats.examples.needs import Share
    from streamrec.kernel.contract import Allocate
    from streamrec.pipeline.batch.batch import Batch
    from streamrec.pipeline.batch.record_caches import MappedCache, PictureCache
    from streamrec.pipeline.fetch.range_downloader import OpensStores
    from streamrec.pipeline.fetch.range_queue import Shards
    from streamrec.pipeline.lane.damage_policy import CorruptionLog
    from streamrec.pipeline.lane.lane import Lane
    from streamrec.pipeline.terms.memory_needs import Measures, RunCeiling
    from streamrec.pipeline.terms.run_plan import RunPlan
    from streamrec.plan.state.position import Position


THREADS = min(4, os.cpu_count() or 1)
"""The number of decoding threads."""
MOST_TOGETHER = 256
"""The most records that are sent together in a stream of single records."""
RAISE = "check what this machine is busy with, or raise stall_timeout"


class Decoding(NamedTuple):
    """A batch that is being decoded."""

    batch: Future[Batch]
    used: int
    """Bytes of its records' frames."""
    work: Work
    """The notes of the thread that decodes it."""


class Assembler:
    """The stages of a run from the plan's position on, and the assembler of their batches.

    Args:
        plan: The plan of the run.
        shards: The shards' names and the facts about them.
        stores: The stores of the shards.
        threads: Decode batches, filter and pack.
        corruption_log: The log of skipped damage; ``None``: damage ends the run.
        allocate: Allocates the columns of batches; by default the decoder does.
        measures: The run's counters, to count on.
        ceiling: The limits of a feeder, and what it shares among its runs.
    """

    def __init__(
        self,
        plan: RunPlan,
        shards: Shards,
        stores: OpensStores,
        *,
        threads: ThreadPoolExecutor,
        corruption_log: CorruptionLog | None,
        allocate: Allocate | None,
        measures: Measures,
        ceiling: RunCeiling = NO_CEILING,
    ) -> None:
        self.sent = plan.position
        """The position after the last batch that was sent."""
        self._plan = plan
        self._shards = shards
        self._threads = threads
        self._waits = measures.waits
        self._lanes: list[Lane] = []
        queues = [_queue(plan, shards, sublane) for sublane in range(len(plan.sublanes))]
        self._decoded = _decoded_memory(plan, ceiling)
        self._is_sent = allocate is not None  # into memory that the consumer shares
        # The list of lanes is still empty, and is filled in place below: fetcher and lanes need
        # each other.
        self.fetcher = _fetcher(
            plan, shards, stores, queues, self._lanes, measures, self._overdrawn
        )
        self._cores = ceiling.cores.share() if ceiling.cores else None
        self.inflater = self._make_inflater(queues, ceiling)
        """``None``: no shard is compressed."""
        self.decoder = _decoder(plan, shards, self._share_pictures, allocate, measures)
        self._builder = self._make_builder(corruption_log)
        self._lanes += map(self._builder.lane, range(len(plan.own_lanes)))
        # By record the step alone leads to the next record, so there is nothing to drop.
        skip = plan.position.skip if plan.by_record is None else 0
        self._batcher = self._make_batcher(skip)
        self.channel = _channel(plan)
        self._extent_tracker = ExtentTracker(plan, shards)
        self._padding_row = empty_chunk()
        self._share = LoopShare()

    def _make_builder(self, corruption_log: CorruptionLog | None) -> LaneBuilder:
        return LaneBuilder(
            plan=self._plan,
            shards=self._shards,
            fetcher=self.fetcher,
            corruption_log=corruption_log,
            threads=self._threads,
            decoder=self.decoder,
            waits=self._waits,
            share=self._each_on_a_core,
        )

    def _make_batcher(self, skip: int) -> Batcher | DealtBatcher:
        plan = self._plan
        own = Batcher(self._lanes.copy(), skip, ordered=plan.settings.ordered)
        if plan.deal is None:
            return own
        lane, number = self._builder.dealt_lane(), len(self._lanes)
        self._lanes.append(lane)
        return DealtBatcher(own, lane, number=number, deal=plan.deal, step=plan.position.step)

    def _make_inflater(self, queues: Sequence[RangeQueue], ceiling: RunCeiling) -> Inflater | None:
        inflating = [queue for queue in queues if isinstance(queue, InflatingQueue)]
        if not inflating:
            return None
        return Inflater(
            fetcher=self.fetcher,
            queues=inflating,
            plan=self._plan.memory,
            ceiling=ceiling,
            turn=self._on_a_core,
        )

    def _overdrawn(self, largest: float) -> int:
        """Return the bytes of decoded batches for which the budget has none beside the ranges.

        Batches to come count already: ranges that had taken their memory would keep it.

        Args:
            largest: Bytes of the largest record that is known.
        """
        memory, decoded = self.fetcher.plan, self._decoded
        borrowed = decoded.capacity - memory.decoded
        rows = self._plan.batch_size or 1
        mean = max(lane.record_size for lane in self._lanes)
        batch = self.decoder.estimate(rows, int(max(rows * mean, largest)))
        expected = memory.held(batch, is_sent=self._is_sent)
        taken = max(decoded.in_use - borrowed, expected)
        return max(0, taken + memory.for_ranges - memory.total)

    async def aclose(self) -> None:
        """Release all that is in no batch yet; a second call does nothing."""
        if self.inflater is not None:
            # First: its threads still read the ranges that the fetcher gives back.
            await self.inflater.aclose()
        # Otherwise reference cycles would hold the memory until the garbage collector runs.
        self._lanes.clear()
        self._batcher.close()
        await self.fetcher.aclose()

    def abandon(self) -> None:
        """Let the batches that are being decoded come to nothing: each thread ends its picture."""
        self._decoded.close()

    def _share_pictures(self, work: Callable[[int], None], count: int, at_once: int) -> None:
        """Decode pictures in all threads; a :data:`~streamrec.formats.examples.needs.Share`."""

        def unless_abandoned(number: int) -> None:
            with self._on_a_core():
                self._decoded.check()
                work(number)

        share_work(self._threads, THREADS - 1, unless_abandoned, count, at_once)

    def _each_on_a_core(self, work: Callable[[int], None], count: int, _at_once: int) -> None:
        """Decode pictures one after the other, in the calling thread."""
        for number in range(count):
            with self._on_a_core():
                work(number)

    def _on_a_core(self) -> AbstractContextManager[object]:
        """Work while the block runs, as soon as it is this run's turn."""
        return self._cores.working() if self._cores else nullcontext()

    def statistics(self) -> dict[str, Any]:
        """Return the stages' counters and current sizes."""
        return {
            "batches_ready": len(self.channel),
            "bytes_ready": self.channel.waiting_bytes,
            **self.fetcher.statistics(),
            **(self.inflater.statistics() if self.inflater else {}),
            "refetched": self.fetcher.counts["refetched"],
            "cached_pictures": self.fetcher.counts["cached_pictures"],
            "cached_mapped": self.fetcher.counts["cached_mapped"],
            **self._builder.left_out(),
            **self._excluded(),
        }

    def _excluded(self) -> dict[str, int]:
        if self._plan.settings.exclude is None:
            return {}
        return {"records_excluded": self.fetcher.counts["records_excluded"]}

    async def run(self) -> None:
        """Fill the channel, and close it with the first cause of a failure."""
        tasks = [
            asyncio.create_task(self._assemble(), name="streamrec-assemble"),
            asyncio.create_task(self.fetcher.run(), name="streamrec-fetch"),
        ]
        if self.inflater is not None:
            tasks.append(asyncio.create_task(self.inflater.run(), name="streamrec-inflate"))
        try:
            # A task group would wrap the first cause in a group of errors.
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end(*tasks)
            # Else this row would hold the memory of its range as long as somebody holds the run.
            self._padding_row = empty_chunk()
        failures = [task.exception() for task in tasks if not task.cancelled()]
        failure = next((failure for failure in failures if failure), None)
        # Behind the last task: whoever sees the end may close what the tasks use.
        await self.channel.close(_first_cause(failure))

    async def _assemble(self) -> None:
        plan = self._plan
        step = plan.position.step
        # A run that resumes within its padding has no row of its own yet: the last one is read
        # again.
        if plan.by_record is not None and plan.by_record.borrows_padding(step):
            await self._gather(1)
            self._padding_row = self._batcher.cut(1)
        while plan.end_step is None or step < plan.end_step:
            wanted = plan.rows(step)
            await self._gather(wanted)
            if self._batcher.pending < wanted:
                await self._send_remainder(step)
                return
            # A hand-over for each single record would cap the rate, so those that are pending go
            # together.
            rows = wanted if plan.batch_size else self._single_records(step)
            step += 1 if plan.batch_size else rows
            await self._send(rows, step)
            await self._share.give_way()  # so that ready batches leave at once

    def _single_records(self, step: int) -> int:
        """Return the number of single records to send together."""
        end = self._plan.end_step
        together = 1 if self._plan.is_one_by_one else MOST_TOGETHER
        most = together if end is None else min(together, end - step)
        return min(most, self._batcher.pending)

    async def _gather(self, wanted: int) -> None:
        """Merge until ``wanted`` rows are pending, or all lanes have ended."""
        while (lane := self._batcher.gather(wanted)) >= 0:
            # In order, the error of another lane waits for its turn: batches before it are
            # delivered.
            waited_for = [self._lanes[lane]] if self._plan.settings.ordered else self._lanes
            for error in (lane.error for lane in waited_for):
                if error is not None:
                    raise error
            await self._wait_for(lane)

    async def _wait_for(self, lane: int) -> None:
        if self.inflater is not None:
            self.inflater.wake()
        try:
            async with Silence(self._plan.settings.stall_timeout):
                sublane, stage = self._sublane_of(lane), self._lanes[lane].waits_for
                self._waits.produce(self.fetcher.stage(sublane) if stage == "fetch" else stage)
                await self.fetcher.wait_for(sublane, or_others=not self._plan.settings.ordered)
        except TimeoutError:
            raise self._stall_of(lane) from None
        finally:
            self._waits.produce("order")

    def _sublane_of(self, lane: int) -> int:
        """Return the sublane of the lane's next record."""
        return lane + self._lanes[lane].component * len(self._lanes)

    def _stall_of(self, lane: int) -> StreamrecError:
        """Make the error that names the stage that the lane waits for."""
        queues, seconds = self.fetcher.queues, self._plan.settings.stall_timeout
        stored = (queue.stored for queue in (queues[self._sublane_of(lane)], *queues))
        read = next(filter(None, stored), None)
        url = self._shards.urls[read.shard] if read else None
        if (stage := self._lanes[lane].waits_for) != "fetch":
            what = url if stage == "decompress" else stage
            return Stalled(f"{what} stands still for {seconds:g} s; {RAISE}", stage=stage)
        failure = read.last_failure if read else None
        cause = f" ({failure.message})" if failure else ""
        return StoreUnavailable(
            f"fetch stalls: nothing came for {seconds:g} s{cause}; check the store and the "
            "network, or raise stall_timeout",
            url=url,
            offset=read.request.start + read.filled if read else None,
        )

    async def _send_remainder(self, step: int) -> None:
        rows, plan = self._batcher.pending, self._plan
        # An endless run ends only where its lanes have nothing at all.
        if plan.end_epoch is None:
            raise DataError(
                "all shards of this rank's lanes are empty, so there is nothing to repeat; check "
                "the shards, or lower lanes"
            )
        if rows and plan.remainder != "drop":
            await self._send(rows, step + 1)

    async def _send(self, rows: int, step: int) -> None:
        chunk = self._batcher.cut(rows)
        # The next batch is padding alone, and gets the content of this one's last record.
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
        size = self.decoder.size(chunk)
        self._waits.produce("queue")
        # Before a thread begins: once decoded, a batch takes its memory whether or not there is
        # room.
        await self.channel.wait_for_room(size)
        self._waits.produce("order")
        work = Work(self._waits, self._decoded.open())
        decode = self.decoder.decode
        decoding = self._threads.submit(work.run, decode, chunk, position, padding, rows)
        del chunk  # the thread has the last reference: decoding frees the ranges
        await self.channel.send(Decoding(decoding, used, work), size)
        # Only now: a run that is halted before goes on at this batch.
        self.sent = behind

    def _position(self, step: int) -> Position:
        # By record a step says where all lanes are, so no coordinates are collected.
        if self._plan.by_record is not None:
            return self._plan.at(step)
        lanes, sources = self._batcher.coordinates()
        has_sources = self._plan.has_sources
        points = sources if has_sources else lanes
        self._extent_tracker.follow(points)
        return replace(
            self._plan.position,
            step=step,
            epoch=min(lanes["extent"].tolist()) if has_sources else self._extent_tracker.epoch,
            skip=0,
            lanes=lanes,
            sizes=self._extent_tracker.sizes(points, lanes),
            sources=sources,
        )


def _decoded_memory(plan: RunPlan, ceiling: RunCeiling) -> DecodedMemory:
    # Without a lender the default of DecodedMemory holds, which overdraws.
    borrow = [ceiling.borrow] if ceiling.borrow else []
    return DecodedMemory(plan.memory.decoded, *borrow)


def _channel(plan: RunPlan) -> Channel[Decoding]:
    return Channel(plan.memory.waiting, most_waiting(plan.settings.prefetch))


def _decoder(
    plan: RunPlan,
    shards: Shards,
    share: Share,
    allocate: Allocate | None,
    measures: Measures,
) -> Decoder:
    features: Any = plan.settings.features
    pictures, mapped = _caches(plan, measures)
    return Decoder(
        features,
        shards.urls,
        single=_is_single(plan),
        share=share,
        functions=plan.functions,
        masks=plan.keeps_placeholders,
        components=plan.components,
        checks_large=plan.checks_late,
        allocate=allocate,
        fill_picture=pictures.fill if pictures else decode_anew,
        mapped=mapped,
        limits=plan.limits,
        window=plan.settings.window,
        kept_pictures=plan.memory.episodes,
        renames=plan.renames,
    )


def _caches(plan: RunPlan, measures: Measures) -> tuple[PictureCache | None, MappedCache | None]:
    """Make the cache of pictures or of mapped records that the settings name."""
    pieces, settings = plan.decoded, plan.settings
    if pieces is None or settings.cache is None:
        return None, None
    from streamrec.pipeline.batch.record_caches import MappedCache, PictureCache

    if settings.cache.of == "pictures":
        return PictureCache(pieces, measures.counts), None
    if settings.cache.key is None:
        raise ConfigError(
            'a cache of "mapped" needs a key for the results of map; set key in cache, or open the '
            "dataset with streamrec.open or streamrec serve, which make one from the function"
        )
    named = {"features", "rename", "window"}
    plain = settings.model_dump(mode="json", include=named, warnings=False)
    form = plain["features"], _is_single(plan), plain["rename"], plain["window"]
    return None, MappedCache(pieces, measures.counts, settings.cache.key, form)


def _is_single(plan: RunPlan) -> bool:
    """Return whether no row is padded like its neighbours."""
    return plan.batch_size is None or plan.settings.pack is not None


def _fetcher(
    plan: RunPlan,
    shards: Shards,
    stores: OpensStores,
    queues: Sequence[RangeQueue],
    lanes: Sequence[Lane],
    measures: Measures,
    overdrawn: Callable[[float], int],
) -> Fetcher:
    settings = plan.settings
    most = MOST if settings.max_concurrency == "auto" else settings.max_concurrency
    return Fetcher(
        shards=shards,
        stores=stores,
        queues=queues,
        lanes=lanes,
        plan=plan.memory,
        # The first batch needs the head of every lane, so all of them are asked for at once.
        concurrency=Concurrency(max(START, len(queues)), most),
        stall_timeout=settings.stall_timeout,
        random=Random(),
        next_use=plan.next_use,
        counts=measures.counts,
        timings=measures.timings,
        spans=measures.waits.spans,
        overdrawn=overdrawn,
    )


def _queue(plan: RunPlan, shards: Shards, sublane: int) -> RangeQueue:
    """Make the queue of a sublane's ranges, and expect the size of the shard it was in."""
    (order, lane), sizes = plan.sublanes[sublane], plan.position.sizes
    start = Coordinates(*plan.points[sublane].item()[:POINTS])
    extent = order.extent(lane, start.extent)
    if sizes.size and (size := sizes.T.item(sublane)):
        shards.expect(extent.shard, size)
    offset = start.offset - lead(extent, start)
    setting, size = plan.settings.compression, plan.memory.first_range
    planner = LaneRanges(
        plan.extents(sublane, start.extent),
        shards.sizes,
        order.reach(lane),
        # Only a plain shard can be begun in its middle; with "auto" a probe tells first which it
        # is.
        offset=offset if offset and setting == "none" else None,
        probes=offset > 0 and setting == "auto",
    )
    if setting == "none":
        return RangeQueue(planner, size)
    return InflatingQueue(
        planner, size, shards=shards, setting=setting, skip=offset, piece_size=size
    )


def _first_cause(failure: BaseException | None) -> BaseException | None:
    """Return the first error inside a ``TaskGroup``'s exception groups."""
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    return failure
