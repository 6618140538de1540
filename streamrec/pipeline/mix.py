"""The records of a lane of a mix: drawn from those of its components, one by one."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from streamrec.errors import DataError, StreamrecError
from streamrec.pipeline.stages import OWN, Coordinates, RecordSpan
from streamrec.plan.mixture import NOTHING
from streamrec.plan.order import Extent
from streamrec.types import RecordRows

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from streamrec.pipeline.range_queue import Progress, RangeQueue
    from streamrec.pipeline.record_reader import RecordReader
    from streamrec.plan.mixture import Draws
    from streamrec.types import Indices

__all__ = ["Mix", "MixedSpan"]

AT_ONCE = 1024
"""Records that are drawn at a time, at most: a draw costs less the more there are."""
LEAST_SHARE = 1e-4
"""Of a component that is hardly ever drawn, for how soon it is needed."""

Point: TypeAlias = tuple[int, ...]
"""Extent, byte offset and record number: where a component's next record is looked for."""


class Component:
    """One component's records in a lane, as they wait to be drawn.

    Args:
        name: Of the component.
        reader: Where they come from.
        feed: Its ranges.
        point: Where the lane stands in it.
        epoch: Of that point.
    """

    def __init__(
        self, name: str, reader: RecordReader, feed: RangeQueue, point: Point, epoch: int
    ) -> None:
        self.name = name
        self.reader = reader
        self.point = point
        """Behind the last record that was drawn."""
        self.epoch = epoch
        """Of that record, or of the first one."""
        self.waiting = 0
        """Records that are there."""
        self._feed = feed
        self._parts: deque[RecordSpan] = deque()
        self._error: StreamrecError | None = None

    def has_ended(self) -> bool:
        """Whether nothing waits, and nothing will come.

        Raises:
            StreamrecError: Nothing comes, for this reason.
        """
        if self._error is not None and not self.waiting:
            raise self._error
        return self.reader.ended and not self.waiting

    def fill(self, wanted: int) -> None:
        """Read what has been received, until so many records wait."""
        try:
            while self.waiting < wanted and self._error is None:
                item = self.reader.pop()
                if item is None:
                    return
                if isinstance(item, RecordSpan):  # each component has epochs of its own
                    self._parts.append(item)
                    self.waiting += len(item)
                    self._feed.undrawn += item.rows.nbytes
        except StreamrecError as error:
            self._error = error  # what was scanned before it comes first

    def take(self, count: int) -> list[RecordSpan]:
        """The next records; the component's point moves behind them."""
        parts = []
        self.waiting -= count
        while count:
            part = self._parts.popleft()
            if len(part) > count:
                self._parts.appendleft(part.cut(count, None))
                part = part.cut(0, count)
            parts.append(part)
            count -= len(part)
            self._feed.undrawn -= part.rows.nbytes
        if parts:
            after = parts[-1].after(len(parts[-1]) - 1)
            self.point = after.extent, after.offset, after.record
            self.epoch = parts[-1].extent.epoch
        return parts

    def expect(self, share: float) -> None:
        """Say which part of the lane's records are its own, from here on."""
        self._feed.share = max(share, LEAST_SHARE)


@dataclass(frozen=True, eq=False)
class MixedSpan:
    """Records of several components, in the order in which they were drawn.

    Some between them may have been left out.
    """

    extent: Extent
    rows: RecordRows
    lengths: Indices
    draws: Drawn
    places: Indices
    """int64 ``[rows]``: of which draw each is."""

    def __len__(self) -> int:
        return len(self.rows)

    def before(self, row: int) -> Coordinates:
        """Where a lane stands whose next record is this one."""
        return self.draws.at(int(self.places[row]), self.extent.epoch)

    def after(self, row: int) -> Coordinates:
        """Where a lane stands whose last record was this one."""
        return self.draws.at(int(self.places[row]) + 1, self.extent.epoch)

    @property
    def ends(self) -> Indices:
        """int64 ``[rows, numbers]``: where a lane stands whose last record was this one."""
        return self.draws.behind(self.places, self.extent.epoch)

    def cut(self, first: int, last: int, extent: Extent) -> MixedSpan:
        """The records from ``first`` to before ``last``, which are of that extent."""
        places = slice(first, last)
        rows = self.rows.part(first, last)
        return MixedSpan(extent, rows, self.lengths[places], self.draws, self.places[places])

    def keep(self, kept: Indices, rows: RecordRows) -> MixedSpan:
        """Those that a filter keeps, in the memory where they are then."""
        return MixedSpan(self.extent, rows, self.lengths[kept], self.draws, self.places[kept])


