"""The builder of a run's lanes: their sources, and their stages."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from streamrec.config.machine import record_limit
from streamrec.config.record_choice import NamingPack
from streamrec.formats.examples.needs import one_by_one
from streamrec.formats.examples.packing import Packer
from streamrec.formats.shards.tfrecord import FrameScanner
from streamrec.pipeline.lane.damage_policy import DamagePolicy
from streamrec.pipeline.lane.draw_changes import DrawChanges
from streamrec.pipeline.lane.lane import Lane, WindowLane
from streamrec.pipeline.lane.mix_source import Component, Mix
from streamrec.pipeline.lane.open_shards import OpenShards
from streamrec.pipeline.lane.record_reader import RecordReader
from streamrec.pipeline.lane.stages import Filter, FilterStage, Packing
from streamrec.pipeline.terms.run_plan import marks_placeholders
from streamrec.plan.order.coordinates import POINTS, Coordinates
from streamrec.plan.order.record_order import ChunkWindows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future, ThreadPoolExecutor

    from streamrec.config import Pack
    from streamrec.flow.stages import WaitClock
    from streamrec.formats.examples.needs import Share
    from streamrec.kernel.contract import Allocate
    from streamrec.pipeline.batch.decoder import Decoder
    from streamrec.pipeline.fetch.fetcher import Fetcher
    from streamrec.pipeline.fetch.range_queue import Shards
    from streamrec.pipeline.lane.damage_policy import CorruptionLog
    from streamrec.pipeline.lane.mix_source import ComponentReader
    from streamrec.pipeline.lane.record_span import RecordSpan
    from streamrec.pipeline.lane.stages import Source
    from streamrec.pipeline.terms.run_plan import RunPlan

T = TypeVar("T")


@dataclass(eq=False)
class LaneBuilder:
    """A builder of the rank's lanes.

    Args:
        plan: The run's plan.
        shards: The shards' names and the facts about them.
        fetcher: Fetches the ranges, and is notified when a lane has news.
        corruption_log: The log of skipped damage; ``None``: damage ends a lane.
        threads: Filter and pack.
        decoder: Parses and maps the records to pack.
        waits: The run's attribution of time.
        share: Runs the decoding of the pictures that filters look at, in the calling thread.
    """

    plan: RunPlan
    shards: Shards
    fetcher: Fetcher
    corruption_log: CorruptionLog | None
    threads: ThreadPoolExecutor
    decoder: Decoder
    waits: WaitClock
    share: Share = one_by_one
    _packers: list[Packer] = field(default_factory=list)

    def __post_init__(self) -> None:
        features: Any = self.plan.settings.features
        function, limits = self.plan.functions.filter, self.plan.limits
        parts = features, self.shards.urls, limits, self.share, self.plan.renames
        # One for all lanes: each learns from the others which features the function uses.
        self._filter = None if function is None else Filter(function, *parts)
        self._loop = asyncio.get_running_loop()

    def lane(self, j: int) -> Lane:
        """Build lane ``j`` of the rank.

        Raises:
            MalformedPosition: No lane with packs can be at its coordinates.
        """
        plan = self.plan
        start, patience = plan.start(j), plan.patience(plan.own_lanes[j])
        source = self._source(j, start)
        filter_stage = packing = None
        if self._filter is not None or plan.settings.window is not None:
            allocate = partial(self.fetcher.acquire, j)
            apply = partial(self._submit, j, self._cut, allocate=allocate)
            filter_stage = FilterStage(source, apply, patience)
        if plan.settings.pack is not None:
            packer = Packer(plan.settings.pack, start.part)
            self._packers.append(packer)
            submit = partial(self._submit, j)
            packing = Packing(
                packer=packer,
                columns=self.decoder.columns,
                submit=submit,
                start=start,
                patience=patience,
                places=_places_in(plan.settings.pack),
            )
        return kind_of(plan, j, start)(
            source,
            start,
            filter_stage=filter_stage,
            packing=packing,
            record_size=plan.memory.first_range / 4,
        )

    def dealt_lane(self) -> Lane:
        """Build the lane of the rows that are dealt to the rank."""
        j = len(self.plan.own_lanes)
        size = self.plan.memory.first_range / 4
        return Lane(self._reader(j), self.plan.start(j), record_size=size)

    def _cut(self, span: RecordSpan, allocate: Allocate) -> RecordSpan:
        """Return the records that the filter keeps, or the windows of these episodes."""
        if self._filter is not None:
            span = self._filter.apply(span, allocate)
        window = self.plan.settings.window
        if window is None:
            return span
        from streamrec.formats.examples.episode_windows import first_steps  # few streams need it

        counts = self.decoder.count_steps(span.rows)
        return span.windows([first_steps(count, window) for count in counts.tolist()])

    def left_out(self) -> dict[str, int]:
        """Count the documents and values that fitted no pack."""
        if self.plan.settings.pack is None:
            return {}
        return {
            "documents_dropped": sum(packer.dropped_documents for packer in self._packers),
            "values_dropped": sum(packer.dropped_values for packer in self._packers),
        }

    def _submit(self, j: int, work: Callable[..., T], *arguments: Any, **named: Any) -> Future[T]:
        """Run some work of a lane in a thread, and notify the lane when it is done."""
        future = self.threads.submit(work, *arguments, **named)

        def notify(_: Future[T]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the run is over
                self._loop.call_soon_threadsafe(self.fetcher.notify, j)

        future.add_done_callback(notify)
        return future

    def _source(self, j: int, start: Coordinates) -> Source:
        plan, lane = self.plan, self.plan.own_lanes[j]
        if not plan.has_sources:
            return self._reader(j)
        sublanes = range(j, len(plan.sublanes), len(plan.own_lanes))
        readers = [self._reader(sublane) for sublane in sublanes]
        if plan.turns is None:
            return mix_of(plan, j, start, readers)
        end = None if plan.end_epoch is None else plan.lane_end(lane)
        return OpenShards(readers=readers, windows=plan.turns, lane=lane, start=start, end=end)

    def _reader(self, sublane: int) -> RecordReader:
        plan, (order, lane) = self.plan, self.plan.sublanes[sublane]
        # Window, row and pack are coordinates of the lane; its sublanes begin at points.
        start = Coordinates(*plan.points[sublane].item()[:POINTS])
        scanner = partial(
            FrameScanner,
            check_crc=plan.settings.check_crc,
            leaves_large=plan.checks_late,
            allocate=partial(self.fetcher.acquire, sublane),
            share=plan.memory.total // plan.memory.lanes,
            most=record_limit(plan.settings),
        )
        damage = DamagePolicy(
            self.fetcher.counts,
            self.corruption_log,
            keeps_placeholders=marks_placeholders(plan.settings, plan.batch_size),
            notify=partial(self.fetcher.notify, sublane),
            reach=order.reach(lane),
        )
        ranges, end = self.fetcher.queues[sublane], plan.sublane_end(order, lane)
        return RecordReader(
            queue=ranges,
            shards=self.shards,
            start=start,
            end=end,
            new_scanner=scanner,
            damage=damage,
            epoch=plan.epoch(sublane),
            waits=self.waits,
            number=sublane,
            patience=None if plan.keeps_placeholders else plan.patience(lane),
            shard_bytes=plan.shard_bytes,
        )


def kind_of(plan: RunPlan, j: int, start: Coordinates) -> Callable[..., Lane]:
    """Return the class of a rank's lane, together with its windows if it has some."""
    if plan.windows is None:
        return Lane
    return partial(
        WindowLane,
        windows=plan.windows,
        number=plan.own_lanes[j],
        epoch=start.extent if plan.has_sources else plan.epoch(j),
        buckets=plan.buckets,
        keeps_placeholders=plan.keeps_placeholders,
    )


