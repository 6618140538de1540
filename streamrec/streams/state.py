"""The state of a stream: its place after all that was taken, and whose turn it is to take.

Two that wait for the next batch of a stream would both get the same one.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from streamrec.config.arguments import plain_integer
from streamrec.errors import BatchOutOfOrder, Busy, MalformedPosition
from streamrec.masking import type_of
from streamrec.plan.state.position import Position
from streamrec.plan.state.resume_point import (
    Beginning,
    ResumePoint,
    change_from,
    for_rank,
    read_resume_point,
)
from streamrec.streams import ranks
from streamrec.values.columns import BytesColumn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from streamrec.pipeline.batch.batch import Batch
    from streamrec.streams.audit_log import AuditLog, LogMark
    from streamrec.streams.loops import AsyncSession, PlainSession
    from streamrec.streams.ranks import Assignment, Rank


Points: TypeAlias = tuple[ResumePoint, ...]


class Starts(NamedTuple):
    """The places where a loop and a run begin."""

    loop: Points
    """The place of the next loop, as long as nothing is taken there."""
    run: Points | None
    """The place where the present run began; ``None``: at the beginning of its epoch."""


class Row(NamedTuple):
    """A row of a batch, of which a single record is made."""

    batch: Batch
    number: int

    def record(self) -> dict[str, Any]:
        """Return the record: the row's value by feature name."""
        return {name: column[self.number] for name, column in self.batch.columns.items()}


class Mark(NamedTuple):
    """A point to which a cursor can return, as long as nothing was taken or only the next item."""

    resume_points: tuple[ResumePoint, ...]
    rows: int
    batches: int
    records: int
    starts: Starts
    logged: LogMark | None = None
    """The point of the audit log, if there is one."""

    @property
    def taken(self) -> tuple[ResumePoint, ...]:
        """The resume points before the rows that waited."""
        last = self.resume_points[0]
        # Only a position counts rows; a beginning has none before it.
        if not self.rows or not isinstance(last, Position):
            return self.resume_points
        # Rows that wait were given to nobody, so a state goes back over them.
        return (replace(last, skip=last.skip - self.rows, step=last.step - self.rows),)


