"""Statistics of the store's requests: counters, and one record a request."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streamrec.devstore.calls import Call

KEPT_RECORDS = 100_000


@dataclass(slots=True)
class RequestRecord:
    """The record of one request and its response."""

    method: str
    path: str
    """The decoded path, ``/bucket/key`` for S3."""
    query: dict[str, str]
    range: str | None
    """The Range header."""
    if_match: str | None
    signed: str | None
    """The place of the signature: ``header``, ``query`` or None."""
    kind: str = "Unknown"
    """The API's name of the operation, such as ``GetObject``."""
    status: int = 0
    """The response's status; 0 if none was sent."""
    sent: int = 0
    """The bytes of the response's body that were handed to the socket."""

    @classmethod
    def of(cls, call: Call) -> RequestRecord:
        """Return the record of a call that has just arrived."""
        headers, query = call.headers, dict(call.query)
        by_query = "query" if "X-Amz-Algorithm" in query else None
        signed = "header" if "Authorization" in headers else by_query
        asked, match = headers.get("Range"), headers.get("If-Match")
        return cls(call.method, call.path, query, asked, match, signed, call.operation)


@dataclass
class RequestStatistics:
    """The counters since the start or the last :meth:`clear`."""

    requests: int = 0
    bytes_sent: int = 0
    in_flight: int = 0
    peak_in_flight: int = 0
    by_kind: Counter[str] = field(default_factory=Counter)
    """The number of requests by the API's name of the operation."""
    by_status: Counter[int] = field(default_factory=Counter)
    records: deque[RequestRecord] = field(default_factory=lambda: deque(maxlen=KEPT_RECORDS))
    """The records of the last 100,000 requests, in order of arrival."""

    def arrive(self, record: RequestRecord) -> None:
        """Count a request, before it is answered."""
        self.in_flight += 1
        self.peak_in_flight = max(self.peak_in_flight, self.in_flight)
        self.requests += 1
        self.by_kind[record.kind] += 1
        self.records.append(record)

    def answer(self, record: RequestRecord, status: int) -> None:
        """Count a response before it is sent; status 0 means that the connection is reset."""
        record.status = status
        self.by_status[status] += 1

    def send(self, record: RequestRecord, size: int) -> None:
        """Count bytes of a response's body before they are sent."""
        record.sent += size
        self.bytes_sent += size

    def leave(self) -> None:
        """Count the end of a request, whether it succeeded or not."""
        self.in_flight -= 1

    def clear(self) -> None:
        """Reset the counters, except that of requests in flight."""
        vars(self).update(
            vars(RequestStatistics(in_flight=self.in_flight, peak_in_flight=self.in_flight))
        )

    def to_dict(self, *, records: bool = False) -> dict[str, Any]:
        """Return the statistics as data for JSON."""
        plain = {name: value for name, value in vars(self).items() if name != "records"}
        return plain | ({"records": [asdict(record) for record in self.records]} if records else {})
