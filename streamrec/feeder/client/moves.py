"""Notices that names stand for other feeders than before, so that ranks share the new ones, too.

A connection stays with its feeder, so without this a feeder that is added would serve only clients
that come later. Names are looked up in a thread: the loop over a stream never waits for that.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from streamrec.feeder.access.address import Address

EVERY = 30.0
"""Seconds between two looks, on average: with the random part, clients do not move all at once."""


class Moves:
    """Says when a client should connect anew, because the fleet has changed.

    It says so for a fleet that has grown or shrunk, when two looks in a row have found it: a feeder
    that is not ready for a moment leaves its name and comes back, and its clients need not move for
    that.

    Args:
        look: Returns the machines that the names stand for now; may take seconds.
        random: The source of the jitter.
    """

    def __init__(self, look: Callable[[], Sequence[Address]], random: Random) -> None:
        self._look = look
        self._random = random
        self._known: Sequence[Address] = ()
        self._seen: Sequence[Address] = ()
        """What the last look has found, where that was something new."""
        self._found: Sequence[Address] | None = None
        """What a thread has found, until it is taken."""
        self._due: float | None = None

    def know(self, machines: Sequence[Address]) -> None:
        """Note the fleet that the client knows now."""
        self._known, self._seen = machines, ()

    def changed(self, now: float) -> Sequence[Address] | None:
        """Return the fleet, if it is another one than the client knows; this never waits.

        Args:
            now: Seconds, of any clock that never goes back.
        """
        found, self._found = self._found, None
        if found is not None:
            return self._compare(found)
        if self._due is None or now >= self._due:
            if self._due is not None:
                threading.Thread(target=self._look_up, name="streamrec-look", daemon=True).start()
            self._due = now + self._random.uniform(0.5, 1.5) * EVERY
        return None

    def _look_up(self) -> None:
        self._found = self._look()

    def _compare(self, found: Sequence[Address]) -> Sequence[Address] | None:
        # A name that cannot be looked up stays a name: that says nothing about its machines.
        is_new = list(found) != list(self._known) and all(one.is_looked_up for one in found)
        is_sure = is_new and list(found) == list(self._seen)
        self._seen = found if is_new else ()
        if not is_sure:
            return None
        # Where some have gone and as many have come, their clients have moved already. And a name
        # server that answers with some of many addresses names others each time.
        before, now = {*self._known}, {*found}
        self.know(found)
        return found if before < now or now < before else None
