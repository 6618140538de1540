"""Answers onto the socket: at the store's pace, and with what faults do to the connection."""

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
    """Sends one reply.

    Args:
        request: Whom to answer.
        reply: What to answer.
        effects: What goes wrong on the way; errors are answered in peace.
        pace: When each piece may leave.
        count: Told how many bytes of the body are about to be sent.
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
        """Send head and body; the object is closed in the end."""
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
            if not piece:  # the file was cut short meanwhile: what was promised cannot be kept
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
        """Places in the body; those of other answers than objects stay whole."""
        body, effects = self._reply.body, self._effects
        if not isinstance(body, ObjectBody):
            return []
        in_object = effects.flip_object_at
        places = (effects.flip_at, None if in_object is None else in_object - body.start)
        return [place for place in places if place is not None]

    async def _flush(self) -> None:
        """Wait until the kernel has all that was written, so that it comes before the fault."""
        transport = self._request.transport
        if transport is None:
            return
        while transport.get_write_buffer_size():  # noqa: ASYNC110 - a transport tells nobody
            await asyncio.sleep(0.001)


def reset(request: web.BaseRequest) -> None:
    """Break the connection with RST instead of FIN."""
    transport = request.transport
    if transport is None:
        return
    carrier = transport.get_extra_info("socket")
    if carrier is not None:
        # The option belongs to the connection; a second descriptor reaches it under any loop.
        with socket.socket(fileno=os.dup(carrier.fileno())) as twin:
            twin.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
