"""The sources of a run's lanes: readers, mixes and open shards."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from streamrec.config.memory_budget import record_limit
from streamrec.formats.shards.tfrecord import FrameScanner
from streamrec.pipeline.lane.damage_policy import DamagePolicy
from streamrec.pipeline.lane.mix_source import Component, Mix
from streamrec.pipeline.lane.open_shards import OpenShard, OpenShards
from streamrec.pipeline.lane.quarantine import marks_placeholders
from streamrec.pipeline.lane.record_reader import RecordReader
from streamrec.plan.coordinates import Coordinates

if TYPE_CHECKING:
    from streamrec.pipeline.fetch.fetcher import Fetcher
    from streamrec.pipeline.fetch.range_queue import Shards
    from streamrec.pipeline.lane.quarantine import CorruptionLog
    from streamrec.pipeline.run_plan import RunPlan
    from streamrec.plan.mixture import Draws
    from streamrec.plan.window import Windows

__all__ = ["Source", "Sources"]

Source: TypeAlias = RecordReader | Mix | OpenShards
"""A source of a lane's records."""


class Sources:
    """A factory of the sources of a run's lanes.

    Args:
        plan: The run's plan.
        shards: The shards' names and the facts about them.
        fetcher: The fetcher of the ranges.
        corruption_log: The log of skipped damage; ``None``: damage ends a lane.
    """

    def __init__(
        self,
        plan: RunPlan,
        shards: Shards,
        fetcher: Fetcher,
        corruption_log: CorruptionLog | None,
    ) -> None:
        self._plan = plan
        self._shards = shards
        self._fetcher = fetcher
        self._corruption_log = corruption_log
        self._most = record_limit(plan.settings)

    def of(self, j: int, start: Coordinates) -> Source:
        """Make the source of lane ``j`` of the rank, which begins at ``start``."""
        plan = self._plan
        if plan.draws is not None:
            return self._mix(j, start, plan.draws)
        if plan.turns is not None:
            return self._open_shards(j, start, plan.turns)
        return self._reader(j)

    def _feeds(self, j: int) -> range:
        """Return the feeds of lane ``j`` of the rank, which draws from several."""
        return range(j, len(self._plan.feeds), len(self._plan.own_lanes))

    def _mix(self, j: int, start: Coordinates, draws: Draws) -> Mix:
        plan = self._plan
        assert plan.components is not None
        own = zip(plan.components.names, self._feeds(j), start.sources, strict=True)
        parts = [
            Component(name, self._reader(feed), point, plan.epoch(feed))
            for name, feed, point in own
        ]
        lane = plan.own_lanes[j]
        exhausted = None if plan.end_epoch is None else plan.settings.exhausted
        return Mix(parts, draws, lane, start, plan.lane_end(lane), ends=exhausted)

    def _open_shards(self, j: int, start: Coordinates, turns: Windows) -> OpenShards:
        plan = self._plan
        open_shards = [
            OpenShard(self._reader(feed), point, partial(plan.epoch_of, feed))
            for feed, point in zip(self._feeds(j), start.sources, strict=True)
        ]
        lane = plan.own_lanes[j]
        end = None if plan.end_epoch is None else plan.lane_end(lane)
        return OpenShards(open_shards, turns, lane, start, end)

    def _reader(self, feed: int) -> RecordReader:
        plan, (order, lane) = self._plan, self._plan.feeds[feed]
        start = Coordinates(*plan.points[feed].item()[:3])
        scanner = partial(
            FrameScanner,
            check_crc=plan.settings.check_crc,
            leaves_large=plan.checks_late,
            allocate=partial(self._fetcher.acquire, feed),
            share=plan.memory.total // plan.memory.lanes,
            most=self._most,
        )
        damage = DamagePolicy(
            self._fetcher.counts,
            self._corruption_log,
            keeps_placeholders=marks_placeholders(plan.settings, plan.batch_size),
            notify=partial(self._fetcher.notify, feed),
            reach=order.reach(lane),
        )
        ranges, end = self._fetcher.feeds[feed], plan.feed_end(order, lane)
        return RecordReader(ranges, self._shards, start, end, scanner, damage, plan.epoch(feed))
