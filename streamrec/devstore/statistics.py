"""What was asked of the store: counters, and one record a request."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["RequestRecord", "Statistics"]

KEPT_RECORDS = 100_000


@dataclass(slots=True)
class RequestRecord:
    """One request, and what became of it."""

    method: str
    path: str
    """Decoded: ``/bucket/key``."""
    query: dict[str, str]
    range: str | None
    """The Range header."""
    if_match: str | None
    signed: str | None
    """Where the signature stood: ``header``, ``query`` or None."""
    kind: str = "Unknown"
    """S3's name of the operation, such as ``GetObject``."""
    status: int = 0
    """Of the answer; 0 where none was sent."""
    sent: int = 0
    """Bytes of the answer's body that were handed to the socket."""
    received: int = 0
    """Bytes of the request's body."""


@dataclass(slots=True)
class Statistics:
    """Counters since the start or the last :meth:`clear`."""

    requests: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    in_flight: int = 0
    peak_in_flight: int = 0
    by_kind: Counter[str] = field(default_factory=Counter)
    """Requests by S3's name of the operation."""
    by_method: Counter[str] = field(default_factory=Counter)
    by_status: Counter[int] = field(default_factory=Counter)
    bytes_by_kind: Counter[str] = field(default_factory=Counter)
    """Bytes sent, likewise."""
    records: deque[RequestRecord] = field(default_factory=lambda: deque(maxlen=KEPT_RECORDS))
    """The last 100,000 requests, in the order in which they came."""

    def arrive(self, record: RequestRecord) -> None:
        """Count a request; before it is answered, so that a client that has its answer finds it."""
        self.in_flight += 1
        self.peak_in_flight = max(self.peak_in_flight, self.in_flight)
        self.requests += 1
        self.by_kind[record.kind] += 1
        self.by_method[record.method] += 1
        self.records.append(record)

    def answer(self, record: RequestRecord, status: int) -> None:
        """Count an answer that is about to be sent; status 0: the connection is reset instead."""
        record.status = status
        self.by_status[status] += 1

    def send(self, record: RequestRecord, size: int) -> None:
        """Count bytes of an answer's body that are about to be sent."""
        record.sent += size
        self.bytes_sent += size
        self.bytes_by_kind[record.kind] += size

    def receive(self, record: RequestRecord, size: int) -> None:
        """Count bytes of a request's body."""
        record.received += size
        self.bytes_received += size

    def leave(self) -> None:
        """A request is over, well or not."""
        self.in_flight -= 1

    def clear(self) -> None:
        """Start anew; requests in flight stay so."""
        self.requests = self.bytes_sent = self.bytes_received = 0
        self.peak_in_flight = self.in_flight
        for counter in (self.by_kind, self.by_method, self.by_status, self.bytes_by_kind):
            counter.clear()
        self.records.clear()

    def to_dict(self, *, records: bool = False) -> dict[str, Any]:
        """Plain JSON-able data."""
        plain: dict[str, Any] = {
            "requests": self.requests,
            "bytes_sent": self.bytes_sent,
            "bytes_received": self.bytes_received,
            "in_flight": self.in_flight,
            "peak_in_flight": self.peak_in_flight,
            "by_kind": dict(self.by_kind),
            "by_method": dict(self.by_method),
            "by_status": {str(status): count for status, count in self.by_status.items()},
            "bytes_by_kind": dict(self.bytes_by_kind),
        }
        return plain | ({"records": [asdict(record) for record in self.records]} if records else {})
