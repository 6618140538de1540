"""The state of a stream: where it is, where it is sent, and whose turn it is to take.

Two that wait for the next batch of a stream would both get the same one.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, TypeVar

from streamrec.errors import BatchOutOfOrder, Busy
from streamrec.plan.state.resume_point import for_rank
from streamrec.streams import ranks
from streamrec.streams.cursor import Cursor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from streamrec.streams.cursor import Mark
    from streamrec.streams.loops import AsyncSession, PlainSession
    from streamrec.streams.ranks import Assignment, Rank


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
    """

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment
        self._session: PlainSession | AsyncSession | None = None
        self._cursor = Cursor()
        self._elsewhere = False
        """True once the cursor was moved: the open session no longer reads where it is."""
        self._ended = False

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last batch (or single record) taken: plain JSON-able data."""
        return self._state_at(self._cursor.mark())

    def _state_at(self, mark: Mark) -> dict[str, Any]:
        one, *others = mark.taken
        return (for_rank(mark.taken, *self._rank()) if others else one).to_dict()

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
            self._cursor.begin(epoch)
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
        self._cursor.seek(step)
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
