"""The sending of replies at the store's bandwidth, with faults, and the counters of requests."""

from __future__ import annotations

import asyncio
import math
import os
import random
import socket
import struct
from collections import Counter, deque
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from aiohttp import web

from streamrec.devstore.api import ObjectBody
from streamrec.devstore.refusals import NO_EFFECTS, Step, flip_byte, sending_steps

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from streamrec.devstore.api import Call, Reply
    from streamrec.devstore.refusals import FaultEffects


BURST_SECONDS = 0.1
"""Seconds of the rate that may come at once: clients send in bursts, and stores bear small ones."""


class RequestRate:
    """A token bucket: it admits requests up to a rate, and small bursts beyond it.

    Args:
        rate: Requests a second.
        clock: Returns seconds, monotonic.
    """

    def __init__(self, rate: float, clock: Callable[[], float]) -> None:
        self._rate = rate
        self._clock = clock
        self._most = max(2.0, rate * BURST_SECONDS)  # one would lose parts of tokens in between
        self._tokens, self._filled = self._most, -math.inf

    def admit(self) -> bool:
        """Count a request, and return whether it is within the rate."""
        now = self._clock()
        self._tokens = min(self._most, self._tokens + (now - self._filled) * self._rate)
        self._filled = now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True


class Jitter:
    """A source of latencies around a mean, drawn from a log-normal distribution.

    Stores answer like that: never at once, mostly a little before the mean, now and then far behind
    it. A uniform distribution has no such tail, and a normal one has negative values.

    Args:
        deviation: The standard deviation, as a part of the mean; 0: each latency is the mean.
        seed: The seed of the draws.
    """

    def __init__(self, deviation: float, seed: int) -> None:
        variance = math.log1p(deviation**2)
        self._sigma = math.sqrt(variance)
        self._mu = -variance / 2  # which makes the mean of the factors 1
        # Not the numbers of faults: then the same requests would always be late and faulty.
        self._randomness = random.Random(f"jitter {seed}")

    def draw(self, mean: float) -> float:
        """Return a latency, in the unit of the mean."""
        return mean * self._randomness.lognormvariate(self._mu, self._sigma)


UNPACED_SLICE = 1 << 20
"""Bytes of a write without a bandwidth: large, so that the cost of each write does not matter."""
SMALLEST_SLICE = 16 << 10
SLICE_SECONDS = 0.01
"""Seconds that a slice takes at a given bandwidth: 100 writes a second are cheap and smooth."""
SLACK_SECONDS = 0.05
"""Most seconds of delay that are caught up. It covers a busy loop, but not a reader that paused."""
LINK_SLICE_SECONDS = 0.001
"""Seconds that a slice takes on the link: each body waits for a slice of every other one."""


class SharedLink:
    """The schedule of all bodies together, which share a rate slice by slice, in turn.

    A body that its connection holds back takes its turn less often, and leaves the rest to others.

    Args:
        rate: Bytes a second.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._free = -math.inf

    @property
    def slice(self) -> int:
        """The most bytes that a turn should hold."""
        return max(SMALLEST_SLICE, int(self._rate * LINK_SLICE_SECONDS))

    def reserve(self, start: float, size: int) -> float:
        """Reserve the link for ``size`` bytes; return the time at which they have passed.

        Args:
            start: The time from which the bytes are ready; what the link could have carried while
                nothing was ready is lost.
            size: The number of bytes.
        """
        self._free = max(self._free, start) + size / self._rate
        return self._free


class Pace:
    """The schedule of one body, which is sent at a given rate.

    Args:
        rate: Bytes a second; None: as fast as the socket takes them.
        clock: Returns seconds, monotonic.
        sleep: Waits that many seconds.
        link: The link that the body shares with others; None: without limit.
    """

    def __init__(
        self,
        rate: float | None,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
        link: SharedLink | None = None,
    ) -> None:
        self._rate = rate
        self._link = link
        self._clock = clock
        self.sleep = sleep
        self._sent = 0
        self._due = clock()

    @property
    def slice(self) -> int:
        """The most bytes that the next write should hold.

        It starts small and doubles, so that the first byte does not wait for a whole slice.
        """
        if self._rate is None and self._link is None:
            return UNPACED_SLICE
        largest = UNPACED_SLICE if self._link is None else min(UNPACED_SLICE, self._link.slice)
        if self._rate is not None:
            largest = min(largest, max(SMALLEST_SLICE, int(self._rate * SLICE_SECONDS)))
        return min(largest, max(SMALLEST_SLICE, self._sent))

    async def wait(self, size: int) -> None:
        """Wait until ``size`` more bytes would have arrived at the client."""
        self._sent += size
        if self._rate is None and self._link is None:
            return
        now = self._clock()
        # What is late by a little is caught up, so that the mean is the rate.
        start = max(self._due, now - SLACK_SECONDS)
        passed = start if self._link is None else self._link.reserve(start, size)
        self._due = max(passed, start if self._rate is None else start + size / self._rate)
        if self._due > now:
            await self.sleep(self._due - now)


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
        range_header, match = headers.get("Range"), headers.get("If-Match")
        return cls(call.method, call.path, query, range_header, match, signed, call.operation)


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
            # Requests in flight end later, and would make the number negative.
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
        # A 304 has no body, and a length would be that of the object.
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
            # FIN after fewer bytes than Content-Length says: a body that was cut short.
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
            # Before the write: a client that has read all bytes must find them counted.
            self.count(len(piece))
            await response.write(piece)
            at += len(piece)

    def _piece(self, start: int, stop: int) -> bytes | memoryview:
        body, flipped = self.reply.body, self.effects.flip_object_at
        if isinstance(body, bytes):
            return memoryview(body)[start:stop]
        # Read when it is sent: many slow clients must not hold whole objects in memory.
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
