"""One rank's run in the order by record, and the records of its steps: arithmetic alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from streamrec.errors import MalformedPosition
from streamrec.plan.order.coordinates import LANE, OWN
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

    def later(self, runs: int) -> RecordRun:
        """Return the run that comes so many runs after this one, of as many epochs each."""
        assert self.end_epoch is not None
        assert self.steps is not None
        epochs = runs * (self.end_epoch - self.epoch)
        return replace(
            self,
            epoch=self.epoch + epochs,
            step=self.step + runs * self.steps,
            end_epoch=self.end_epoch + epochs,
        )

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


class Delivered(NamedTuple):
    """Delivered records in the order in which they leave, without padding: int64 ``[n]`` each."""

    steps: Numbers
    lanes: Numbers
    epochs: Numbers
    records: Numbers
    """The number of each record in the index's table of all records."""


class Delivery:
    """The records that a run delivers, as far as an index tells them.

    Args:
        run: The run of one rank.
    """

    def __init__(self, run: RecordRun) -> None:
        self._run = run
        self._windows: dict[int, tuple[int, int, tuple[int, Numbers]]] = {}

    def of_steps(self, first: int, last: int) -> Delivered:
        """Return the records of the steps from ``first`` to before ``last``, all in this run."""
        run = self._run
        begins, ends = run.counts_before(first), run.counts_before(last)
        parts = [self._of_lane(j, *c) for j, c in enumerate(zip(begins, ends, strict=True))]
        slots, *columns = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.argsort(slots, kind="stable")
        steps = run.step + slots // (run.batch_size or 1)
        return Delivered(*(column[order] for column in (steps, *columns)))

    def step_of(self, record: int, epoch: int) -> int | None:
        """Return the step that delivers a record in an epoch; ``None``: this rank's run does not.

        Args:
            record: The record's number in the index's table.
            epoch: The epoch.
        """
        run = self._run
        order = run.order
        lane, place = order.place_of(record, epoch)
        if lane not in run.lanes:
            return None
        number = order.before(lane, epoch) + self._left_at(lane, epoch, place)
        count, j = number - order.before(lane, run.epoch), run.lanes.index(lane)
        if count < 0 or (run.counts is not None and count >= run.counts[j]):
            return None
        step = run.step + int(self._slots(j, np.array([count]))[0]) // (run.batch_size or 1)
        return step if run.end_step is None or step < run.end_step else None

    def _of_lane(self, j: int, begin: int, end: int) -> tuple[Numbers, ...]:
        """Return the slots, lanes, epochs and records of the lane's records in this range."""
        run, lane = self._run, self._run.lanes[j]
        counts = np.arange(begin, end, dtype=np.int64)
        numbers = counts + run.order.before(lane, run.epoch)
        epochs = (numbers * run.order.lanes + lane) // run.order.records
        records = np.empty_like(counts)
        for epoch in epochs[np.diff(epochs, prepend=-1) > 0].tolist():  # they rise
            own = epochs == epoch
            taken = self._taken_at(lane, epoch, numbers[own] - run.order.before(lane, epoch))
            records[own] = run.order.records_at(lane, epoch, taken)
        return self._slots(j, counts), np.full_like(counts, lane), epochs, records

    def _slots(self, j: int, counts: Numbers) -> Numbers:
        """Return the places, among all of the rank's rows, of the lane's records."""
        run = self._run
        slots = counts * len(run.lanes) + j
        # In the last round only the longer lanes have a record; padding fills the others' slots.
        if run.counts is not None and run.remainder != "pad":
            shortest = int(run.counts.min())
            last = shortest * len(run.lanes) + self._longer_before[j]
            slots = np.where(counts < shortest, slots, last)
        return slots

    @cached_property
    def _longer_before(self) -> Numbers:
        """The number of longer lanes before each of the rank's lanes."""
        counts = self._run.counts
        longer = np.zeros(0, np.int64) if counts is None else (counts > counts.min()).astype(int)
        before: Numbers = np.cumsum(longer) - longer
        return before

    def _taken_at(self, lane: int, epoch: int, left: Numbers) -> Numbers:
        """Return the lane's places at which records stood before their windows were shuffled."""
        windows = self._run.windows
        if windows is None:
            return left
        taken = np.empty_like(left)
        # In each lane places rise, so that windows follow one another.
        done = 0
        while done < len(left):
            begin, order = self._window(lane, epoch, int(left[done]))
            until = int(np.searchsorted(left, begin + len(order)))
            taken[done:until] = begin + order[left[done:until] - begin]
            done = until
        return taken

    def _left_at(self, lane: int, epoch: int, taken: int) -> int:
        """Return the place at which a record leaves its lane: the inverse of ``_taken_at``."""
        if self._run.windows is None:
            return taken
        begin, order = self._window(lane, epoch, taken)
        return begin + int(np.flatnonzero(order == taken - begin)[0])

    def _window(self, lane: int, epoch: int, place: int) -> tuple[int, Numbers]:
        """Return the beginning and the order of the window that holds a place of the lane."""
        windows = self._run.windows
        assert windows is not None
        number = windows.of_record(lane, epoch, place)
        # The last one of each lane is kept, as many batches are of it.
        kept = self._windows.get(lane)
        if kept is not None and kept[:2] == (epoch, number):
            return kept[2]
        length = windows.opens(lane, epoch, number)
        # The order of chunks needs the number of the records, and not their shards.
        order = windows.permutation(lane, epoch, number, np.zeros(length, np.int32))
        found = windows.begin(lane, epoch, number), order
        self._windows[lane] = epoch, number, found
        return found


def lane_counts(lanes: int, counts: Numbers | None, rows: int) -> Numbers:
    """Return how many records each of a rank's lanes has given after so many delivered rows.

    Args:
        lanes: The number of the rank's lanes.
        counts: The records of each in the run, which differ by one at most; ``None``: no end.
        rows: The rows delivered.
    """
    rounds, rest = divmod(rows, lanes)
    # Each round takes one record of each lane, until the shorter lanes have ended.
    if counts is None or rounds < counts.min():
        return rounds + (np.arange(lanes) < rest).astype(np.int64)
    rounds = int(counts.min())
    longer = counts > rounds
    return rounds + (longer & (np.cumsum(longer) <= rows - rounds * lanes)).astype(np.int64)
