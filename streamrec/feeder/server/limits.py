"""The limits that all clients share: handshakes, connections, and memory. No I/O."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Generic, TypeVar

from streamrec.config.dataset import LEAST_BUDGET
from streamrec.errors import ConfigError, FeederDraining

if TYPE_CHECKING:
    from streamrec.config.daemon import DaemonSettings


Guest = TypeVar("Guest")


class Admission(Generic[Guest]):
    """Counts connections: each is a handshake first and, once it said HELLO, a client.

    A client says HELLO at once. So where handshakes are too many the oldest is the one to cut, of
    those at the address with the most: those who say nothing, however many they are, keep nobody
    out who does.

    Args:
        limits: The settings that say how many there may be.
    """

    def __init__(self, limits: DaemonSettings.Server) -> None:
        self._limits = limits
        self._handshakes: dict[Guest, str | None] = {}
        """The addresses of handshakes, in the order of their arrival."""
        self._clients: dict[Guest, str | None] = {}
        """The addresses of clients."""

    @property
    def guests(self) -> list[Guest]:
        """All connections that are counted."""
        return [*self._handshakes, *self._clients]

    @property
    def handshakes(self) -> int:
        """Connections that are not yet clients."""
        return len(self._handshakes)

    @property
    def clients(self) -> int:
        """Connections that are clients."""
        return len(self._clients)

    @property
    def full(self) -> str | None:
        """The reason why there is no room for another client; ``None`` where there is."""
        most = self._limits.max_connections
        if len(self._clients) < most:
            return None
        return f"the feeder serves {most} clients already (max_connections)"

    def arrive(self, guest: Guest, address: str | None) -> Guest | None:
        """Count a new handshake.

        Args:
            guest: The connection.
            address: Of another machine; ``None``: it comes from this one.

        Returns:
            The handshake to cut, where they are too many now; it is counted no longer.
        """
        self._handshakes[guest] = address
        if len(self._handshakes) <= self._limits.max_handshakes:
            return None
        counts = Counter(self._handshakes.values())
        most = max(counts.values())
        oldest = next(one for one, where in self._handshakes.items() if counts[where] == most)
        del self._handshakes[oldest]
        return oldest

    def admit(self, guest: Guest) -> str | None:
        """Count a handshake as a client from now on; returns why not, where there is no room."""
        address = self._handshakes.get(guest)
        refusal = self.full or self._full_at(address)
        if refusal is None:
            self._handshakes.pop(guest, None)
            self._clients[guest] = address
        return refusal

    def leave(self, guest: Guest) -> None:
        """Count a connection no longer."""
        self._handshakes.pop(guest, None)
        self._clients.pop(guest, None)

    def _full_at(self, address: str | None) -> str | None:
        most = self._limits.max_connections_per_address
        if address is None or list(self._clients.values()).count(address) < most:
            return None
        return (
            f"the feeder serves {most} clients at {address} already; raise "
            "max_connections_per_address in its [server] if they are all meant to be there"
        )


MIB = 1 << 20
SHARE = 4
"""A session gets one part in this many of what is free, at most, and so leaves room for others."""
KEPT = 4
"""One part in this many of the budget is kept for larger batches: the largest takes as much."""


class SharedBudget:
    """A budget from which sessions borrow until they end.

    While much is free a session gets all that it asks for. Then each gets a quarter of what is
    left, but never less than the least that its dataset can be read with; who cannot get that much
    is refused. What a session gets changes its speed alone.

    Sessions grow with their largest batches. Once one has, a part of the budget is kept for those
    that are here. Otherwise new sessions would take what these need next: each would be sent away
    for the other, and none would get on.

    Args:
        total: Bytes of all sessions together.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.lent = 0
        """Bytes that sessions have now."""
        self.sessions = 0
        """The number of sessions that have some."""
        self._grows = False
        """True once one of these sessions has wanted more."""

    def __repr__(self) -> str:
        return f"<SharedBudget, {self.lent} of {self.total} bytes lent to {self.sessions} sessions>"

    @property
    def free(self) -> int:
        """Bytes that no session has."""
        return self.total - self.lent

    @property
    def kept(self) -> int:
        """Bytes that no new session gets."""
        return self.total // KEPT if self._grows else 0

    @property
    def spent(self) -> str | None:
        """The reason why no session could get any; ``None`` while one could."""
        if self.free - self.kept >= LEAST_BUDGET:
            return None
        return f"{self.sessions} sessions have the whole memory_budget"

    def lend(self, asked: int, least: int) -> int:
        """Lend memory to a session; it gives back what it got with :meth:`give_back`.

        Args:
            asked: The bytes that the session would use.
            least: The bytes without which it cannot read; ``asked`` at most.

        Returns:
            The bytes that it gets, ``least`` to ``asked``.

        Raises:
            ConfigError: It needs more than the whole budget.
            FeederDraining: Too little is free now.
        """
        self._check(least, self.kept)
        granted = min(asked, max(least, (self.free - self.kept) // SHARE))
        self.lent += granted
        self.sessions += 1
        return granted

    def grow(self, more: int) -> None:
        """Lend more bytes to a session that has some; it gives all back together.

        Raises:
            ConfigError: They are more than the whole budget.
            FeederDraining: Too little is free now.
        """
        self._grows = True
        self._check(more, 0)
        self.lent += more

    def check(self, least: int) -> None:
        """Check that a session could get memory if it were alone.

        Raises:
            ConfigError: It needs more than the whole budget.
        """
        if least > self.total:
            raise ConfigError(
                f"the feeder's memory_budget is {self.total / MIB:.0f} MiB, and this dataset needs "
                f"{least / MIB:.0f} MiB for a session; raise memory_budget in the feeder's [server]"
            )

    def _check(self, least: int, kept: int) -> None:
        """Refuse to lend what there is not, and what is kept."""
        self.check(least)
        if least > self.free - kept:
            besides = f", keeps {kept / MIB:.0f} MiB for their larger batches," if kept else ","
            raise FeederDraining(
                f"the feeder has lent {self.lent / MIB:.0f} MiB of its memory_budget of "
                f"{self.total / MIB:.0f} MiB to {self.sessions} sessions{besides} and this one "
                f"needs {least / MIB:.0f} MiB; go on elsewhere, or raise memory_budget in the "
                "feeder's [server]"
            )

    def give_back(self, granted: int) -> None:
        """Take back what a session got."""
        self.lent -= granted
        self.sessions -= 1
        if not self.sessions:
            self._grows = False
