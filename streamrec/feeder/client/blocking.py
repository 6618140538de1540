"""The blocking shell of the protocol: one socket, used in the consumer's own thread.

A batch is received with one system call that waits for all of it (``MSG_WAITALL``), so that a
thread which competes for the interpreter's lock asks for it once a batch and not once a packet.
"""

from __future__ import annotations

import contextlib
import math
import select
import socket
import struct
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING

from streamrec.errors import FeederLost, RemoteProtocolError, StreamrecError
from streamrec.feeder.client.connection import tune
from streamrec.feeder.client.watch import silence, stall_error
from streamrec.flow import forks
from streamrec.wire.messages import Credit, Ping, Pong

if TYPE_CHECKING:
    from streamrec.wire.messages import Message
    from streamrec.wire.protocol import Connection

AT_ONCE = 512 << 10
"""Bytes that must have come before the system wakes the reader of a large batch. Woken for each
packet, both ends took a third more CPU time for batches of 7 MB over loopback."""
_QUIETLY = getattr(socket, "MSG_NOSIGNAL", 0)
"""Without SIGPIPE, even where the program has turned it on again. macOS has no such flag."""


class BlockingConnection:
    """Messages over a connected socket, which it owns.

    Args:
        sock: Connected; TCP or Unix.
        machine: This end of the protocol.
        patience: Seconds without a byte from the peer after which it counts as lost; halfway it is
            asked for a sign of life.
        stall_timeout: Seconds without a message after which a peer that gives other signs of life
            counts as stalled.
    """

    def __init__(
        self,
        sock: socket.socket,
        machine: Connection,
        *,
        patience: float = 60.0,
        stall_timeout: float = math.inf,
    ) -> None:
        self.machine = machine
        self._socket = sock
        self._stall_timeout = stall_timeout
        self._inbox: deque[Message] = deque()
        self._broken: Exception | None = None
        self._nonce = 0
        tune(sock)
        # A timeout of Python's own would make the socket non-blocking, and MSG_WAITALL void.
        sock.setblocking(True)
        self.set_patience(patience)
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        forks.watch(self, BlockingConnection.leave_to_parent)

    def __repr__(self) -> str:
        state = "closed" if self._socket.fileno() < 0 else "open"
        return f"<BlockingConnection {state}, {len(self._inbox)} waiting, {self.machine!r}>"

    def set_patience(self, seconds: float) -> None:
        """Change the seconds without a byte from the peer after which it counts as lost."""
        self._patience = seconds
        # For the calls that wait inside the system: those with MSG_WAITALL, and sendall.
        limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
        with contextlib.suppress(OSError):  # it is closed: `receive` will say so
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    @property
    def waiting(self) -> int:
        """The number of messages that were received and not taken."""
        return len(self._inbox)

    @property
    def readable(self) -> bool:
        """True if a message can be received, or at least begun, without a wait."""
        return bool(self._inbox or self._poll.poll(0))

    def receive(self, since: float | None = None) -> Message:
        """Return the next message other than CREDIT, PING and PONG.

        After an interrupt the connection is of no use: bytes may be lost.

        Args:
            since: The time (``monotonic``) from which the caller waits; ``None``: now.

        Raises:
            FeederLost: The connection is gone, and all that came before is taken.
            Stalled: None came for ``stall_timeout``.
            RemoteProtocolError: The peer broke the protocol, and all that came before is taken.
        """
        until = (monotonic() if since is None else since) + self._stall_timeout
        while not self._inbox:
            if self._broken is not None:
                raise self._broken
            try:
                self._receive_some(until)
            except (OSError, RemoteProtocolError) as error:
                self._broken = _translate(error)
        return self._inbox.popleft()

    def send(self, message: Message) -> None:
        """Write a message, all of it.

        Raises:
            FeederLost: The connection is gone.
            LocalProtocolError: The protocol does not allow it now.
        """
        self._write(self.machine.send(message))

    @property
    def is_local(self) -> bool:
        """True for a Unix socket, which carries descriptors too."""
        return self._socket.family == socket.AF_UNIX

    def post_with(self, descriptor: int, message: Message) -> None:
        """Write the first message of all, and a descriptor along with it.

        The caller may close the descriptor then. Where it cannot be sent, the message is.
        """
        data, sent = b"".join(self.machine.send(message)), 0
        with contextlib.suppress(OSError):
            sent = socket.send_fds(self._socket, [data], [descriptor])
        self._write_if_possible([memoryview(data)[sent:]])

    def post_if_possible(self, *messages: Message) -> None:
        """Write messages at once, unless the connection is gone: :meth:`receive` will say so."""
        if messages and self._broken is None and not self.machine.over:
            self._write_if_possible([part for one in messages for part in self.machine.send(one)])

    def abort(self) -> None:
        """Close the socket; closing again changes nothing."""
        # The first reason counts.
        self._broken = self._broken or FeederLost("the connection is closed")
        self._socket.close()

    def leave_to_parent(self) -> None:
        """Close the child's descriptor: the parent's goes on, and its end is noticed."""
        self.abort()

    def _receive_some(self, until: float = math.inf) -> None:
        buffer = self.machine.get_buffer()
        if self.machine.exact:
            count = self._receive_all(buffer)
        else:
            count = self._receive_what_is_there(buffer, until)
        self.machine.buffer_updated(count)
        if not count:
            self._note_end()
        self._collect()

    def _receive_all(self, buffer: memoryview) -> int:
        if len(buffer) < 4 * AT_ONCE or self.is_local:
            return self._socket.recv_into(buffer, 0, socket.MSG_WAITALL)
        # The end is left for another call: nothing may come after it, and nobody would be woken.
        self._wake_for(AT_ONCE)
        try:
            return self._socket.recv_into(buffer[:-AT_ONCE], 0, socket.MSG_WAITALL)
        finally:
            # Else nobody would be woken for a message that is shorter.
            self._wake_for(1)

    def _wake_for(self, least: int) -> None:
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, least)

    def _receive_what_is_there(self, buffer: memoryview, until: float) -> int:
        """Receive the first bytes of a message, as many as come together."""
        while (left := until - monotonic()) > 0:
            # First without a wait: what is there already costs one system call.
            with contextlib.suppress(BlockingIOError):
                return self._socket.recv_into(buffer, 0, socket.MSG_DONTWAIT)
            self._wait(left)
        raise stall_error(self._stall_timeout)

    def _collect(self) -> None:
        for message in self.machine.events():
            if not isinstance(message, Credit | Ping | Pong):
                self._inbox.append(message)
        # Whoever only receives sends nothing else, so the answers to pings leave here.
        replies = self.machine.replies()
        if replies:
            self._write_if_possible(replies)

    def _note_end(self) -> None:
        try:
            self.machine.receive_eof()
        except RemoteProtocolError as error:  # so looks a feeder that was killed
            raise FeederLost(error.message) from None
        raise FeederLost("the connection was closed by the other side")

    def _wait(self, longest: float) -> None:
        """Return once there is something to read, or time is up."""
        half = self._patience / 2
        if self._poll.poll(min(half, longest) * 1000) or longest <= half:
            return
        # Half of the patience in silence, then a PING, then the other half.
        self._nonce += 1
        self._write_if_possible(self.machine.send(Ping(self._nonce)))
        rest = longest - half
        if not self._poll.poll(min(half, rest) * 1000) and half < rest:
            raise FeederLost(silence(self._patience))

    def _write_if_possible(self, buffers: list[memoryview]) -> None:
        # What the peer sent before it went is still to be read, and tells more than the failure.
        with contextlib.suppress(FeederLost):
            self._write(buffers)

    def _write(self, buffers: list[memoryview]) -> None:
        # A client says little, so joining costs nothing.
        try:
            self._socket.sendall(b"".join(buffers), _QUIETLY)
        except OSError as error:
            raise _translate(error) from None


def _translate(error: Exception) -> Exception:
    if isinstance(error, StreamrecError):
        return error
    if isinstance(error, BlockingIOError):
        return FeederLost("nothing moved for too long in the middle of a message")
    return FeederLost(f"the connection broke: {error}")
