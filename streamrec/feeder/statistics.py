"""The counters of a feeder."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

__all__ = ["Statistics"]

WAITS = ("credit", "data", "socket")
DROPS = ("full", "crowd", "handshake", "idle")


@dataclass
class Statistics:
    """The counters of a feeder since its start."""

    connections_total: int = 0
    batches: Counter[str] = field(default_factory=Counter)
    """Batches that were sent, by dataset."""
    records: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    """Bytes of whole frames that were sent, by dataset."""
    faults: Counter[str] = field(default_factory=Counter)
    """Errors that were sent to clients, by type."""
    waited: dict[str, float] = field(default_factory=lambda: dict.fromkeys(WAITS, 0.0))
    """Seconds of all connections together, by what they waited for: ``credit`` (the client does not
    take), ``data`` (the store does not give) or ``socket`` (the network does not carry)."""
    dropped: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DROPS, 0))
    """Connections that the feeder ended, by reason: no room for the client (``full``), or for so
    many handshakes (``crowd``), a handshake that took too long, no sign of life (``idle``)."""
