"""The stages of a run, from the ranges of its shards to decoded batches, and how they are built."""

from __future__ import annotations

import os
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from streamrec.flow.channel import Channel
from streamrec.flow.work_sharing import WorkSharing
from streamrec.pipeline.batch.batcher import Batcher
from streamrec.pipeline.batch.decoder import Decoder
from streamrec.pipeline.fetch.fetcher import Fetcher, OpensStores
from streamrec.pipeline.fetch.inflater import Inflater
from streamrec.pipeline.lane.lane import Lane
from streamrec.pipeline.lane.lane_sources import Sources
from streamrec.pipeline.lane.ordering_stages import InOrder, Stage, WindowShuffle
from streamrec.pipeline.lane.threaded_stages import Workers
from streamrec.plan.concurrency import MOST, START, Concurrency
from streamrec.plan.ranges import LaneRanges

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future, ThreadPoolExecutor

    from streamrec.kernel.contract import Allocate
    from streamrec.pipeline.fetch.range_queue import Shards
    from streamrec.pipeline.lane.quarantine import CorruptionLog
    from streamrec.pipeline.run_plan import RunPlan
    from streamrec.values.batch import Batch

__all__ = ["THREADS", "Decoding", "Stages", "build_stages"]

THREADS = min(4, os.cpu_count() or 1)
"""The number of decoding threads."""


class Decoding(NamedTuple):
    """A batch that is being decoded."""

    batch: Future[Batch]
    used: int
    """Bytes of its records' frames."""


@dataclass(frozen=True, eq=False)
class Stages:
    """The stages of a run, in the order in which a record passes them."""

    fetcher: Fetcher
    inflater: Inflater | None
    """``None``: no shard is compressed."""
    workers: Workers
    lanes: list[Lane]
    batcher: Batcher
    decoder: Decoder
    channel: Channel[Decoding]

    def close(self) -> None:
        """Release all that is in no batch yet; a second call does nothing."""
        if self.inflater is not None:
            self.inflater.close()
        self.fetcher.close()
        # Otherwise reference cycles would hold the memory until the garbage collector runs.
        self.lanes.clear()
        self.batcher.close()


def build_stages(
    plan: RunPlan,
    shards: Shards,
    stores: OpensStores,
    threads: ThreadPoolExecutor,
    corruption_log: CorruptionLog | None,
    allocate: Allocate | None,
) -> Stages:
    """Build the stages of a run that begins at the plan's position.

    Args:
        plan: The plan of the run.
        shards: The shards' names and the facts about them.
        stores: The stores of the shards.
        threads: Decode batches, filter and pack.
        corruption_log: The log of skipped damage; ``None``: damage ends the run.
        allocate: Allocates the columns of batches; by default the decoder does.
    """
    settings, lanes = plan.settings, list[Lane]()
    decoder = _decoder(plan, shards, threads, allocate)
    fetcher = _fetcher(plan, shards, stores, lanes)
    inflater = None
    if settings.compression != "none":
        offsets = plan.points["offset"].tolist()
        inflater = Inflater(fetcher, shards, plan.memory, settings.compression, offsets)
    workers = Workers(plan, shards.urls, threads, decoder, fetcher)
    sources = Sources(plan, shards, fetcher, corruption_log)
    lanes += [_lane(plan, j, sources, workers) for j in range(len(plan.own_lanes))]
    skip = plan.position.skip if plan.by_record is None else 0
    batcher = Batcher(lanes, skip, ordered=settings.ordered)
    most = None if settings.prefetch == "auto" else settings.prefetch
    channel = Channel[Decoding](plan.memory.waiting, most)
    return Stages(fetcher, inflater, workers, lanes, batcher, decoder, channel)


def _decoder(
    plan: RunPlan, shards: Shards, threads: ThreadPoolExecutor, allocate: Allocate | None
) -> Decoder:
    features: Any = plan.settings.features
    return Decoder(
        features,
        shards.urls,
        single=plan.batch_size is None or plan.settings.pack is not None,
        share=WorkSharing(threads, THREADS - 1).share,
        functions=plan.functions,
        masks=plan.keeps_placeholders,
        components=plan.components,
        checks_large=plan.checks_late,
        allocate=allocate,
    )


def _fetcher(plan: RunPlan, shards: Shards, stores: OpensStores, lanes: Sequence[Lane]) -> Fetcher:
    settings = plan.settings
    planners = [_planner(plan, shards, feed) for feed in range(len(plan.feeds))]
    most = MOST if settings.max_concurrency == "auto" else settings.max_concurrency
    return Fetcher(
        shards,
        stores,
        planners,
        lanes,
        plan.memory,
        concurrency=Concurrency(max(START, len(planners)), most),
        stall_timeout=settings.stall_timeout,
        random=Random(),
    )


def _planner(plan: RunPlan, shards: Shards, feed: int) -> LaneRanges:
    """Make the planner of a feed's ranges, and expect the version that the position was in."""
    (order, lane), tags = plan.feeds[feed], plan.position.tags
    extent, offset = plan.points[feed].item()[:2]
    tag = tags.T.item(feed) if tags.size else 0
    if tag:
        shards.expected_tags[order.extent(lane, extent).shard] = tag
    compression = plan.settings.compression
    return LaneRanges(
        plan.extents(feed, extent),
        shards.sizes,
        order.reach(lane),
        offset=offset if offset and compression == "none" else None,
        probes=offset > 0 and compression == "auto",
    )


def _lane(plan: RunPlan, j: int, sources: Sources, workers: Workers) -> Lane:
    """Make lane ``j`` of the rank."""
    lane, start = plan.own_lanes[j], plan.start(j)
    stage: Stage = InOrder(start.row)
    if plan.windows is not None:
        epoch = start.extent if plan.has_sources else plan.epoch(j)
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
        sources.of(j, start),
        stage,
        start,
        filter_stage=workers.filter_stage(j, patience),
        packing=workers.packing(j, start, patience),
        record_size=plan.memory.first_range / 4,
    )