def mix_of(plan: RunPlan, j: int, start: Coordinates, readers: Sequence[ComponentReader]) -> Mix:
    """Return the source of a rank's lane of a mix.

    Args:
        plan: The run's plan.
        j: The lane's number among the rank's.
        start: The coordinates that it begins at.
        readers: The readers of the components, in the order of their names.
    """
    lane = plan.own_lanes[j]
    assert plan.components is not None
    assert plan.draws is not None
    assert not isinstance(plan.windows, ChunkWindows)
    parts = [
        Component(name, reader, point)
        for name, reader, point in zip(plan.components.names, readers, start.sources, strict=True)
    ]
    changes = DrawChanges(
        plan.changes,
        start,
        windows=plan.windows,
        lane=lane,
        keeps_placeholders=plan.keeps_placeholders,
    )
    return Mix(
        components=parts,
        draws=plan.draws,
        lane=lane,
        start=start,
        end=plan.lane_end(lane),
        # Without an end by epochs each component goes on into its next epoch, and none is
        # exhausted.
        ends=None if plan.end_epoch is None else plan.settings.exhausted,
        changes=changes,
        is_even=plan.settings.is_mixed_by_index,
    )


def _places_in(pack: Pack) -> int:
    """Return the most records of a pack whose batches name each of them; else 0."""
    if not isinstance(pack, NamingPack):
        return 0
    lengths = pack.length.values() if isinstance(pack.length, dict) else [pack.length]
    # Each record in a pack has a value of one feature at least.
    return sum(lengths) if pack.documents is None else pack.documents
