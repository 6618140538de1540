"""The limits of connections: handshakes in progress, and clients. No I/O."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Generic, TypeVar

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