class Cursor:
    """The place after what was taken. It knows no session, and outlives each of them.

    Args:
        log: The audit log of all that is taken; ``None``: nobody wants one.
    """

    def __init__(self, log: AuditLog | None = None) -> None:
        self.log = log
        self._resume_points: Points = (Beginning(),)
        """The place after all that came; one of each rank, if their states were loaded."""
        self._starts = Starts(self._resume_points, self._resume_points)
        self._rows: deque[Row | bytes] = deque()
        """Single records that came and wait to be taken."""
        self.batches = 0
        """Batches that came since the stream was made."""
        self.records = 0
        """Records that were taken since the stream was made."""

    @property
    def epoch(self) -> int:
        """The epoch of what comes next, from 0: the lowest of the lanes."""
        return min(point.epoch for point in self._resume_points)

    @property
    def run_epoch(self) -> int:
        """The epoch with which the present run began."""
        return self._resume_points[0].run_epoch

    @property
    def step(self) -> int:
        """Batches, or single records, that were taken since the start."""
        # The first stands for all: states of several ranks are refused unless they are of one step.
        return self._resume_points[0].step - len(self._rows)

    @property
    def rows(self) -> int:
        """The number of single records that came and wait to be taken."""
        return len(self._rows)

    def load(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Go on from a state, or from those of all ranks.

        Raises:
            StateError: The argument is not a state, or a later version saved it.
        """
        states: Any = [state] if isinstance(state, Mapping) else state
        # A text is a sequence, too, and bytes are one of numbers.
        if (
            not isinstance(states, Sequence)
            or isinstance(states, str | bytes | bytearray)
            or not states
        ):
            raise MalformedPosition(
                f"{type_of(state)} is not a state of streamrec; give what state_dict() returned "
                "(json.loads of its JSON), or a list of those of all ranks"
            )
        self._begin_at(tuple(map(read_resume_point, states)), is_run=False)

    def begin(self, epoch: int) -> None:
        """Go on at the beginning of an epoch."""
        self._begin_at((Beginning(epoch),))

    def seek(self, step: int) -> None:
        """Go on at a step, counted from the very start."""
        # No run begins at a later step: a restart then goes back to the beginning of its epoch.
        self._begin_at((Beginning(step=step),), is_run=not step)

    def restart(self) -> bool:
        """Go back to where the present run began; return whether anything was taken since.

        If nothing was taken since a state was loaded, or since another place was gone to, that
        place holds.
        """
        if self.mark().taken == self._starts.loop:
            return False
        self._begin_at(self._starts.run or (Beginning(self.run_epoch),))
        return True

    def arrive(self) -> None:
        """Let the next loop begin here, also where each loop begins its run again."""
        self._starts = self._starts._replace(loop=self.mark().taken)

    @contextmanager
    def passing_over(self) -> Iterator[None]:
        """Count nothing of what is taken meanwhile: it is for nobody."""
        # A loop that begins its run again must not do so for what is dropped.
        self.arrive()
        mark, step = self.mark(), self.step
        if self.log is not None:
            self.log.pause()
        try:
            yield
            self.batches, self.records = mark.batches, mark.records
            self.arrive()
        finally:
            if self.log is not None:
                self.log.pass_over(step, self.step - step, mark.taken)

    def jump(self, position: Position) -> None:
        """Go on at a later position of this run, or at the beginning of the next one."""
        if position.run_epoch != self.run_epoch:
            self._begin_at((position,))
        self._go_to(position)

    def settle(self) -> None:
        """Go back to the rows that wait, as a session ends: the next one reads them again."""
        self._go_to(*self.mark().taken)

    def end(self, position: Position) -> None:
        """Go to where the next run begins.

        Raises:
            BatchOutOfOrder: The run ended before the batch that was due, or after it.
        """
        self._check(position.step)
        self._begin_at((position,))
        if self.log is not None:
            self.log.cut()

    def take(self, batch: Batch) -> None:
        """Take a whole batch.

        Raises:
            BatchOutOfOrder: It is not the one that was due.
        """
        self._check(batch.next_position.step - 1)
        before = self._resume_points
        self._go_to(batch.next_position)
        self.batches += 1
        self.records += len(batch)
        if self.log is not None:
            self.log.take(batch, before)

    def receive(self, batch: Batch) -> None:
        """Receive a batch whose rows are taken one by one.

        Raises:
            BatchOutOfOrder: It is not the one that was due.
        """
        # Steps of single records count rows, so the batch began as many steps before its end.
        self._check(batch.next_position.step - len(batch))
        before = self._resume_points
        self._go_to(batch.next_position)
        self._rows.extend(_rows_of(batch))
        self.batches += 1
        if self.log is not None:
            self.log.receive(batch, before)

    def row(self) -> Row | bytes:
        """Take a row; a raw record is its bytes."""
        row = self._rows.popleft()
        self.records += 1
        if self.log is not None:
            self.log.row()
        return row

    def mark(self) -> Mark:
        """Return the present point, for :meth:`go_back`."""
        rows = len(self._rows)
        return Mark(
            resume_points=self._resume_points,
            rows=rows,
            batches=self.batches,
            records=self.records,
            starts=self._starts,
            logged=None if self.log is None else self.log.mark(),
        )

    def go_back(self, mark: Mark) -> None:
        """Undo what was taken since a mark; rows that waited there come again."""
        self._go_to(*mark.taken)
        self.batches, self.records = mark.batches, mark.records
        self._starts = mark.starts
        if self.log is not None and mark.logged is not None:
            self.log.go_back(mark.logged)

    @property
    def mix_changes(self) -> str:
        """The changes of a mix's weights, as text."""
        return self._resume_points[0].mix_changes

    def change_weights(self, step: int, weights: Mapping[str, float]) -> None:
        """Change the weights of a mix from a step on, and go on from the same place.

        Raises:
            MalformedPosition: They have changed too often.
        """

        def changed(points: Points) -> Points:
            changes = (change_from(point.mix_changes, step, weights) for point in points)
            return tuple(map(_with_changes, points, changes))

        loop, run = self._starts
        points = changed(self.mark().taken)
        starts = Starts(changed(loop), None if run is None else changed(run))
        self._go_to(*points)
        self._starts = starts

    def resume_point(self, rank: Rank) -> ResumePoint:
        """Return the place where a rank goes on.

        Raises:
            MalformedPosition: The states that were loaded are not those of all ranks of one step.
        """
        return for_rank(self.mark().taken, *rank)

    def _begin_at(self, points: Points, *, is_run: bool = True) -> None:
        self._go_to(*points)
        self._starts = Starts(points, points if is_run else None)

    def _go_to(self, *resume_points: ResumePoint) -> None:
        self._resume_points = resume_points
        # They belong to the place that is left.
        self._rows.clear()

    def _check(self, step: int) -> None:
        """Refuse what stands after another step than the last one that was taken."""
        last = self._resume_points[0]
        # How many steps lie before a later epoch is not known here: it follows from the settings.
        if step != self.step and (isinstance(last, Position) or not last.epoch):
            raise BatchOutOfOrder(
                f"the batch that came next follows step {step}, but the stream is at step "
                f"{self.step}: a batch was lost or repeated on the way; iterate again, and the "
                "stream goes on from "
                "the last batch that was taken",
                step=step,
            )


def _with_changes(point: ResumePoint, mix_changes: str) -> ResumePoint:
    return point.with_changes(mix_changes)


def _rows_of(batch: Batch) -> Sequence[Row | bytes]:
    columns: dict[str, Any] = dict(batch)
    if list(columns) == ["records"] and isinstance(columns["records"], BytesColumn):
        return batch.records.to_list()
    return [Row(batch, number) for number in range(len(batch))]


class Turn:
    """A lock for one thread or task at a time; another is refused, and never waits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise busy()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def busy() -> Busy:
    """Return the error for a thread or task that takes while another does."""
    return Busy(
        "another thread or task is taking from this stream at this moment; let one of them take "
        "the batches and hand them on, or let them take turns"
    )


T = TypeVar("T")


class Stateful:
    """The part of a stream that can be saved, loaded and moved; what reads is the rest.

    Args:
        assignment: The rank whose state it is.
        log: The audit log of what is taken; ``None``: there is none.
    """

    def __init__(self, assignment: Assignment, log: AuditLog | None = None) -> None:
        self._assignment = assignment
        self._session: PlainSession | AsyncSession | None = None
        self._cursor = Cursor(log)
        self._elsewhere = False
        """True once the cursor was moved: the open session no longer reads where it is."""
        self._ended = False

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last batch (or single record) taken: plain JSON-able data."""
        return self._state_at(self._cursor.mark())

    def _state_at(self, mark: Mark) -> dict[str, Any]:
        if self._cursor.log is not None:
            self._cursor.log.save()
        # States of several ranks were loaded, and nothing was taken since: they are merged now.
        one, *others = mark.taken
        place = for_rank(mark.taken, *self._rank()) if others else one
        # A loader that looks ahead asks for a place before one at which weights were set.
        changes = self._cursor.mix_changes
        return (place if place.mix_changes == changes else place.with_changes(changes)).to_dict()

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Go on from a state, or from those of all ranks for another world size.

        Raises:
            StateError: It is not a state, or another version of streamrec saved it. Whether it
                belongs to this dataset and order is checked when the stream is opened, before any
                batch.
        """
        self._cursor.load(state)
        self._leave()

    def rewind(self) -> None:
        """Go back to the very start: what comes next is what a new stream gives."""
        self._cursor.begin(0)
        self._leave()

    def restart(self) -> None:
        """Go back to where the present run began: what comes next are the same batches again.

        Where nothing was taken since a state was loaded, or since the stream was moved to another
        place, it goes on there. ``restart=True`` does this at the beginning of each loop.
        """
        # A run that has ended is left where it is: what comes next is the next run.
        if not self._ended and self._cursor.restart():
            self._leave()

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch.

        A stream whose run began with that epoch is left where it is, so that a resumed training
        loop which sets the epoch repeats nothing. Steps are counted from 0 again or, with
        ``steps_per_epoch``, from as many epochs' steps.

        Args:
            epoch: From 0.

        Raises:
            MalformedPosition: It is not a number from 0 up.
        """
        if epoch != self._cursor.run_epoch:
            self._cursor.begin(plain_integer(epoch))
            self._leave()

    def seek(self, *, step: int) -> None:
        """Go to a step, without reading what lies before: the order by record alone knows where.

        Args:
            step: Batches (or single records) of this rank since the very start, as a state counts
                them; all ranks seek the same.

        Raises:
            MalformedPosition: It is not a number from 0 up. Without an index, a ``ConfigError``
                says so when the stream is opened.
        """
        self._cursor.seek(plain_integer(step))
        self._leave()

    @property
    def epoch(self) -> int:
        """The epoch of what comes next, from 0: the lowest of the lanes."""
        return self._cursor.epoch

    def _rank(self) -> Rank:
        is_open = self._session is not None
        self._assignment = ranks.confirm(self._assignment, is_open=is_open)
        return self._assignment.rank

    def _leave(self) -> None:
        """Note that the cursor was moved: the next read opens another session there."""
        self._elsewhere = self._session is not None
        self._ended = False

    def _move(self, move: Callable[[T], None], there: T) -> None:
        """Move the cursor; if it cannot go there, have a new session go on from where it is."""
        try:
            move(there)
        except BatchOutOfOrder:
            self._leave()
            raise
