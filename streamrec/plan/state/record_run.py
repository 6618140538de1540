"""One rank's run in the order by record, by arithmetic alone: no record is read."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from streamrec.errors import MalformedPosition
from streamrec.plan.order.coordinates import LANE, OWN
from streamrec.plan.order.record_order import lane_counts
from streamrec.plan.state.position import LAST_EPOCH

if TYPE_CHECKING:
    import numpy.typing as npt

    from streamrec.plan.order.coordinates import Structured
    from streamrec.plan.order.record_order import ChunkWindows, RecordOrder

    Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RecordRun:
    """The steps of a rank's run from the beginning of an epoch.

    With ``"drop"`` every lane gives as many records as the shortest; with ``"pad"`` as many as the
    longest, and the missing ones are masked. Global batches are cut from these equal lanes, so they
    are the same for every world size to the end.
    """

    order: RecordOrder
    windows: ChunkWindows | None
    lanes: range
    """The rank's lanes."""
    batch_size: int | None
    epoch: int
    """The epoch with which the run begins."""
    step: int
    """The step with which it begins."""
    end_epoch: int | None
    """The epoch before which the run ends; ``None``: the records do not end it."""
    remainder: str

    @cached_property
    def counts(self) -> Numbers | None:
        """The records of each of the rank's lanes; ``None``: without end."""
        if self.end_epoch is None:
            return None
        return self.order.counts(self.lanes, self.epoch, self.end_epoch)

    @property
    def records(self) -> int:
        """The records of all ranks' lanes together; 0: the records do not end the run."""
        return 0 if self.end_epoch is None else (self.end_epoch - self.epoch) * self.order.records

    @cached_property
    def steps(self) -> int | None:
        """The number of batches (or single records) of the rank; ``None``: without end."""
        if self.counts is None:
            return None
        size, records = self.batch_size or 1, self.records
        if self.remainder == "keep":
            return -(-int(self.counts.sum()) // size)
        shortest = records // self.order.lanes
        if self.remainder == "drop":
            return shortest * len(self.lanes) // size
        longest = -(-records // self.order.lanes)
        return -(-longest * len(self.lanes) // size)

    @property
    def end_step(self) -> int | None:
        """The step at which the run ends; ``None``: the records do not end it."""
        return None if self.steps is None else self.step + self.steps

    def check(self, step: int) -> None:
        """Check that a step is not so far away that the numbers of extents would overflow.

        Raises:
            MalformedPosition: No stream can get that far.
        """
        rows = (step - self.step) * (self.batch_size or 1) * (self.order.lanes // len(self.lanes))
        if self.epoch + rows // self.order.records > LAST_EPOCH:
            raise MalformedPosition(
                f"the state's step {step} is farther than any stream comes; give the "
                "state as it was saved"
            )

    @property
    def surplus(self) -> int:
        """Rows of all ranks' batches minus their records; below 0 where records are left out."""
        if self.steps is None or self.remainder == "keep":
            return 0
        rows = self.steps * (self.batch_size or 1) * (self.order.lanes // len(self.lanes))
        return rows - self.records

    def rows(self, step: int) -> int:
        """Return the number of records in that step's batch; the last ones may have fewer."""
        if self.counts is None:
            return self.batch_size or 1
        return int((self.counts_before(step + 1) - self.counts_before(step)).sum())

    def counts_before(self, step: int) -> Numbers:
        """Return the number of records that each lane has given before that step."""
        rows, lanes = (step - self.step) * (self.batch_size or 1), len(self.lanes)
        if self.counts is None:
            return lane_counts(lanes, None, rows)
        if self.remainder == "pad":
            return np.minimum(self.counts, lane_counts(lanes, None, rows))
        return lane_counts(lanes, self.counts, min(rows, int(self.counts.sum())))

    def epoch_at(self, step: int) -> int:
        """Return the lowest epoch of the lanes' next records at that step."""
        return min(
            self.order.epoch_of(lane, self.order.before(lane, self.epoch) + count)
            for lane, count in zip(self.lanes, self.counts_before(step).tolist(), strict=True)
        )

    def borrows_padding(self, step: int) -> bool:
        """Return whether a batch is padding alone, which borrows an earlier record's content."""
        end = self.end_step
        return end is not None and step < end and self.rows(step) == 0

    def starts(self, step: int) -> Structured:
        """Return the lanes' coordinates at that step, as in a position."""
        order, counts = self.order, self.counts_before(step)
        if self.borrows_padding(step):
            # The last record that was delivered gives the padding its content, so it is read again.
            counts[np.flatnonzero(counts == counts.max())[-1]] -= 1
        starts = [
            order.start(lane, order.before(lane, self.epoch) + count, self.windows)[:OWN]
            for lane, count in zip(self.lanes, counts.tolist(), strict=True)
        ]
        lanes = np.array(starts, LANE)
        lanes["taken"] = counts
        return lanes
