"""The changes of a lane's draws while a mix runs, each at the beginning of a window."""

from __future__ import annotations

from collections import deque
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from streamrec.errors import MalformedPosition

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from streamrec.plan.order.coordinates import Coordinates
    from streamrec.plan.order.mixture import DrawChange, Draws
    from streamrec.plan.order.window import Windows
    from streamrec.values.columns import Indices
    from streamrec.values.record_rows import RecordRows

    Flags = npt.NDArray[np.bool_]


@dataclass(eq=False)
class DrawChanges:
    """The changes of a lane's draws that have yet to come.

    A record that is drawn for a window leaves it at any place. So that no record before a change
    depends on it, a change waits for the first window that begins where it should hold, or later.

    Args:
        changes: All changes, in their order.
        start: The coordinates that the lane begins at, which count the changes that hold there.
        windows: The windows in which records are shuffled; ``None``: there are none.
        lane: The lane's number.
        keeps_placeholders: Whether damaged records are delivered as rows without bytes.

    Raises:
        MalformedPosition: The coordinates count more changes than there are.
    """

    changes: Sequence[DrawChange]
    start: Coordinates
    _: KW_ONLY
    windows: Windows | None
    lane: int
    keeps_placeholders: bool
    in_force: int = field(init=False)
    """The number of changes that hold."""
    _window: int = field(init=False)
    _missing: int = field(init=False, default=0)
    """The bytes that the window lacks."""
    _is_full: bool = field(init=False)
    _begins_epoch: bool = field(init=False)
    """True if the next record is the first of an epoch."""
    _may_change: bool = field(init=False)
    """True where a window begins, and after an epoch's first record."""

    def __post_init__(self) -> None:
        start = self.start
        self.in_force = start.offset
        if self.in_force > len(self.changes):
            raise MalformedPosition(
                f"the state's lane {self.lane} stands behind {self.in_force} changes of weights, "
                f"of {len(self.changes)}; give the state as it was saved"
            )
        self._draws = self.changes[self.in_force - 1].draws if self.in_force else None
        pending = (change.of_lane(self.lane) for change in self.changes[self.in_force :])
        self._pending = deque(pending)
        # The rows of the window that are done are counted again.
        self._delivered = start.taken - start.row + start.part
        self._epoch = start.extent
        # The first record of an epoch makes it begin, so it is drawn as before.
        self._open(start.window, is_of_epoch=not start.window and start.record > 0)

    @property
    def is_over(self) -> bool:
        """True if no further change will come."""
        return not self._pending

    def take(self) -> Draws | None:
        """Return the draws of the next record; ``None``: no change holds yet."""
        while self._pending and self._is_due:
            self._draws = self._pending.popleft().draws
            self.in_force += 1
        return self._draws

    def advance(self, rows: RecordRows, lengths: Indices, epochs: Indices) -> int:
        """Pass the next records, up to the place of the next change.

        Args:
            rows: The records.
            lengths: int64 ``[records]``: the bytes of each.
            epochs: int64 ``[records]``: the epoch of the mix at each.

        Returns:
            The number of records before the change; of all, if it does not come among them.
        """
        given = (rows.ordinals >= 0) | self.keeps_placeholders
        begins = (np.flatnonzero(np.diff(epochs)) + 1).tolist()
        first = 0
        for last in [*begins, len(epochs)]:
            if not self._is_due and epochs[first] != self._epoch:
                self._epoch = int(epochs[first])
                self._open(0, is_of_epoch=True)
            first = self._advance(first, last, given, lengths)
            if first < last:
                break
        return first

    def _advance(self, first: int, last: int, given: Flags, lengths: Indices) -> int:
        """Pass records of one epoch; return the number of the one that the change precedes."""
        while first < last and not self._is_due:
            count = self._pass_some(lengths[first:last])
            self._delivered += int(given[first : first + count].sum())
            first += count
        return first

    def _pass_some(self, lengths: Indices) -> int:
        """Pass records until the next place where a change may come; return their number."""
        if self.windows is None:
            return min(len(lengths), self._pending[0].record - self._delivered)
        if self._is_full:
            self._open(self._window + 1)
        some = lengths[:1] if self._begins_epoch else lengths
        count, weight = self.windows.takes(some, self._missing)
        self._missing -= weight
        self._is_full = self._missing <= 0
        self._may_change = self._begins_epoch or self._is_full
        self._begins_epoch = False
        return count

    @property
    def _is_due(self) -> bool:
        return self._may_change and self._pending[0].record <= self._delivered

    def _open(self, number: int, *, is_of_epoch: bool = False) -> None:
        self._window, self._begins_epoch, self._is_full = number, is_of_epoch, False
        self._may_change = self.windows is None or not is_of_epoch
        if self.windows is not None:
            self._missing = self.windows.opens(self.lane, self._epoch, number)
