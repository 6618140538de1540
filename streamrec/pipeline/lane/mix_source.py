"""The source of a lane of a mix, which draws records from its components one by one."""

from __future__ import annotations

from collections import deque
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

import numpy as np

from streamrec.errors import DataError, StreamrecError
from streamrec.pipeline.fetch.range_queue import Demand
from streamrec.pipeline.lane.record_span import RecordSpan
from streamrec.plan.order.coordinates import OWN, POINTS, Coordinates
from streamrec.plan.order.mixture import NOTHING
from streamrec.plan.order.shard_order import Extent
from streamrec.values.record_rows import RecordRows

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from streamrec.pipeline.lane.draw_changes import DrawChanges
    from streamrec.plan.order.mixture import Draws
    from streamrec.values.columns import Indices

AT_ONCE = 1024
"""The most records that are drawn at a time; many at once cost less for each."""
LEAST_SHARE = 1e-4
"""The share that a component has at least, for how soon its ranges are needed."""

Point: TypeAlias = tuple[int, ...]
"""The point, as in :data:`POINT`, of a component's next record."""


class ComponentMark(NamedTuple):
    """The state of a component before some records were drawn."""

    parts: deque[RecordSpan]
    waiting: int
    undrawn: int
    point: Point
    epoch: int


class ComponentReader(Protocol):
    """A reader of a component's records in a lane."""

    @property
    def epoch(self) -> int:
        """The epoch of the records that were popped last; at first, that of the start."""

    @property
    def ended(self) -> bool:
        """True when no more records will come."""

    @property
    def waits_for(self) -> str:
        """The name of the stage that the next records are in."""

    def pop(self) -> RecordSpan | Coordinates | None:
        """Return the next records, or coordinates between them; ``None`` if not there."""


@dataclass(eq=False)
class Component:
    """One component of a lane's mix, with the records that wait to be drawn.

    Args:
        name: The component's name.
        reader: The reader of its records.
        point: The point in it that the lane has reached.
    """

    name: str
    reader: ComponentReader
    point: Point
    """The point after the last record that was drawn."""
    waiting: int = 0
    """The number of records that wait to be drawn."""
    undrawn: int = 0
    """The bytes of these records."""
    _parts: deque[RecordSpan] = field(default_factory=deque)
    _error: StreamrecError | None = None

    def __post_init__(self) -> None:
        self.epoch = self.reader.epoch
        """The epoch of the last record that was drawn; before any draw, that of the start."""

    def has_ended(self) -> bool:
        """Return whether no record waits and none will come.

        Raises:
            StreamrecError: The error that ends the lane.
        """
        if self._error is not None and not self.waiting:
            raise self._error
        return self.reader.ended and not self.waiting

    def fill(self, wanted: int) -> None:
        """Read received records until ``wanted`` of them wait."""
        try:
            while self.waiting < wanted and self._error is None:
                item = self.reader.pop()
                if item is None:
                    return
                # Coordinates are left out: they end an epoch of the component, not of the mix.
                if isinstance(item, RecordSpan):
                    self._parts.append(item)
                    self.waiting += len(item)
                    self.undrawn += item.rows.nbytes
        except StreamrecError as error:
            self._error = error  # the records before it come first

    def mark(self) -> ComponentMark:
        """Return the present state, for :meth:`go_back`."""
        return ComponentMark(self._parts.copy(), self.waiting, self.undrawn, self.point, self.epoch)

    def go_back(self, mark: ComponentMark) -> None:
        """Let the records that were taken since a mark wait again."""
        self._parts, self.waiting, self.undrawn, self.point, self.epoch = mark

    def take(self, count: int) -> list[RecordSpan]:
        """Take the next ``count`` records and move the component's point after them."""
        parts = []
        self.waiting -= count
        while count:
            part = self._parts.popleft()
            if len(part) > count:
                self._parts.appendleft(part.cut(count, None))
                part = part.cut(0, count)
            parts.append(part)
            count -= len(part)
            self.undrawn -= part.rows.nbytes
        if parts:
            after = parts[-1].after(len(parts[-1]) - 1)
            self.point = after.point
            self.epoch = parts[-1].extent.epoch
        return parts


