"""The sending of replies at the store's bandwidth, with faults, and the counters of requests."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections import Counter, deque
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from aiohttp import web

from streamrec.devstore.calls import ObjectBody
from streamrec.devstore.faults import NO_EFFECTS, Step, flip_byte, sending_steps

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamrec.devstore.calls import Call, Reply
    from streamrec.devstore.faults import FaultEffects
    from streamrec.devstore.pacing import Pace


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


@dataclass
class Sender:
    """The sender of one reply."""

    request: web.BaseRequest
    reply: Reply
    effects: FaultEffects
    """The effects of faults on the body; those of error replies stay whole."""
    pace: Pace
    """The schedule of the body."""
    count: Callable[[int], None]
    """A function that is called with the number of bytes of the body that are about to be sent."""

    async def send(self) -> web.StreamResponse:
        """Send head and body, and close the object's content."""
        reply = self.reply
        response = web.StreamResponse(status=reply.status, headers=reply.headers)
        response.content_length = None if reply.status == 304 else reply.size
        try:
            await response.prepare(self.request)
            if self.request.method != "HEAD":
                await self._send_body(response)
        finally:
            if isinstance(reply.body, ObjectBody):
                reply.body.content.close()
        return response

    async def _send_body(self, response: web.StreamResponse) -> None:
        effects = self.effects if self.reply.status < 300 else NO_EFFECTS
        for step in sending_steps(self.reply.size, effects):
            if step.act == "send":
                await self._send_span(response, step)
                continue
            await self._flush()
            if step.act == "stall":
                await self.pace.sleep(step.seconds)
            elif step.act == "reset":
                reset(self.request)
            elif self.request.transport is not None:
                self.request.transport.close()

    async def _send_span(self, response: web.StreamResponse, step: Step) -> None:
        at = step.start
        while at < step.stop:
            size = min(self.pace.slice, step.stop - at)
            piece = self._piece(at, at + size)  # which may be smaller
            if not piece:  # the file was truncated meanwhile, so that Content-Length is wrong
                reset(self.request)
                return
            await self.pace.wait(len(piece))
            self.count(len(piece))
            await response.write(piece)
            at += len(piece)

    def _piece(self, start: int, stop: int) -> bytes | memoryview:
        body, flipped = self.reply.body, self.effects.flip_object_at
        if isinstance(body, bytes):
            return memoryview(body)[start:stop]
        piece = body.content.read(body.start + start, body.start + stop)
        return piece if flipped is None else flip_byte(piece, flipped - body.start - start)

    async def _flush(self) -> None:
        """Wait until the kernel has all that was written, so that it precedes the fault."""
        transport = self.request.transport
        if transport is None:
            return
        while transport.get_write_buffer_size():  # noqa: ASYNC110 - a transport has no event for this
            await asyncio.sleep(0.001)


def reset(request: web.BaseRequest) -> None:
    """Close the connection with RST instead of FIN."""
    transport = request.transport
    if transport is None:
        return
    carrier = transport.get_extra_info("socket")
    if carrier is not None:
        # The option applies to the connection, and a second descriptor works with any event loop.
        with socket.socket(fileno=os.dup(carrier.fileno())) as twin:
            twin.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
