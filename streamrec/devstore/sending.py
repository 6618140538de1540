"""The sending of replies, at the store's bandwidth and with the effects of faults."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from typing import TYPE_CHECKING

from aiohttp import web

from streamrec.devstore.faults import NO_EFFECTS, Step, flip_byte, sending_steps
from streamrec.devstore.messages import ObjectBody

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from streamrec.devstore.faults import FaultEffects
    from streamrec.devstore.messages import Reply
    from streamrec.devstore.pacing import Pace

__all__ = ["Sender", "reset"]


class Sender:
    """The sender of one reply.

    Args:
        request: The request.
        reply: The reply to send.
        effects: The effects of faults on the body; those of error replies stay whole.
        pace: The schedule of the body.
        count: Called with the number of bytes of the body that are about to be sent.
        sleep: Waits that many seconds.
    """

    def __init__(
        self,
        request: web.BaseRequest,
        reply: Reply,
        effects: FaultEffects,
        pace: Pace,
        count: Callable[[int], None],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self._request = request
        self._reply = reply
        self._effects = effects
        self._pace = pace
        self._count = count
        self._sleep = sleep
        self._response = web.StreamResponse(status=reply.status, headers=reply.headers)
        self._response.content_length = reply.size
        self._flips = self._flip_places()

    async def send(self) -> web.StreamResponse:
        """Send head and body, and close the object's content."""
        try:
            if self._reply.status == 304:
                self._response.content_length = None
            await self._response.prepare(self._request)
            if not self._reply.bare:
                await self._send_body()
        finally:
            if isinstance(self._reply.body, ObjectBody):
                self._reply.body.content.close()
        return self._response

    async def _send_body(self) -> None:
        effects = self._effects if self._reply.status < 300 else NO_EFFECTS
        for step in sending_steps(self._reply.size, effects):
            if step.act == "send":
                await self._send_span(step)
                continue
            await self._flush()
            if step.act == "stall":
                await self._sleep(step.seconds)
            elif step.act == "reset":
                reset(self._request)
            elif self._request.transport is not None:
                self._request.transport.close()

    async def _send_span(self, step: Step) -> None:
        at = step.start
        while at < step.stop:
            size = min(self._pace.slice, step.stop - at)
            await self._pace.wait(size)
            piece = self._piece(at, at + size)
            if not piece:  # the file was truncated meanwhile, so that Content-Length is wrong
                reset(self._request)
                return
            self._count(len(piece))
            await self._response.write(piece)
            at += len(piece)

    def _piece(self, start: int, stop: int) -> bytes | memoryview:
        body = self._reply.body
        if isinstance(body, bytes):
            piece: bytes | memoryview = memoryview(body)[start:stop]
        else:
            piece = body.content.read(body.start + start, body.start + stop)
        for place in self._flips:
            piece = flip_byte(piece, place - start)
        return piece

    def _flip_places(self) -> list[int]:
        """Return the bytes of the body to flip; only bodies of objects have some."""
        body, effects = self._reply.body, self._effects
        if not isinstance(body, ObjectBody):
            return []
        in_object = effects.flip_object_at
        places = (effects.flip_at, None if in_object is None else in_object - body.start)
        return [place for place in places if place is not None]

    async def _flush(self) -> None:
        """Wait until the kernel has all that was written, so that it precedes the fault."""
        transport = self._request.transport
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