@dataclass(frozen=True, eq=False)
class DrawnPlaces:
    """The places of drawn records: the points of all components after each of some draws."""

    first: int
    """The number of the first draw."""
    choices: Indices
    """int64 ``[draws]``: the component of each draw."""
    points: Indices
    """int64 ``[components + draws, POINTS]``: the points of all components before the first draw,
    then the drawn component's point after each draw's record."""
    epochs: Indices
    """int64 ``[components + draws]``: the same with epochs."""
    changes: int = 0
    """The number of changes of weights that hold."""

    @cached_property
    def _latest(self) -> Indices:
        """int64 ``[components, draws + 1]``: the row of ``points`` that holds after ``d`` draws."""
        count = len(self.points) - len(self.choices)
        components = np.arange(count)[:, None]
        drawn = np.where(self.choices == components, np.arange(count, len(self.points)), -1)
        return np.maximum.accumulate(np.hstack([components, drawn]), axis=1)

    def lowest_epochs(self, weighted: npt.NDArray[np.bool_]) -> Indices:
        """Return int64 ``[draws]``: the lowest epoch of the weighted components after each draw."""
        epochs = self.epochs[self._latest[:, 1:]]
        lowest: Indices = np.where(weighted, epochs, epochs.max()).min(axis=0)
        return lowest

    def before(self, number: int, extent: Extent) -> Coordinates:
        """Return the coordinates of a lane whose next draw is the one of that number."""
        points = self.points[self._latest[:, number]].tolist()
        sources = tuple(map(tuple, points))
        return Coordinates(extent.epoch, self.changes, self.first + number, sources=sources)

    def after(self, number: int, extent: Extent) -> Coordinates:
        """Return the coordinates of a lane whose last draw was the one of that number."""
        return self.before(number + 1, extent)

    def ends(self, numbers: Indices, extent: Extent) -> Indices:
        """Return int64 ``[draws, numbers]``: the coordinates after each of these draws."""
        points = self.points[self._latest[:, numbers + 1].T]
        numbers_of_lane = np.zeros((len(numbers), OWN), np.int64)
        numbers_of_lane[:, 0] = extent.epoch
        numbers_of_lane[:, 1] = self.changes
        numbers_of_lane[:, 2] = self.first + 1 + numbers
        return np.hstack([numbers_of_lane, points.reshape(len(numbers), -1)])