@dataclass(frozen=True, eq=False)
class Drawn:
    """Where a lane stands after each of some draws."""

    first: int
    """The number of the first draw."""
    starts: list[Point]
    """Of each component, before them."""
    start_epochs: list[int]
    """The same: the epoch that it is in."""
    choices: Indices
    ends: Indices
    """int64 ``[draws, 3]``: where the component that was drawn stands behind the record."""
    epochs: Indices
    """int64 ``[draws]``: the epoch of that component that it is of."""

    @cached_property
    def _latest(self) -> Indices:
        """int64 ``[components, draws + 1]``: after so many, the last draw of each; -1 for none."""
        count = len(self.choices)
        components = np.arange(len(self.starts))[:, None]
        drawn = np.where(self.choices == components, np.arange(count), -1)
        none = np.full((len(components), 1), -1)
        return np.maximum.accumulate(np.hstack([none, drawn]), axis=1)

    def lowest_epochs(self, weighted: npt.NDArray[np.bool_]) -> Indices:
        """int64 ``[draws]``: the lowest epoch, with each, of the components that have a weight."""
        latest = self._latest[:, 1:]
        starts = np.array(self.start_epochs)[:, None]
        epochs = np.where(latest < 0, starts, self.epochs[latest])
        lowest: Indices = np.where(weighted, epochs, epochs.max()).min(axis=0)
        return lowest

    def at(self, count: int, epoch: int) -> Coordinates:
        """Where the lane stands after so many of them, in that epoch of the mix."""
        sources = tuple(
            tuple(self.ends[last].tolist()) if last >= 0 else start
            for start, last in zip(self.starts, self._latest[:, count].tolist(), strict=True)
        )
        return Coordinates(epoch, 0, self.first + count, sources=sources)

    def behind(self, draws: Indices, epoch: int) -> Indices:
        """int64 ``[draws, numbers]``: where the lane stands after each of these, in that epoch."""
        latest = self._latest[:, draws + 1].T[:, :, None]
        points = np.where(latest < 0, np.array(self.starts), self.ends[latest[:, :, 0]])
        own = np.zeros((len(draws), OWN), np.int64)
        own[:, 0] = epoch
        own[:, 2] = self.first + 1 + draws
        return np.hstack([own, points.reshape(len(draws), -1)])


