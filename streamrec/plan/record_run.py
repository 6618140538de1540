"""One rank's run in the order by record. All of it is arithmetic: no record need be read."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from streamrec.errors import MalformedPosition
from streamrec.plan.position import LAST_EPOCH
from streamrec.plan.record_order import taken

if TYPE_CHECKING:
    import numpy.typing as npt

    from streamrec.plan.record_order import ChunkWindows, RecordOrder

    Numbers = npt.NDArray[np.int64]

__all__ = ["RecordRun"]


@dataclass(frozen=True)
class RecordRun:
    """What a rank delivers, step by step, from an epoch's beginning on.

    With ``"drop"`` every lane gives as many records as the shortest, with ``"pad"`` as many as the
    longest, the missing ones masked; the global batches are cut from these equal lanes, and so are
    the same for every world size to the end.
    """

    order: RecordOrder
    windows: ChunkWindows | None
    lanes: range
    """The rank's lanes."""
    batch_size: int | None
    epoch: int
    """The epoch at whose beginning all lanes stood."""
    step: int
    """The step at which they did."""
    end_epoch: int | None
    """The epoch before which the run ends; ``None``: records do not end it."""
    remainder: str

    @cached_property
    def counts(self) -> Numbers | None:
        """How many records each lane has; ``None``: without end."""
        if self.end_epoch is None:
            return None
        return self.order.counts(self.lanes, self.epoch, self.end_epoch)

    @property
    def records(self) -> int:
        """How many records all ranks' lanes have; 0 where records do not end the run."""
        return 0 if self.end_epoch is None else (self.end_epoch - self.epoch) * self.order.records

    @cached_property
    def steps(self) -> int | None:
        """How many batches (or single records) there are in all; ``None``: without end."""
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
        """The step at which the run ends; ``None``: records do not end it."""
        return None if self.steps is None else self.step + self.steps

    def check(self, step: int) -> None:
        """Refuse a step so far away that the numbers of extents would not be numbers any more.

        Raises:
            MalformedPosition: No stream ever came that far.
        """
        rows = (step - self.step) * (self.batch_size or 1) * (self.order.lanes // len(self.lanes))
        if self.epoch + rows // self.order.records > LAST_EPOCH:
            raise MalformedPosition(f"the state's step {step} is farther than any stream comes")

    @property
    def surplus(self) -> int:
        """Rows of all ranks' batches beyond the records; below 0: so many records are left out."""
        if self.steps is None or self.remainder == "keep":
            return 0
        rows = self.steps * (self.batch_size or 1) * (self.order.lanes // len(self.lanes))
        return rows - self.records

    def rows(self, step: int) -> int:
        """How many records that step's batch has; fewer than ``batch_size`` in the last rounds."""
        if self.counts is None:
            return self.batch_size or 1
        return int((self.taken(step + 1) - self.taken(step)).sum())

    def taken(self, step: int) -> Numbers:
        """How many records each lane has given before that step."""
        rows, lanes = (step - self.step) * (self.batch_size or 1), len(self.lanes)
        if self.counts is None:
            return taken(lanes, None, rows)
        if self.remainder == "pad":
            return np.minimum(self.counts, taken(lanes, None, rows))
        return taken(lanes, self.counts, min(rows, int(self.counts.sum())))

    def epoch_at(self, step: int) -> int:
        """The lowest epoch of the lanes' next records."""
        return min(
            self.order.epoch_of(lane, self.order.before(lane, self.epoch) + count)
            for lane, count in zip(self.lanes, self.taken(step).tolist(), strict=True)
        )

    def borrows_padding(self, step: int) -> bool:
        """Return whether a batch is padding alone, which borrows an earlier record's content."""
        end = self.end_step
        return end is not None and step < end and self.rows(step) == 0

    def starts(self, step: int) -> Numbers:
        """The lanes' part of a position: int64 ``[7, lanes]``, as a position by shard has it.

        If padding borrows a record's content, the first lane begins before its last record.
        """
        order, counts = self.order, self.taken(step)
        counts[0] -= self.borrows_padding(step)
        columns = [
            (*order.start(lane, order.before(lane, self.epoch) + count, self.windows), count, 0)
            for lane, count in zip(self.lanes, counts.tolist(), strict=True)
        ]
        return np.array(columns, np.int64).T
