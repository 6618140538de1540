"""One end of the channel between a stream and a fetch process: packets over a socket pair.

The pair keeps packets apart, so that a process that is killed leaves none in part. A packet is a
list in JSON, a line's end, and perhaps bytes; a descriptor may go along.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_BYTES = 64 << 10
"""Bytes that go along with a packet at most."""
LONGEST = MOST_BYTES + (32 << 10)
"""Bytes of a packet, which the system's buffers of a socket hold (208 KiB by default)."""
AT_ONCE = 64
"""Packets that are taken in one turn of the event loop at most."""


class TooLong(ValueError):
    """A packet is longer than the other end receives."""


class Packets:
    """One end of the channel; it owns the socket, and sends and receives in the running loop.

    Args:
        sock: A connected socket of packets.
        take: Called with the list of each packet, its bytes, which are valid during the call, and
            its descriptor, which is the callee's to close.
        lost: Called once, when the other end is gone or does not speak as it should.
    """

    def __init__(
        self,
        sock: socket.socket,
        take: Callable[[list[Any], memoryview, int | None], object],
        lost: Callable[[], object],
    ) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._take, self._lost = take, lost
        self._loop = asyncio.get_running_loop()
        self._buffer = memoryview(bytearray(LONGEST))
        self._unsent: deque[tuple[bytes, int | None]] = deque()
        self._sent = asyncio.Event()
        self._sent.set()
        self._is_open = True
        self._loop.add_reader(sock.fileno(), self._receive)

    def __repr__(self) -> str:
        return f"<Packets {'open' if self._is_open else 'closed'}, {len(self._unsent)} unsent>"

    def send(self, *message: Any, content: bytes | memoryview = b"", fd: int | None = None) -> None:
        """Send a packet, in order; where the other end is gone, nobody gets it.

        Args:
            *message: The list.
            content: Bytes that go along, at most ``MOST_BYTES``.
            fd: A descriptor that goes along; it may be closed afterwards.

        Raises:
            TooLong: It is longer than ``LONGEST``.
        """
        packet = b"\n".join((json.dumps(message, separators=(",", ":")).encode(), content))
        if len(packet) > LONGEST:
            raise TooLong(f"a packet may have {LONGEST} bytes, and this one has {len(packet)}")
        if not self._is_open or (not self._unsent and self._sends(packet, fd)):
            return
        if not self._unsent:
            self._sent.clear()
            self._loop.add_writer(self._sock.fileno(), self._send_more)
        self._unsent.append((packet, None if fd is None else os.dup(fd)))

    async def all_sent(self) -> None:
        """Wait until the system has taken all packets, or the other end is gone."""
        await self._sent.wait()

    def close(self) -> None:
        """Close this end, without a call of ``lost``; closing again changes nothing."""
        if not self._is_open:
            return
        self._loop.remove_reader(self._sock.fileno())
        if self._unsent:
            self._loop.remove_writer(self._sock.fileno())
        self.leave()

    def leave(self) -> None:
        """Close this process's copy of the socket, and leave the event loop as it is."""
        self._is_open = False
        self._sock.close()
        while self._unsent:
            _close(self._unsent.popleft()[1])
        self._sent.set()

    def _sends(self, packet: bytes, fd: int | None) -> bool:
        """Send a packet; return False if it must wait."""
        try:
            if fd is None:
                self._sock.send(packet)
            else:
                socket.send_fds(self._sock, [packet], [fd])
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:  # the other end is gone, as its reader is told
            return True
        return True

    def _send_more(self) -> None:
        while self._unsent and self._sends(*self._unsent[0]):
            _close(self._unsent.popleft()[1])
        if not self._unsent:
            self._loop.remove_writer(self._sock.fileno())
            self._sent.set()

    def _receive(self) -> None:
        for _ in range(AT_ONCE):
            if not self._is_open:  # closed by what has just been taken
                return
            try:
                size, fd = self._next_packet()
                line, _, _ = bytes(self._buffer[:size]).partition(b"\n")
                message = json.loads(line)  # nothing, at the end, is no JSON
            except (BlockingIOError, InterruptedError):
                return
            except (OSError, ValueError):
                self.close()
                self._lost()
                return
            self._take(message, self._buffer[len(line) + 1 : size], fd)

    def _next_packet(self) -> tuple[int, int | None]:
        """Receive a packet into the buffer; return its size, 0 at the end, and its descriptor."""
        space = socket.CMSG_SPACE(4)
        size, ancillary, flags, _ = self._sock.recvmsg_into([self._buffer], space)
        fds = [
            int.from_bytes(data[:4], "little")
            for level, kind, data in ancillary
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)
        ]
        fd = fds[0] if fds else None
        if flags & socket.MSG_TRUNC:
            _close(fd)
            raise ValueError("a packet is longer than any may be")
        return size, fd


def _close(fd: int | None) -> None:
    if fd is not None:
        with contextlib.suppress(OSError):
            os.close(fd)
