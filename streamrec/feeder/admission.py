"""The limits of connections: handshakes in progress, and clients. No I/O."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["Admission", "Limits"]

Guest = TypeVar("Guest")


@dataclass(frozen=True)
class Limits:
    """The numbers of connections that may be open at once."""

    clients: int = 1024
    clients_per_address: int = 256
    """From one address of another machine: a part of all, and more ranks than one machine has."""
    handshakes: int = 256
    """Connections that have not said HELLO, or were refused."""


class Admission(Generic[Guest]):
    """Counts connections: each is a handshake first and, once it said HELLO, a client.

    A client says HELLO at once. So where handshakes are too many the oldest is the one to cut:
    those who say nothing, however many they are, keep nobody out who does.

    Args:
        limits: How many there may be.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._addresses: dict[Guest, str | None] = {}
        self._handshakes: dict[Guest, None] = {}
        """In the order of their arrival."""
        self._clients: set[Guest] = set()
        self._clients_at: Counter[str | None] = Counter()

    @property
    def guests(self) -> list[Guest]:
        """All connections."""
        return list(self._addresses)

    @property
    def handshakes(self) -> int:
        """Connections that are no clients yet."""
        return len(self._handshakes)

    @property
    def clients(self) -> int:
        """Connections that are clients."""
        return len(self._clients)

    @property
    def full(self) -> str | None:
        """The reason why there is no room for another client; ``None`` where there is."""
        if len(self._clients) < self._limits.clients:
            return None
        return f"the feeder serves {self._limits.clients} clients already (max_connections)"

    def arrive(self, guest: Guest, address: str | None) -> Guest | None:
        """Count a new handshake.

        Args:
            guest: The connection.
            address: Of another machine; ``None``: it comes from this one.

        Returns:
            The handshake to cut, where they are too many now.
        """
        self._addresses[guest] = address
        self._handshakes[guest] = None
        if len(self._handshakes) <= self._limits.handshakes:
            return None
        oldest = next(iter(self._handshakes))
        del self._handshakes[oldest]
        return oldest

    def admit(self, guest: Guest) -> str | None:
        """Count a handshake as a client from now on; returns why not, where there is no room."""
        address = self._addresses[guest]
        refusal = self.full or self._full_at(address)
        if refusal is None:
            self._handshakes.pop(guest, None)
            self._clients.add(guest)
            self._clients_at[address] += 1
        return refusal

    def leave(self, guest: Guest) -> None:
        """Count a connection no longer."""
        address = self._addresses.pop(guest)
        self._handshakes.pop(guest, None)
        if guest in self._clients:
            self._clients.remove(guest)
            self._clients_at[address] -= 1
            self._clients_at += Counter()  # without addresses that nobody comes from any more

    def _full_at(self, address: str | None) -> str | None:
        most = self._limits.clients_per_address
        if address is None or self._clients_at[address] < most:
            return None
        return (
            f"the feeder serves {most} clients at {address} already; raise "
            "max_connections_per_address in its [server] if they are all meant to be there"
        )
