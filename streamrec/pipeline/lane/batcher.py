"""Merges the lanes' ready records and cuts them into batches.

Records leave in the round robin's order, or, with ``ordered=False``, as the lanes have them. The
extents that the lanes are in are followed for the position of a batch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from streamrec.pipeline.batch.decoder import Chunk, empty_chunk
from streamrec.plan.order.coordinates import LANE, OWN, POINT
from streamrec.plan.order.round_robin import first_come, first_come_before, merge, merge_before
from streamrec.plan.order.shard_order import Extent
from streamrec.values.record_rows import interleave

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamrec.pipeline.fetch.range_queue import Shards
    from streamrec.pipeline.lane.lane import Lane
    from streamrec.pipeline.terms.run_plan import RunPlan
    from streamrec.plan.order.coordinates import Structured
    from streamrec.plan.order.round_robin import Merge
    from streamrec.plan.state.rank_deal import RankDeal
    from streamrec.values.columns import Indices

LARGEST_MERGE = 8192
"""The most rows that one merge takes beyond those that are wanted. A merge has a fixed cost for
each lane, so a few large ones are cheaper than many small ones."""
MERGE_BYTES = 16 << 20
"""The same limit in bytes. Merged rows keep their ranges in memory until they have left."""


class Batcher:
    """The merger of a rank's lanes, which cuts batches.

    Args:
        lanes: The rank's lanes.
        skip: Rows to drop at first, since they were delivered before the position was saved.
        ordered: Whether a lane whose next record is missing holds back the others.
    """

    def __init__(self, lanes: Sequence[Lane], skip: int = 0, *, ordered: bool = True) -> None:
        self._lanes = lanes
        self._ordered = ordered
        self._plan = merge if ordered else first_come
        self._counts_before = merge_before if ordered else first_come_before
        self._merged = [lane.start.taken for lane in lanes]
        self._delivered = self._merged.copy()
        self._places = np.array([lane.start.numbers for lane in lanes], np.int64)
        self._skip = skip
        self._chunk = empty_chunk()
        self._first = 0  # the chunk's first row that is in no batch yet
        self._merge_rows = 0

    @property
    def pending(self) -> int:
        """The number of rows that are merged and in no batch yet."""
        return len(self._chunk) - self._first

    def gather(self, wanted: int, ahead: int = LARGEST_MERGE) -> int:
        """Merge until ``wanted`` rows are pending.

        Args:
            wanted: The rows of a batch.
            ahead: The rows that will be wanted; more are not merged beforehand.

        Returns:
            The index of the lane whose next record is missing; -1 if enough rows are pending or
            all lanes have ended.
        """
        blocking = -1
        while (missing := wanted + self._skip - self.pending) > 0:
            # Whole batches: the rest of one would be copied to stand before the next rows.
            further = min(self._merge_rows, ahead) - missing
            most = missing + max(0, further) // wanted * wanted
            blocking, goes_on = self._merge(most)
            if not goes_on:
                break
        self._drop_skipped()
        if self.pending >= wanted:
            return -1
        self._release_ranges()
        return blocking

    def cut(self, rows: int) -> Chunk:
        """Take the next ``rows`` pending rows and move the lanes past them."""
        chunk = self._chunk.cut(self._first, self._first + rows)
        self._first += rows
        delivered = self._merged
        if self.pending:
            delivered = self._counts_before(self._chunk.keys[self._first :], delivered)
        else:
            self._chunk, self._first = empty_chunk(), 0
        for lane, total in enumerate(delivered):
            count = total - self._delivered[lane]
            if count > 0:  # not so if a forged position puts a lane far ahead of the others
                self._places[lane] = self._lanes[lane].deliver(count)
                self._delivered[lane] = total
        return chunk

    def close(self) -> None:
        """Release the lanes and all rows; nothing can be cut afterwards."""
        self._lanes = ()
        self._chunk, self._first = empty_chunk(), 0

    def coordinates(self) -> tuple[Structured, Structured]:
        """Return a position's ``lanes`` and ``sources`` after the last cut."""
        lanes = self._places[:, :OWN].copy().view(LANE)[:, 0]
        lanes["taken"] = self._delivered
        return lanes, self._places[:, OWN:].copy().view(POINT)

    def _merge(self, most: int) -> tuple[int, bool]:
        """Merge the rows that are ready, ``most`` of them at most.

        Returns:
            The lane that holds back the others, and whether another merge may give more. A lane
            that has less than its share has nothing more until further bytes come.
        """
        share = most // len(self._lanes) + 2
        for lane in self._lanes:
            if lane.available < share:
                lane.poll(share)
        available = [lane.available for lane in self._lanes]
        ended = [lane.ended for lane in self._lanes]
        plan = self._plan(self._merged, available, ended, most)
        if not len(plan.keys):
            return plan.blocking, False
        self._merged = [a + b for a, b in zip(self._merged, plan.counts, strict=True)]
        self._append(self._collect(plan))
        first = plan.blocking
        has_given_all = available[first] == plan.counts[first] < share
        return first, not (self._ordered and has_given_all and not ended[first])

    def _append(self, chunk: Chunk) -> None:
        row_bytes = chunk.nbytes // len(chunk) + 1
        self._merge_rows = min(LARGEST_MERGE, MERGE_BYTES // row_bytes)
        if self.pending:
            chunk = Chunk.concatenate([self._chunk.cut(self._first, None), chunk])
        self._chunk, self._first = chunk, 0

    def _release_ranges(self) -> None:
        """Release the ranges of which all rows have left.

        Otherwise a wait might never end: the missing rows may need just this memory.
        """
        if self._chunk.rows.buffers:
            rest = self._chunk.cut(self._first, None)
            # The rows go on as before, but refer only to buffers that they need.
            self._chunk, self._first = replace(rest, rows=rest.rows.prune()), 0

    def _collect(self, plan: Merge) -> Chunk:
        runs = [
            lane.take(count) if count else ()
            for lane, count in zip(self._lanes, plan.counts, strict=True)
        ]
        rows, epochs = interleave(runs, plan.keys)
        return Chunk.of(rows, plan.keys, epochs)

    def _drop_skipped(self) -> None:
        dropped = min(self._skip, self.pending)
        if dropped:
            self.cut(dropped)
            self._skip -= dropped


class DealtBatcher:
    """The merger of a rank's lanes, of whose rows some are exchanged for those of other lanes.

    A batch has the rows that the rank keeps, and then those that it gets.

    Args:
        own: The merger of the rank's own lanes.
        lane: The lane of the rows that it gets.
        number: The number of this lane among those of the run.
        deal: The deal.
        step: The step of the first batch.
    """

    def __init__(self, own: Batcher, lane: Lane, *, number: int, deal: RankDeal, step: int) -> None:
        self._own, self._taken = own, Batcher([lane])
        self._number, self._deal = number, deal
        self._step, self._dealt = step, deal.take_step(step)

    @property
    def pending(self) -> int:
        """The number of rows of own lanes that are merged and in no batch yet."""
        return self._own.pending

    def gather(self, wanted: int) -> int:
        """Merge until the rows of the next batch are there; see :meth:`Batcher.gather`."""
        blocking = self._own.gather(wanted)
        if blocking >= 0 or not wanted:
            return blocking
        missing = self._taken.gather(len(self._dealt.taken.records))
        return self._number if missing >= 0 else -1

    def cut(self, rows: int) -> Chunk:
        """Take the rows of the next batch."""
        dealt, own = self._dealt, self._own.cut(rows)
        parts = [own if dealt.kept.all() else own.keep(dealt.kept)]
        if count := len(dealt.taken.records):
            parts.append(self._taken.cut(count))
        self._step += 1
        self._dealt = self._deal.take_step(self._step)
        return Chunk.concatenate(parts) if count else parts[0]

    def close(self) -> None:
        """Release the lanes and all rows; nothing can be cut afterwards."""
        self._own.close()
        self._taken.close()

    def coordinates(self) -> tuple[Structured, Structured]:
        """Return those of own lanes; see :meth:`Batcher.coordinates`."""
        return self._own.coordinates()


class ExtentTracker:
    """The current extents of a run's sublanes, looked up only when they change."""

    def __init__(self, plan: RunPlan, shards: Shards) -> None:
        self._plan = plan
        self._shards = shards
        lanes = len(plan.own_lanes)
        self._numbers = np.full((lanes, len(plan.sublanes) // lanes), -1, np.int64)
        self._begins = self._numbers.copy()
        self._extents: list[Extent] = [Extent(-1, 0, 0)] * len(plan.sublanes)  # lane after lane
        self._inside: bytes | None = None  # which sublanes are inside an extent; None: unknown
        self._sizes = self._numbers
        self.epoch = 0
        """The lowest epoch of the extents."""

    def follow(self, points: Structured) -> None:
        """Look up the extents that have changed; ``points`` are those of a position."""
        numbers = points["extent"].reshape(self._numbers.shape)
        # Not by NumPy, whose reductions release the GIL: decoding threads would take it.
        if numbers.tobytes() == self._numbers.tobytes():
            return
        changed = np.flatnonzero(numbers != self._numbers).tolist()
        self._numbers = numbers.copy()
        lanes, sources = numbers.shape
        for place in changed:
            j, source = divmod(place, sources)
            order, lane = self._plan.sublanes[source * lanes + j]
            extent = order.extent(lane, numbers.item(place))
            self._extents[place] = extent
            self._begins.flat[place] = extent.begin
        self._inside = None
        self.epoch = min(extent.epoch for extent in self._extents)

    def sizes(self, points: Structured, lanes: Structured) -> Indices:
        """Return the sizes in bytes of the shards that sublanes are in the middle of; else 0.

        Returns:
            int64 ``[lanes, sources]``, as a position has them.
        """
        begun = (lanes["row"] | lanes["part"]) > 0
        inside = (points["offset"].reshape(self._begins.shape) > self._begins) | begun[:, None]
        if self._inside != inside.tobytes():
            self._inside = inside.tobytes()
            extents = zip(self._extents, inside.ravel().tolist(), strict=True)
            size_of = self._shards.size_of
            sizes = [size_of(extent.shard) * within for extent, within in extents]
            self._sizes = np.array(sizes, np.int64).reshape(inside.shape)
        return self._sizes
