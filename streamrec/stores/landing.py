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
    import aiohttp

__all__ = ["Landing"]


class Landing(asyncio.BufferedProtocol):
    """Receives what is left of one answer's body.

    The socket is only read while a call of :meth:`readinto` waits, and never past the view.

    Args:
        response: Its head is parsed, and aiohttp has given away all bytes that it had.
        left: Bytes of the body that are still to come.
    """

    def __init__(self, response: aiohttp.ClientResponse, left: int) -> None:
        connection = response.connection
        assert connection is not None
        assert connection.protocol is not None
        assert connection.transport is not None
        self._content = response.content
        self._parser = connection.protocol
        self._transport = connection.transport
        self._left = left
        self._view = memoryview(b"")
        self._landed = 0
        self._waiter: asyncio.Future[None] | None = None
        self._ended = False
        self._lost: Exception | None = None
        self._parser.pause_reading()  # ends aiohttp's timer for a silent socket, too
        self._transport.set_protocol(self)

    async def readinto(self, view: memoryview) -> int:
        """Fill the beginning of a view that is not empty with what the socket gives next.

        Returns:
            How many bytes; 0 where the connection ended in good order, and too early.

        Raises:
            OSError: The connection broke.
        """
        if self._ended or self._transport.is_closing():
            return 0
        self._view = view[: self._left]
        self._waiter = asyncio.get_running_loop().create_future()
        self._transport.resume_reading()
        try:
            await self._waiter
        finally:
            self._view, landed = memoryview(b""), self._landed
            self._landed = 0
            if not self._transport.is_closing():
                self._transport.pause_reading()  # if it was cancelled; else it is paused
        self._left -= landed
        if not self._left:
            self._give_back()
        if not landed and self._lost is not None:
            raise self._lost
        return landed

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the protocol's signature
        """Where the loop is to put what comes."""
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        """So much has come: stop until somebody wants more."""
        self._transport.pause_reading()
        self._landed = nbytes
        self._wake()

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

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _give_back(self) -> None:
        """The body is whole. aiohttp's parser never saw it, but each request gets a new one."""
        if not self._ended:
            self._transport.set_protocol(self._parser)
            self._parser.resume_reading()
        self._content.feed_eof()
