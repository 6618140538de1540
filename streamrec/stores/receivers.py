"""The bytes of a body straight into their final memory, past aiohttp's buffers.

aiohttp parses the head of an answer. What follows it is plain bytes of a known number, and aiohttp
would make an object of each piece that the socket gives, join them and let them be copied again.
Here the connection is taken over for the rest of the body: the event loop receives into the range's
own memory. When the last byte is there, aiohttp gets its connection back, and is told that the body
has ended. Only public parts of aiohttp and asyncio are used for this.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import aiohttp

__all__ = ["BodyReceiver"]

HEAD_BYTES = 4 << 10
"""Received at a time while an answer's head is awaited, which may be longer."""


class HeadReceiver(asyncio.BufferedProtocol):
    """Receives the heads of answers for aiohttp, and little of what follows them.

    An event loop reads a quarter of a megabyte at a time into objects of its own, and most of an
    answer may be there with its head. That would be copied twice before the rest can land.

    Args:
        parser: aiohttp's.
    """

    def __init__(self, parser: asyncio.Protocol) -> None:
        self._parser = parser
        self._view = memoryview(bytearray(HEAD_BYTES))

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the protocol's signature
        """Where the loop is to put what comes."""
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        """So much has come."""
        self._parser.data_received(bytes(self._view[:nbytes]))

    def eof_received(self) -> bool | None:
        """Passed on, as all that follows."""
        return self._parser.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._parser.connection_lost(exc)

    def pause_writing(self) -> None:
        """It is aiohttp that writes."""
        self._parser.pause_writing()

    def resume_writing(self) -> None:
        """There is room again."""
        self._parser.resume_writing()


class BodyReceiver(asyncio.BufferedProtocol):
    """Receives what is left of one answer's body.

    The socket is only read while a call of :meth:`readinto` waits, and never past the view.

    Args:
        response: Its head is parsed, and aiohttp has given away all bytes that it had.
        left: Bytes of the body that are still to come.
        seconds: How long the server may be silent.
    """

    def __init__(self, response: aiohttp.ClientResponse, left: int, seconds: float) -> None:
        connection = response.connection
        assert connection is not None
        assert connection.protocol is not None
        assert connection.transport is not None
        self._content = response.content
        self._parser = connection.protocol
        self._transport = connection.transport
        self._left = left
        self._seconds = seconds
        self._heard_at = 0.0
        self._loop = asyncio.get_running_loop()
        self._on_received: Callable[[int], None] | None = None
        self._view = memoryview(b"")
        self._received = 0
        self._waiter: asyncio.Future[None] | None = None
        self._ended = False
        self._lost: Exception | None = None
        before = self._transport.get_protocol()
        self._heads = before if isinstance(before, HeadReceiver) else HeadReceiver(self._parser)
        self._parser.pause_reading()  # ends aiohttp's timer for a silent socket, too
        self._transport.set_protocol(self)

    async def readinto(
        self, view: memoryview, on_received: Callable[[int], None] | None = None
    ) -> int:
        """Fill the beginning of a view that is not empty with what the socket gives next.

        Args:
            view: Where the bytes go.
            on_received: Told of so many bytes whenever some have received; then the call goes on until the
                view is full. A turn of the event loop for each piece, and stopping the socket
                meanwhile, cost CPU time, most over TLS.

        Returns:
            How many bytes; 0 where the connection ended in good order, and too early.

        Raises:
            OSError: The connection broke, or was silent for too long.
            Exception: What ``on_received`` raises.
        """
        if self._ended or self._transport.is_closing():
            return 0
        self._view, self._on_received, self._received = view[: self._left], on_received, 0
        self._waiter, self._heard_at = self._loop.create_future(), self._loop.time()
        self._timer = self._loop.call_later(self._seconds, self._listen)
        self._transport.resume_reading()
        try:
            await self._waiter
        finally:
            self._timer.cancel()
            self._view, self._on_received, received = memoryview(b""), None, self._received
            if not self._transport.is_closing():
                self._transport.pause_reading()  # if it was cancelled; else it is paused
        self._left -= received
        if not self._left:
            self._give_back()
        if not received and self._lost is not None:
            raise self._lost
        return received

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the protocol's signature
        """Where the loop is to put what comes."""
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        """So much has come: where no more is wanted now, stop until somebody wants more."""
        self._received += nbytes
        self._view = self._view[nbytes:]
        failure = self._report(nbytes)
        if self._on_received is None or not self._view or failure is not None:
            self._transport.pause_reading()
            self._wake(failure)

    def _report(self, nbytes: int) -> Exception | None:
        """Tell of what has received; what that raises is for who waits, not for the event loop."""
        if self._on_received is not None:
            self._heard_at = self._loop.time()
            try:
                self._on_received(nbytes)
            except Exception as error:  # noqa: BLE001 - it is raised by readinto
                return error
        return None

    def eof_received(self) -> bool:
        """The server closes, and too early."""
        self._ended = True
        self._wake()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone, which aiohttp must know too."""
        self._ended, self._lost = True, exc
        self._wake()
        self._parser.connection_lost(exc)

    def pause_writing(self) -> None:
        """Passed on: it is aiohttp that writes."""
        self._parser.pause_writing()

    def resume_writing(self) -> None:
        """Passed on."""
        self._parser.resume_writing()

    def _listen(self) -> None:
        """Whether the server is silent for too long; looked at once in a while."""
        left = self._heard_at + self._seconds - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._listen)
        else:
            self._wake(TimeoutError())

    def _wake(self, failure: Exception | None = None) -> None:
        if self._waiter is None or self._waiter.done():
            return
        if failure is None:
            self._waiter.set_result(None)
        else:
            self._waiter.set_exception(failure)

    def _give_back(self) -> None:
        """The body is whole. aiohttp's parser never saw it, but each request gets a new one."""
        if not self._ended:
            self._transport.set_protocol(self._heads)
            self._parser.resume_reading()
        self._content.feed_eof()
