"""The channel between the supervisor and a worker: messages as lines of JSON, in order."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any, Self

from streamrec.wire.error_fields import from_fields, to_fields

if TYPE_CHECKING:
    import socket

    from streamrec.errors import StreamrecError

LONGEST = 256 << 20
"""Bytes of a message: the names of many shards, or what many sessions have counted."""


class Link:
    """One end of the channel; made by :meth:`open`.

    Either end may send messages, and ask questions, each of which the other end answers once.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._questions = 0

    @classmethod
    async def open(cls, sock: socket.socket) -> Self:
        """Return the end that a connected socket is; it owns the socket."""
        sock.setblocking(False)
        return cls(*await asyncio.open_unix_connection(sock=sock, limit=LONGEST))

    @property
    def unsent(self) -> int:
        """The number of bytes that the other end has not taken."""
        return self._writer.transport.get_write_buffer_size()

    def send(self, **message: Any) -> None:
        """Send a message; where the other end is gone, nobody gets it."""
        if not self._writer.is_closing():
            self._writer.write(json.dumps(message).encode() + b"\n")

    async def receive(self) -> dict[str, Any] | None:
        """Return the next message that is not an answer; ``None``: the other end is gone."""
        with contextlib.suppress(ConnectionError):
            # A process that is killed may leave the beginning of a line.
            while (line := await self._reader.readline()).endswith(b"\n"):
                message: dict[str, Any] = json.loads(line)
                if "answer" not in message:
                    return message
                self._take(message)
        return None

    def ask(self, **question: Any) -> asyncio.Future[Any]:
        """Ask a question; the future has the answer, or the error that is the answer."""
        self._questions += 1
        answer = asyncio.get_running_loop().create_future()
        self._asked[self._questions] = answer
        self.send(ask=self._questions, **question)
        return answer

    def answer(self, question: dict[str, Any], value: object) -> None:
        """Answer a question with a value, or with an error."""
        if isinstance(value, BaseException):
            self.send(answer=question["ask"], error=to_fields(value))
        else:
            self.send(answer=question["ask"], value=value)

    async def aclose(self) -> None:
        """Send what is left, and close the channel."""
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()

    def _take(self, message: dict[str, Any]) -> None:
        future = self._asked.pop(message["answer"])
        if future.cancelled():  # nobody waits for it any more
            return
        if "error" in message:
            error: StreamrecError = from_fields(message["error"])
            future.set_exception(error)
        else:
            future.set_result(message["value"])