@dataclass(eq=False, repr=False)
class Mix:
    """The source of one lane of a mix.

    Args:
        components: The components, in the order of their names.
        draws: Give the component of each record.
        lane: The lane's number.
        start: The coordinates that it begins at.
        end: The coordinates at which a finite run leaves it.
        ends: The lane's way when a component has ended: ``"stop"``, or go on with the ``"rest"``;
            ``None``: no component ever ends.
        changes: The changes of the draws that have yet to come.
        is_even: True: windows count each record with the mean size of those of its chunk, so that
            an index tells which records they hold.
    """

    components: Sequence[Component]
    draws: Draws
    lane: int
    start: Coordinates
    end: Coordinates
    _: KW_ONLY
    ends: str | None
    changes: DrawChanges
    is_even: bool = False
    ended: bool = False
    """True when no more records will come."""
    component: int = 0
    """The component of the next record."""
    _epochs: int = 0  # changes of the epoch since the start; each may be by more than one
    _gone: set[int] = field(default_factory=set)
    _ready: deque[RecordSpan | Coordinates] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._shares = [1.0] * len(self.components)
        self._epoch, self._number = self.start.extent, self.start.record
        # Where no component ends, one sequence of draws goes on through all epochs.
        self._seed_epoch = self.start.extent if self.ends else 0
        self._upcoming = _NONE
        self.draws = self.changes.take() or self.draws

    def demand(self, number: int, lane: Demand) -> Demand:
        """Return the lane's demand of one component."""
        undrawn = self.components[number].undrawn
        return Demand(lane.ready, lane.lacks, undrawn, self._shares[number])

    @property
    def waits_for(self) -> str:
        """The name of the stage that the next records are in."""
        return self.components[self.component].reader.waits_for

    def pop(self) -> RecordSpan | Coordinates | None:
        """Return the next records, or the coordinates after an epoch's end; ``None`` if not there.

        Raises:
            StreamrecError: The error that ends the lane.
        """
        while not self._ready and not self.ended:
            count = self._ready_draws()
            if count:
                self._draw(count)
            elif not self._drop_ended():
                return None
            elif self.ended:
                self._ready.append(self.end)
        return self._ready.popleft() if self._ready else None

    def _ready_draws(self) -> int:
        """Count the next draws for which the records have been received."""
        if not len(self._upcoming):
            self._look_ahead()
        count = len(self._upcoming)
        for number, component in enumerate(self.components):
            draws = np.flatnonzero(self._upcoming == number)
            component.fill(len(draws))
            if len(draws) > component.waiting:
                # As far as the first draw whose record has not come.
                count = min(count, int(draws[component.waiting]))
        if self._upcoming.min(initial=0) == NOTHING:
            # From this draw on, every component with a weight has ended.
            count = min(count, int(np.argmin(self._upcoming)))
        self.component = max(0, int(self._upcoming[min(count, len(self._upcoming) - 1)]))
        return count

    def _look_ahead(self) -> None:
        """Draw the next components, and set the share of each."""
        self._upcoming = self.draws.choices(
            self.lane, self._seed_epoch, self._number, AT_ONCE, self._gone
        )
        shares = self.draws.shares(self.lane, self._number)
        self._shares = [max(share, LEAST_SHARE) for share in shares]

    def _drop_ended(self) -> bool:
        """Return whether the next component has ended; later draws are then made without it.

        Raises:
            StreamrecError: It failed, or it repeats for ever without any record.
        """
        number = int(self._upcoming[0])
        if number == NOTHING:
            self.ended = True
            return True
        component = self.components[number]
        if not component.has_ended():
            return False
        if self.ends is None:
            raise DataError(
                f"all shards of the component {component.name!r} in this lane are empty, so there "
                "is nothing to repeat; check the shards, or lower lanes"
            )
        # The draws that counted on it are forgotten, and made again without it.
        self._gone.add(number)
        self._upcoming = _NONE
        self.ended = self.ends == "stop"
        return True

    def _draw(self, count: int) -> None:
        """Take the records of the next draws, in their order."""
        # Where the next window begins, and with it a change, only its records tell.
        marks = None if self.changes.is_over else [part.mark() for part in self.components]
        span, epochs = self._take(count)
        if marks is not None:
            kept = self.changes.advance(span.rows, span.lengths, epochs)
            if kept < count:
                for component, mark in zip(self.components, marks, strict=True):
                    component.go_back(mark)
                self._change(kept)
                return
        self._pass(span, epochs)

    def _change(self, count: int) -> None:
        """Take the records of the next draws, and draw those after them anew."""
        if count:
            self._pass(*self._take(count))
        self.draws = self.changes.take() or self.draws
        self._upcoming = _NONE

    def _take(self, count: int) -> tuple[RecordSpan, Indices]:
        """Take the records of the next draws; return them with the mix's epoch at each."""
        choices = self._upcoming[:count]
        starts = [component.point for component in self.components]
        start_epochs = [component.epoch for component in self.components]
        counts = np.bincount(choices, minlength=len(starts)).tolist()
        parts = [
            part
            for component, rows in zip(self.components, counts, strict=True)
            for part in component.take(rows)
        ]
        order = np.empty(count, np.int64)
        # The parts stand component after component; this leads from each draw to its record there.
        order[np.argsort(choices, kind="stable")] = np.arange(count)
        ends = np.concatenate([part.ends[:, :POINTS] for part in parts])[order]
        epochs = np.repeat([part.extent.epoch for part in parts], [len(part) for part in parts])
        points = np.concatenate([starts, ends])
        epochs = np.concatenate([start_epochs, epochs[order]])
        drawn = DrawnPlaces(self._number, choices, points, epochs, self.changes.in_force)
        rows = RecordRows.concatenate([part.rows for part in parts]).pick(order)
        # The epoch of each record in its component, which is not that of the mix.
        rows = replace(rows, passes=epochs[len(starts) :])
        sizes = [part.even_lengths if self.is_even else part.lengths for part in parts]
        lengths = np.concatenate(sizes)[order]
        extent = Extent(self._epochs, self._epoch, -1)
        weighted = self.draws.weighted(self.lane, self._number, count)
        whole = RecordSpan(
            extent=extent, rows=rows, lengths=lengths, places=drawn, numbers=np.arange(count)
        )
        # It never falls, although a later phase may give weight to a component that lags behind.
        lowest = np.maximum(drawn.lowest_epochs(weighted), self._epoch)
        return whole, np.maximum.accumulate(lowest)

    def _pass(self, span: RecordSpan, epochs: Indices) -> None:
        """Pass drawn records on, in parts where the mix's epoch, its components' lowest, rises."""
        self._number += len(span)
        self._upcoming = self._upcoming[len(span) :]
        begins = np.flatnonzero(np.diff(epochs, prepend=self._epoch)).tolist()
        for first, last in pairwise(sorted({0, *begins, len(span)})):
            epoch = int(epochs[first])
            is_next = epoch != self._epoch
            self._epoch, self._epochs = epoch, self._epochs + is_next
            part = replace(span.cut(first, last), extent=Extent(self._epochs, epoch, -1))
            self._ready += [part.before(0), part] if is_next else [part]


_NONE = np.empty(0, np.int64)
