"""The records of a mix's steps, by the indexes: no shard is read.

The lanes are those of a run, with the index in place of the readers: so nothing of the order is
written twice.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from streamrec.pipeline.dataset_places import check_begin, check_record, places_of
from streamrec.pipeline.lane.batcher import Batcher
from streamrec.pipeline.lane.lane_builder import kind_of, mix_of
from streamrec.pipeline.lane.record_span import RecordSpan
from streamrec.plan.order.coordinates import POINTS
from streamrec.plan.order.record_order import RecordOrder
from streamrec.plan.state.record_run import Delivered
from streamrec.values.record_rows import Chunks, RecordBlock

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from streamrec.pipeline.batch.decoder import Chunk
    from streamrec.pipeline.dataset import Dataset
    from streamrec.pipeline.dataset_places import DeliveredRecord
    from streamrec.pipeline.lane.lane import Lane
    from streamrec.pipeline.terms.run_plan import RunPlan
    from streamrec.plan.order.shard_order import Extent
    from streamrec.plan.state.fingerprint import Fingerprint
    from streamrec.plan.state.resume_point import ResumePoint


SINGLE_AT_ONCE = 1024
"""Single records that are taken together."""
_NOTHING = np.empty(0, np.uint8)


class MixDeliveries:
    """The places of one rank's records in a mix; arguments and errors as of RankDeliveries."""

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int | None,
        *,
        rank: int,
        world_size: int,
        point: ResumePoint,
    ) -> None:
        self._dataset, self._rank, self._batch_size = dataset, rank, batch_size
        self._memory = dataset.memory(world_size)
        start = dataset.position(batch_size, rank, world_size, point)
        self._plan = dataset.plan(start, batch_size, self._memory)

    @property
    def step(self) -> int:
        """The step with which they begin."""
        return self._plan.position.step

    @property
    def fingerprint(self) -> Fingerprint:
        """The facts that determine the order, with the changes of weights of the beginning."""
        return self._plan.position.fingerprint

    @cached_property
    def order(self) -> RecordOrder:
        """An order of all chunks of all components, which numbers their records."""
        tables = [order.table for order in self._plan.orders if isinstance(order, RecordOrder)]
        columns = zip(*tables, strict=True)
        return RecordOrder(Chunks(*(np.concatenate(column) for column in columns)), lanes=1)

    def rows(self, steps: range) -> Iterator[Delivered]:
        """Yield the rows of these steps, some of them at a time; those before are computed, too."""
        plan = self._plan
        while (step := plan.position.step) < steps.stop:
            end = plan.mix_end
            for first, chunk in _run(plan, steps.stop if end is None else min(end, steps.stop)):
                step = first + (1 if self._batch_size else len(chunk))
                if step > steps.start:
                    yield self._rows(plan, first, chunk)
            # A run without a batch is followed by others without end.
            if step == plan.position.step or plan.end_epoch is None:
                return
            following = plan.next_run(replace(plan.position, step=step))
            plan = self._dataset.plan(following, self._batch_size, self._memory)

    def of_steps(self, steps: range) -> Iterator[DeliveredRecord]:
        """Yield the places of the records of these steps, in their order."""
        check_begin(steps.start, self.step)
        for rows in self.rows(steps):
            yield from places_of(self._dataset, self._rank, rows, self.order)

    def of_records(
        self, records: Sequence[tuple[int, int]], steps: range
    ) -> Iterator[DeliveredRecord]:
        """Yield the places, in these steps, of some records: pairs of a shard and a number in it.

        Raises:
            ConfigError: A shard has no such record.
        """
        order, shards = self.order, self._dataset.shards
        for shard, record in records:
            check_record(order, shard, record, shards[shard])
        wanted = {(shards[shard], record) for shard, record in records}
        numbers = order.record_numbers(*np.array(records, np.int64).reshape(-1, 2).T)
        check_begin(steps.start, self.step)
        for rows in self.rows(steps):
            if np.isin(rows.records, numbers).any():
                places = places_of(self._dataset, self._rank, rows, order)
                yield from (place for place in places if (place.shard, place.record) in wanted)

    def _rows(self, plan: RunPlan, step: int, chunk: Chunk) -> Delivered:
        rows, count = chunk.rows, len(chunk)
        steps = step + (np.arange(count) if self._batch_size is None else np.zeros(count, np.int64))
        lanes = np.array(plan.own_lanes)[chunk.keys % len(plan.own_lanes)]
        assert rows.passes is not None
        records = self.order.record_numbers(rows.shards.astype(np.int64), rows.ordinals)
        return Delivered(steps, lanes, rows.passes, records)


def _run(plan: RunPlan, stop: int) -> Iterator[tuple[int, Chunk]]:
    """Yield the batches of a run before a step, each with its step; single records in parts.

    A run that ends by steps alone goes on: the next one begins where its lanes are.
    """
    batcher = Batcher([_lane(plan, j) for j in range(len(plan.own_lanes))], plan.position.skip)
    step, size = plan.position.step, plan.batch_size or 1
    while step < stop:
        batcher.gather(size, ahead=(stop - step) * size)
        rows = min(batcher.pending, size if plan.batch_size else min(SINGLE_AT_ONCE, stop - step))
        is_last = rows < size
        if not rows or (is_last and plan.remainder == "drop"):
            return
        yield step, batcher.cut(rows)
        step += 1 if plan.batch_size else rows


def _lane(plan: RunPlan, j: int) -> Lane:
    start = plan.start(j)
    sublanes = range(j, len(plan.sublanes), len(plan.own_lanes))
    mix = mix_of(plan, j, start, [IndexReader(plan, sublane) for sublane in sublanes])
    return kind_of(plan, j, start)(mix, start)


class IndexReader:
    """A reader of one sublane's records, as far as an index tells them: they have no bytes.

    Args:
        plan: The run's plan.
        sublane: The sublane's number.
    """

    waits_for = "fetch"

    def __init__(self, plan: RunPlan, sublane: int) -> None:
        self.epoch = plan.epoch(sublane)
        """The epoch that the sublane begins in."""
        self.ended = False
        """True when no more records will come."""
        extent, offset, record, _ = plan.points[sublane].item()[:POINTS]
        self._extents = plan.extents(sublane, extent)
        self._start = offset, record

    def pop(self) -> RecordSpan | None:
        """Return the records of the next extent; ``None``: there are no more."""
        for extent in self._extents:
            span = self._records_of(extent)
            if len(span):
                return span
        self.ended = True
        return None

    def _records_of(self, extent: Extent) -> RecordSpan:
        """Return the lane's records in an extent, from the start on."""
        offset, record = self._start
        self._start = 0, 0
        begin = extent.first_record + extent.skip
        end = begin + (extent.records or 0)
        # Only within an extent does a position name a record.
        first = max(begin, record) if offset > extent.begin else begin
        nothing = np.zeros(max(0, end - first), np.int64)
        block = RecordBlock(_NOTHING, nothing, nothing, extent.shard, first, base=extent.begin)
        return RecordSpan.of(extent, block)
