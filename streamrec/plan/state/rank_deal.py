"""The rows of a run that are dealt to a rank, so that the ranks' costs are even: arithmetic alone.

A rank reads its own lanes, leaves out the rows that it gives, and gets others: each of these is an
extent of its own, of one record. All ranks deal each global batch alike, by an index of lengths. So
a step leads to the rows of every rank, and a state needs nothing more.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from streamrec.errors import ConfigError
from streamrec.plan.order.balance import deal
from streamrec.plan.order.shard_order import Extent
from streamrec.plan.state.record_run import Delivered, Delivery

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from streamrec.config.record_choice import Balance
    from streamrec.plan.state.record_run import RecordRun
    from streamrec.values.record_rows import RecordLengths

    Numbers = npt.NDArray[np.int64]

ROWS_AT_ONCE = 8192
"""The rows of a block of steps whose records are computed together: one pass over the windows."""
ROWS_APART = 1024
"""The most rows of all ranks between two extents of the rows that a rank gets, about: fetching
looks ahead by extents, and deals all steps on the way."""
LARGEST_SUM = 1 << 62


class DealtStep(NamedTuple):
    """The deal of one step to a rank."""

    own: Delivered
    """The rows of the rank's own lanes."""
    kept: npt.NDArray[np.bool_]
    """bool ``[own rows]``: False for those that other ranks get."""
    taken: Delivered
    """The rows that it gets of other ranks' lanes."""


@dataclass(frozen=True, eq=False)
class RankDeal:
    """The deal of a run's global batches to one rank, and the order of the rows that it gets.

    Args:
        run: The run of all lanes; its batches are the global ones.
        rank: The rank.
        world_size: The number of ranks.
        lengths: The lengths of all records, in the order of the table.
        balance: The cost of a length.

    Raises:
        ConfigError: The costs are too high to be added up.
    """

    run: RecordRun
    rank: int
    world_size: int
    lengths: RecordLengths
    balance: Balance
    _block: Callable[[int], Delivered] = field(init=False, repr=False)
    _ahead: dict[int, DealtStep] = field(default_factory=dict, repr=False)
    """Steps whose rows are requested already, and that are still to be cut."""

    def __post_init__(self) -> None:
        """Make the cache."""
        # Where no record has a value, the factors must fit all the same.
        longest = int(self.lengths.lengths.max(initial=1))
        cost = self.balance.cost(longest)
        if cost * self._rows >= LARGEST_SUM:
            raise ConfigError(
                f"a record of {longest} values costs {cost}, too much for the costs of a batch to "
                "be added up; set linear and quadratic of balance lower"
            )
        object.__setattr__(self, "_block", lru_cache(2)(self._deliver))

    @property
    def _rows(self) -> int:
        """The rows of a global batch."""
        return self.run.batch_size or 1

    def take_step(self, step: int) -> DealtStep:
        """Return the deal of a step, and forget those up to it."""
        dealt = self._ahead.get(step) or self._deal(step)
        while (first := next(iter(self._ahead), step + 1)) <= step:
            del self._ahead[first]
        return dealt

    def of_steps(self, first: int, last: int) -> Delivered:
        """Return the rank's rows of some steps; see :meth:`.record_run.Delivery.of_steps`."""
        parts: list[Delivered] = []
        for dealt in map(self._deal, range(first, last)):
            parts += [_rows_of(dealt.own, np.flatnonzero(dealt.kept)), dealt.taken]
        return Delivered(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def step_of(self, record: int, epoch: int) -> int | None:
        """Return the step that delivers a record in an epoch, to whichever rank."""
        return self._delivery.step_of(record, epoch)

    @cached_property
    def _delivery(self) -> Delivery:
        return Delivery(self.run)

    def _deliver(self, block: int) -> Delivered:
        """Return the rows of a block of steps."""
        first, last = block * self._steps, (block + 1) * self._steps
        end = self.run.end_step
        last = last if end is None else min(last, end)
        return self._delivery.of_steps(max(first, self.run.step), last)

    @property
    def _steps(self) -> int:
        """The steps of a block."""
        return max(1, ROWS_AT_ONCE // self._rows)

    def _deal(self, step: int) -> DealtStep:
        rows = self._block(step // self._steps)
        first, last = np.searchsorted(rows.steps, [step, step + 1])
        rows = _rows_of(rows, np.arange(first, last))
        owners = rows.lanes % self.world_size
        costs = self.balance.costs(self.lengths.lengths[rows.records])
        dealt = deal(costs, owners, self.world_size)
        is_own = owners == self.rank
        return DealtStep(
            _rows_of(rows, np.flatnonzero(is_own)),
            dealt[is_own] == self.rank,
            _rows_of(rows, np.flatnonzero((dealt == self.rank) & ~is_own)),
        )

    # -- the rows that the rank gets, as an order --------------------------------------------------

    def extents(self, lane: int, number: int) -> Iterator[Extent]:  # noqa: ARG002 - there is one
        """Iterate over the rows that the rank gets, from a step on: one extent for each.

        Some steps in which it gets none have an extent without a record: else a search for the next
        row might never end. The record there is read for nothing.

        Args:
            lane: Of no effect.
            number: The first step.
        """
        end, last, step = self.run.end_step, number, number
        apart = max(1, ROWS_APART // self._rows)
        while end is None or step < end:
            dealt = self._ahead[step] = self._deal(step)
            taken = zip(dealt.taken.records.tolist(), dealt.taken.epochs.tolist(), strict=True)
            for record, epoch in taken:
                last = step
                yield self._extent(step, record, epoch)
            if step - last >= apart:
                last, own = step, dealt.own
                yield self._extent(step, own.records.item(-1), own.epochs.item(-1), count=0)
            step += 1

    def extent(self, lane: int, number: int) -> Extent:
        """Return the extent of the first row that the rank gets from a step on."""
        # Behind the last step there is none.
        return next(self.extents(lane, number), Extent(number, 0, 0))

    def first(self, lane: int, epoch: int) -> int:  # noqa: ARG002 - as an order has it
        """Return the number of no extent: a run ends in its own lanes."""
        return 0

    def reach(self, lane: int) -> int:  # noqa: ARG002 - as an order has it
        """Return the number of extents after which the same ones may come again."""
        return max(1, self.run.order.records)

    def _extent(self, step: int, record: int, epoch: int, count: int = 1) -> Extent:
        """Return the extent of one record, by its number in the table."""
        order, sizes = self.run.order, self.lengths.sizes
        chunks, insides = order.chunk_places(np.array([record]))
        chunk, inside, table = chunks.item(), insides.item(), order.table
        before = int(sizes[record - inside : record].sum(dtype=np.int64))
        begin, number = int(table.begin[chunk]) + before, int(table.first_record[chunk]) + inside
        return Extent(
            number=step,
            epoch=epoch,
            shard=int(table.shard[chunk]),
            begin=begin,
            end=begin + int(sizes[record]),
            first_record=number,
            records=count,
            next_record=number + 1,
        )


def _rows_of(rows: Delivered, places: Numbers) -> Delivered:
    return Delivered(*(column[places] for column in rows))