class Mix:
    """The records of one lane of a mix.

    Args:
        components: In their order.
        draws: Say which comes next.
        lane: The lane's number.
        start: Where it stands.
        end: Where a finite run leaves it.
        ends: What becomes of it where a component has ended: it ``"stop"``s, or goes on with the
            ``"rest"``; ``None``: none of them ever ends.
        progress: What the lane has, and what it needs.
    """

    def __init__(
        self,
        components: Sequence[Component],
        draws: Draws,
        lane: int,
        start: Coordinates,
        end: Coordinates,
        *,
        ends: str | None,
        progress: Progress,
    ) -> None:
        self.ended = False
        """Whether nothing will come any more."""
        self.component = 0
        """Which one the next record is of."""
        self.progress = progress
        """What the lane has, and what it needs; kept by the lane."""
        self._components = components
        self._draws = draws
        self._lane = lane
        self._epoch, self._number = start.extent, start.record
        self._epochs = 0  # that have ended since the start: they may be more apart than 1
        self._seed_epoch = start.extent if ends else 0
        self._end = end
        self._ends = ends
        self._gone: set[int] = set()
        self._upcoming = _NONE
        self._ready: deque[MixedSpan | Coordinates] = deque()

    @property
    def refetched(self) -> int:
        """Faults that were gone when the bytes were read once more."""
        return sum(component.reader.refetched for component in self._components)

    @property
    def waits_for(self) -> str:
        """The stage that the next records are in."""
        return self._components[self.component].reader.waits_for

    def pop(self) -> MixedSpan | Coordinates | None:
        """The next records; where an epoch of the mix ends; nothing yet, or nothing any more.

        Raises:
            StreamrecError: Nothing comes, for this reason.
        """
        while not self._ready and not self.ended:
            count = self._there()
            if count:
                self._part(self._drawn(count))
            elif not self._loses():
                return None
            elif self.ended:
                self._ready.append(self._end)
        return self._ready.popleft() if self._ready else None

    def _there(self) -> int:
        """How many of the next draws can be made, by what has been received."""
        if not len(self._upcoming):
            self._look_ahead()
        count = len(self._upcoming)
        for number, component in enumerate(self._components):
            draws = np.flatnonzero(self._upcoming == number)
            component.fill(len(draws))
            if len(draws) > component.waiting:
                count = min(count, int(draws[component.waiting]))
        if self._upcoming.min(initial=0) == NOTHING:
            count = min(count, int(np.argmin(self._upcoming)))
        self.component = max(0, int(self._upcoming[min(count, len(self._upcoming) - 1)]))
        return count

    def _look_ahead(self) -> None:
        """Draw, and tell the components how soon they are needed."""
        self._upcoming = self._draws.choices(
            self._lane, self._seed_epoch, self._number, AT_ONCE, self._gone
        )
        shares = self._draws.shares(self._lane, self._number)
        for component, share in zip(self._components, shares, strict=True):
            component.expect(share)

    def _loses(self) -> bool:
        """Whether the component that comes next has ended; what follows is drawn without it.

        Raises:
            StreamrecError: It failed, or can never end and has nothing.
        """
        number = int(self._upcoming[0])
        if number == NOTHING:
            self.ended = True
            return True
        component = self._components[number]
        if not component.has_ended():
            return False
        if self._ends is None:
            raise DataError(
                f"no shard of the component {component.name!r} that this lane ever reads holds a "
                "record: there is nothing to repeat; check the shards, or set lanes to less"
            )
        self._gone.add(number)
        self._upcoming = _NONE
        self.ended = self._ends == "stop"
        return True

    def _drawn(self, count: int) -> MixedSpan:
        choices, self._upcoming = self._upcoming[:count], self._upcoming[count:]
        starts = [component.point for component in self._components]
        start_epochs = [component.epoch for component in self._components]
        taken = np.bincount(choices, minlength=len(starts)).tolist()
        parts = [
            part
            for component, rows in zip(self._components, taken, strict=True)
            for part in component.take(rows)
        ]
        order = np.empty(count, np.int64)
        order[np.argsort(choices, kind="stable")] = np.arange(count)
        ends = np.concatenate([part.ends[:, :3] for part in parts])[order]
        epochs = np.repeat([part.extent.epoch for part in parts], [len(part) for part in parts])
        drawn = Drawn(self._number, starts, start_epochs, choices, ends, epochs[order])
        self._number += count
        return MixedSpan(
            Extent(0, self._epoch, -1),
            RecordRows.concatenate([part.rows for part in parts]).reorder(order),
            np.concatenate([part.lengths for part in parts])[order],
            drawn,
            np.arange(count),
        )

    def _part(self, drawn: MixedSpan) -> None:
        """Part what was drawn where an epoch of the mix ends: all components were gone through."""
        weighted = self._draws.weighted(self._lane, drawn.draws.first, len(drawn))
        lowest = drawn.draws.lowest_epochs(weighted)
        epochs = np.maximum.accumulate(np.maximum(lowest, self._epoch))
        begins = np.flatnonzero(np.diff(epochs, prepend=self._epoch)).tolist()
        for first, last in pairwise(sorted({0, *begins, len(drawn)})):
            epoch = int(epochs[first])
            is_next = epoch != self._epoch
            self._epoch, self._epochs = epoch, self._epochs + is_next
            part = drawn.cut(first, last, Extent(self._epochs, epoch, -1))
            self._ready += [part.before(0), part] if is_next else [part]


_NONE = np.empty(0, np.int64)
