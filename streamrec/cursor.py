"""Where a stream stands for its consumer: what was taken, and where it goes on."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from streamrec.errors import MalformedPosition
from streamrec.plan.place import Beginning, Place, for_rank, read_place
from streamrec.plan.position import Position

if TYPE_CHECKING:
    from streamrec.ranks import Rank
    from streamrec.types import Batch

__all__ = ["Cursor"]


class Cursor:
    """Follows what is taken. It knows no session, and outlives each of them."""

    def __init__(self) -> None:
        self._places: tuple[Place, ...] = (Beginning(),)
        """Behind all that came; of all ranks, where their states were loaded."""
        self._rows: deque[Any] = deque()
        """Single records that came, and wait to be taken."""

    @property
    def epoch(self) -> int:
        """The epoch of what comes next, from 0: the lowest of the lanes."""
        return min(place.epoch for place in self._places)

    @property
    def run_epoch(self) -> int:
        """The epoch with which the present run began."""
        return self._places[0].run_epoch

    @property
    def step(self) -> int:
        """Batches, or single records, that were taken since the start."""
        return self._places[0].step - len(self._rows)

    @property
    def rows(self) -> int:
        """Single records that came, and wait to be taken."""
        return len(self._rows)

    def load(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Go on from a state, or from those of all ranks.

        Raises:
            StateError: It is none, or a later version saved it.
        """
        states: Any = [state] if isinstance(state, Mapping) else state
        if not isinstance(states, Sequence) or isinstance(states, str) or not states:
            raise MalformedPosition("that is no state; give one, or a list of those of all ranks")
        self._go_to(*map(read_place, states))

    def begin(self, epoch: int) -> None:
        """Go on at the beginning of an epoch."""
        self._go_to(Beginning(epoch))

    def seek(self, step: int) -> None:
        """Go on at a step, counted from the very start."""
        self._go_to(Beginning(step=step))

    def settle(self) -> None:
        """The session ends: rows that wait come again from the next one."""
        self._go_to(*self._taken())

    def arrive(self, position: Position) -> None:
        """All that lies before a position was taken."""
        self._go_to(position)

    def receive(self, batch: Batch) -> None:
        """A batch came whose rows are taken one by one."""
        self._go_to(batch.next_position)
        self._rows.extend(_rows_of(batch))

    def row(self) -> Any:
        """Take a row."""
        return self._rows.popleft()

    def place(self, rank: Rank) -> Place:
        """Where this rank goes on.

        Raises:
            MalformedPosition: The states that were loaded are not those of all ranks of one step.
        """
        return for_rank(self._taken(), *rank)

    @property
    def state(self) -> dict[str, Any] | None:
        """The state after what was taken last; ``None`` while it is that of several ranks."""
        one, *others = self._taken()
        return None if others else one.to_dict()

    def _go_to(self, *places: Place) -> None:
        self._places = places
        self._rows.clear()

    def _taken(self) -> tuple[Place, ...]:
        """The places before the rows that wait."""
        last, waiting = self._places[0], len(self._rows)
        if not waiting or not isinstance(last, Position):
            return self._places
        return (replace(last, skip=last.skip - waiting, step=last.step - waiting),)


def _rows_of(batch: Batch) -> list[Any]:
    if list(batch) == ["records"]:
        return batch.records.to_list()
    columns: dict[str, Any] = dict(batch)
    return [{name: column[row] for name, column in columns.items()} for row in range(len(batch))]
