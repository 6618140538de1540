"""The policy of a client that heals: where to connect next, when, and when to give up. No I/O.

::

             found(addresses)            failed(error): an error to raise, or None
                    │                    ┌──────────────────────────┐
                    ▼                    ▼                          │
    Pause ◀────── next() ──────────▶ an address ──▶ connect, receive ──▶ delivered()
      │             ▲
      └─ wait, look the names up anew ─┘

A round is one attempt at each address that the names stand for at its beginning, the near ones
first. Only the very
first round begins without a wait: where a feeder ends, its clients do not all arrive at the next
one at once. A feeder that serves another stream than the one before it is left like one that is
lost, for the others; where all of them do, that is the error.

And notices that names stand for other feeders than before, so that ranks share the new ones, too. A
connection stays with its feeder, so without this a feeder that is added would serve only clients
that come later. Names are looked up in a thread: the loop over a stream never waits for that.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from streamrec.errors import (
    FeederLost,
    FeederRefused,
    OtherDataset,
    OtherOrder,
    RemoteProtocolError,
    Stalled,
    StateError,
    StreamrecError,
)
from streamrec.flow.retry import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from streamrec.feeder.access.address import Address


SHARE = 0.1
"""The part of an outage over which clients spread when they come again: a feeder that is back
welcomes hundreds of them one after the other."""
LONGEST_SPREAD = 15.0
"""Seconds over which they spread at most."""
SAY_EVERY = 30.0
"""Seconds between two lines about an outage that goes on."""
MOST_NAMED = 8
"""The most addresses that an error names one by one."""


@dataclass(frozen=True)
class Pause:
    """The end of a round: wait, then look up anew what the names stand for."""

    seconds: float


@dataclass
class _Trial:
    """The attempts at one address since the last batch."""

    failures: int = 0
    reason: str = ""


class Failover:
    """Decides what a client does after a failure, until the next batch is delivered.

    Args:
        rank: Rank r begins at address r mod n, so that ranks share the feeders.
        retry_for: Seconds from the first failure since the last batch to the error. A round that
            has begun before goes on, so that each address is tried once.
        random: The source of the jitter.
    """

    def __init__(self, rank: int, retry_for: float, random: Random) -> None:
        self._turn = self._rank = rank
        self._retry_for = retry_for
        self._backoff = Backoff(random)
        self.addresses: Sequence[Address] = ()
        """The addresses of the present round, in the order in which they are tried."""
        self._left = 0
        """Attempts that are left in this round."""
        self._rounds = 0
        """Rounds since the last batch."""
        self._begun = False
        """True after the first round has begun."""
        self.address: Address | None = None
        """The address of the last attempt."""
        self._failed_at: float | None = None
        """The time of the first failure since the last batch."""
        self._time_left = retry_for
        self._outage = 0.0
        """Seconds from the first failure since the last batch to the last one."""
        self._trials: dict[str, _Trial] = {}
        self._random = random
        self._served: set[tuple[object, ...]] = set()
        """The places that have said WELCOME."""
        self._other: StateError | None = None
        """The error of a feeder that serves another stream, since the last batch."""
        self._all_differ = True
        """True while each feeder of this round serves another stream."""
        self._said_at = 0.0
        """The time of the last line about the present outage, or of its beginning."""

    def __repr__(self) -> str:
        return f"<Failover at {self.address}, {self.failures} failures>"

    @property
    def failures(self) -> int:
        """The failures since the last batch."""
        return sum(trial.failures for trial in self._trials.values())

    def next(self) -> Address | Pause:
        """Return the address to connect to now, or the pause that comes before."""
        if not self._left:
            wait = max(self._backoff.next(), self._spread()) if self._begun else 0.0
            # No longer than what is left of retry_for: the last round comes before the error.
            return Pause(max(0.0, min(wait, self._time_left)))
        self.address = self.addresses[-self._left]
        self._left -= 1
        # The turn goes on over rounds, also where names stand for fewer machines than before.
        self._turn += 1
        return self.address

    def begin_round(self, addresses: Sequence[Address]) -> None:
        """Begin a round at these addresses: those that the names stand for now, one at least."""
        self.addresses = _in_order(addresses, self._turn)
        self._left = len(self.addresses)
        self._rounds += 1
        self._begun = self._all_differ = True

    def move(self, addresses: Sequence[Address]) -> bool:
        """Begin anew in a changed fleet, if the rank belongs to another feeder of it.

        Returns:
            True if it does; :meth:`next` then returns that feeder's address.
        """
        if _in_order(addresses, self._rank)[0] == self.address:
            return False
        self._turn = self._rank
        self.begin_round(addresses)
        return True

    def note_welcome(self) -> None:
        """Note that the feeder at the present address has said WELCOME."""
        self._served.add(_place(self.address))

    def note_delivery(self) -> None:
        """Note that a batch came: whatever fails next is a new failure, with all of its time."""
        # This runs for each batch, and mostly nothing has failed since the last one.
        if self._rounds:
            self._left = self._rounds = 0
            self._failed_at, self._time_left = None, self._retry_for
            self._outage = 0.0
            self._other = None
            self._backoff.reset()
            self._trials.clear()

    def note_failure(
        self, error: StreamrecError, now: float, *, welcomed: bool = False
    ) -> StreamrecError | None:
        """Note that an attempt, or the connection, failed.

        Args:
            error: The reason.
            now: Seconds, of any clock that never goes back.
            welcomed: The feeder had said WELCOME on this connection.

        Returns:
            The error to raise, where it cannot be healed or time is up; ``None``: go on.
        """
        # Without the advice after the semicolon: an error that lists attempts has one of its own.
        reason = str(error).partition(";")[0]
        if isinstance(error, StateError):
            error = type(error)(f"{self.address}: {error.message}")
        if isinstance(error, OtherDataset | OtherOrder):
            self._other = error
        elif not self._heals(error, welcomed=welcomed):
            return error
        else:
            self._all_differ = False
        trial = self._trials.setdefault(str(self.address), _Trial())
        trial.failures += 1
        trial.reason = reason
        if self._failed_at is None:
            self._failed_at = self._said_at = now
        self._outage = now - self._failed_at
        self._time_left = self._retry_for - self._outage
        # Where the stream has begun, a feeder that cannot be reached now may be the right one.
        if self._other and not self._left and (self._all_differ or not self._served):
            return self._other
        is_first_round = self._left and self._rounds == 1
        if self._time_left > 0 or is_first_round:
            return None
        # A single failure says more by itself than a list of attempts with one entry.
        if self._other or self.failures == 1:
            return self._other or error
        return self._give_up(self._outage)

    def _heals(self, error: StreamrecError, *, welcomed: bool) -> bool:
        """Return whether the same request may succeed elsewhere, or later."""
        if isinstance(error, Stalled):
            return len(self.addresses) > 1
        # Whoever has never said WELCOME may be no feeder at all, and never become one. Where one
        # has been, a proxy may answer in its place for a while, or bits may flip.
        if error.retryable or not (welcomed or _place(self.address) in self._served):
            return error.retryable
        return isinstance(error, RemoteProtocolError) or (
            isinstance(error, FeederRefused) and error.code == "tls"
        )

    def news(self, now: float) -> str | None:
        """Return what was tried in an outage that goes on, if it is time for another line."""
        if self._failed_at is None or now < self._said_at + SAY_EVERY:
            return None
        self._said_at, seconds = now, now - self._failed_at
        return f"no feeder has sent a batch for {seconds:.0f} s; tried {self._list_trials()}"

    def _spread(self) -> float:
        """Return a random part of the time over which clients spread after this outage."""
        most = min(LONGEST_SPREAD, SHARE * self._outage)
        return self._random.uniform(0, most) if most > 0 else 0.0

    def _list_trials(self) -> str:
        named = [
            f"{address} ({trial.failures} x, at last: {trial.reason})"
            for address, trial in list(self._trials.items())[:MOST_NAMED]
        ]
        more = len(self._trials) - len(named)
        named += [f"{more} more addresses"] if more else []
        return ", ".join(named)

    def _give_up(self, seconds: float) -> FeederLost:
        return FeederLost(
            f"no feeder sent a batch for {seconds:.3g} s (retry_for is {self._retry_for:g} s); "
            f"tried {self._list_trials()}; see that a feeder runs at one of them, and go on from "
            "the position"
        )


def _in_order(addresses: Sequence[Address], turn: int) -> list[Address]:
    """Return the near addresses and then the far ones, each beginning at that turn."""
    near = [one for one in addresses if not one.is_far]
    there = {_machine(one) for one in near}
    # A name for all feeders stands for the near ones, too.
    far = [one for one in addresses if one.is_far and _machine(one) not in there]
    return [some[(turn + i) % len(some)] for some in (near, far) for i in range(len(some))]


def _machine(address: Address) -> tuple[object, ...]:
    return (address.ip or address.host, address.port, address.path)


def _place(address: Address | None) -> tuple[object, ...]:
    """Return what stays the same of an address when its name stands for another machine."""
    return () if address is None else (address.host, address.port, address.path)


LOOK_EVERY = 30.0
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
            self._due = now + self._random.uniform(0.5, 1.5) * LOOK_EVERY
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
