"""The asyncio shell of the protocol: one connection on a transport."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import socket
import ssl
import struct
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Any, NoReturn, cast

from streamrec.errors import FeederLost, RemoteProtocolError, WireError
from streamrec.feeder.access.access import failure
from streamrec.wire.messages import BatchMessage, Credit, Ping, Pong, Release
from streamrec.wire.protocol import Role, State, seal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from streamrec.wire.messages import Message
    from streamrec.wire.protocol import Connection


WRITE_BUFFER = 1 << 20
"""Bytes that may wait in the transport before ``send`` waits; a larger batch waits alone."""
AT_ONCE = 1 << 20
"""Bytes that TLS encrypts in one turn of the loop, which takes a core 1 ms; of a whole batch the
transport would make a copy, and others would wait for all of it."""
LARGE = 16 << 20
"""Bytes of a payload whose checksum a thread computes: of as many it takes 1 ms of a fast core, and
a turn through a thread a tenth of that."""
WASTE = 64 << 10
READS_AT_ONCE = 8
"""Times that a client is read as its bytes come, before its first message is whole."""
REST = 0.25
"""Seconds between two reads after that: thousands of clients that send a byte at a time would take
the event loop from those who are served."""
ACKED_AT, LIMITED_AT, TCP_INFO_SIZE = 120, 176, 184
"""The places of ``tcpi_bytes_acked`` and of ``tcpi_rwnd_limited``, and the bytes up to the end of
that, in ``struct tcp_info`` of linux/tcp.h, since Linux 4.10."""
CLOSED_THERE = "the connection was closed by the other side"
LINGER = 2.0
"""Seconds to wait for the peer to read what was written, and to close its end."""


class AsyncConnection(asyncio.BufferedProtocol):
    """Messages over a transport; made by ``loop.create_connection`` and its kin.

    One task receives; what arrives meanwhile waits here, bounded by the protocol's credit. Pings
    are answered, and credits counted, without anybody receiving.

    Args:
        machine: This end of the protocol.
        most_frames: The messages that the peer may send in a second.
        where: The feeder's address, at its client.
    """

    first = b""
    """Bytes that have come already, when there is a transport."""

    def __init__(
        self, machine: Connection, *, most_frames: float = math.inf, where: str | None = None
    ) -> None:
        self.machine = machine
        self._where = where
        self._most_frames = most_frames
        self._frames = 0
        """Messages of the peer since the beginning of the present second."""
        self._second = -math.inf
        self.made_at = asyncio.get_running_loop().time()
        """The loop's time at the beginning of the connection."""
        self.heard_at = self.made_at
        """The loop's time at which the last bytes came."""
        self.on_release: Callable[[Iterable[int]], None] = _refuse
        """Called with the places in shared memory that the peer no longer uses."""
        self._inbox: deque[Message] = deque()
        self.broken: Exception | None = None
        """The reason why the conversation ends; ``None`` while it goes on."""
        self.on_broken: Callable[[], object] | None = None
        """Called once, as soon as there is such a reason."""
        self._waiter: asyncio.Future[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._plain: deque[memoryview] = deque()
        """The bytes that TLS has not encrypted yet; without TLS the transport gets all at once."""
        self._encrypted = asyncio.Event()
        self._encrypted.set()
        self._encrypts = False
        self._next_turn: asyncio.Handle | None = None
        self._closed = asyncio.Event()
        self._transport: asyncio.Transport
        self._is_made = False
        self._has_left = False
        """True once this side has closed it."""
        self._reads = 0
        """Reads until the first message was whole."""
        self._has_begun = False
        """True after the first message."""
        self._nonce = 0
        self._progress = 0, 0
        self._waste = bytearray()
        """Memory for the bytes of a peer that broke the protocol: only its end is of interest; and
        for those that the loop looks for after the end, where TLS is spoken."""

    def __repr__(self) -> str:
        state = "closed" if self._closed.is_set() else "open"
        return f"<AsyncConnection {state}, {len(self._inbox)} waiting, {self.machine!r}>"

    @property
    def waiting(self) -> int:
        """The number of messages that were received and not taken."""
        return len(self._inbox)

    @property
    def unsent(self) -> int:
        """Bytes that wait here and in the transport, because the peer does not take them."""
        return self._transport.get_write_buffer_size() + sum(map(len, self._plain))

    @property
    def is_cut(self) -> bool:
        """True once nothing more can be written; the loop may yet have to tell why."""
        return self._transport.is_closing()

    @property
    def _is_deaf(self) -> bool:
        return self.machine.error is not None or self.machine.state is State.CLOSED

    @property
    def is_local(self) -> bool:
        """True for a Unix socket, which carries descriptors too."""
        return _is_unix(self._transport.get_extra_info("socket"))

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)
        self._is_made = True
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER)
        self._encrypts = transport.get_extra_info("ssl_object") is not None
        sock = transport.get_extra_info("socket")
        if sock is not None:
            tune(sock)
        # They were read before there was a transport: feed them in as if they came now.
        while self.first:
            buffer = self.get_buffer(-1)
            count = min(len(buffer), len(self.first))
            buffer[:count], self.first = self.first[:count], self.first[count:]
            self.buffer_updated(count)

    def get_buffer(self, sizehint: int) -> Any:  # noqa: ARG002 - asyncio's signature
        """Return the memory for the socket's next bytes."""
        if not self._is_deaf:
            return self.machine.get_buffer()
        self._waste = self._waste or bytearray(WASTE)
        return self._waste

    def buffer_updated(self, nbytes: int) -> None:
        """Act on bytes that have come."""
        self.heard_at = asyncio.get_running_loop().time()
        if self._is_deaf:
            return
        self.machine.buffer_updated(nbytes)
        try:
            for message in self.machine.events():
                self._has_begun = True
                self._count()
                if isinstance(message, Release):
                    self.on_release(message.offsets)
                elif not isinstance(message, Credit | Ping | Pong):
                    self._inbox.append(message)
        except RemoteProtocolError as error:
            # What else it sends goes to waste, until it has read why the conversation ends.
            self.machine.error = error
            self.stop(error)
        # Strangers alone: whoever has said HELLO is read as fast as it sends.
        if not self._has_begun and self.machine.role is Role.SERVER:
            self._rest()
        self._flush_replies()
        self._wake()

    def eof_received(self) -> None:
        """Count the peer as gone: this protocol has no half-open ends."""
        try:
            # Asked first: an end inside a frame says more than an end.
            self.machine.receive_eof()
        except RemoteProtocolError as error:
            self.stop(FeederLost(error.message))
        self.stop(FeederLost(CLOSED_THERE))

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the transport is closed."""
        # The first reason counts, and TLS says more than the end of a socket does.
        if isinstance(exc, ssl.SSLError) and self._where is not None:
            self.stop(failure(exc, self._where))
        self.stop(FeederLost(self._end_of(exc)))
        self._writable.set()
        self._forget_plain()
        self._closed.set()

    def _end_of(self, error: Exception | None) -> str:
        if error is None and self._has_left:
            return "it was closed here"
        if error is None:  # so loops tell some ends of TLS
            return CLOSED_THERE
        # The system of a client that leaves resets what it has not read.
        has_left = isinstance(error, ConnectionResetError | BrokenPipeError)
        if has_left and self.machine.role is Role.SERVER:
            return CLOSED_THERE
        return f"the connection broke: {error}"

    def pause_writing(self) -> None:
        """Let senders wait: the transport holds enough."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Let senders go on: the transport has room again."""
        self._writable.set()
        self._encrypt()
        self._flush_replies()

    # What tasks call

    async def receive(self) -> Message:
        """Return the next message other than CREDIT, PING and PONG.

        Raises:
            FeederLost: The connection is gone, and all that came before is taken.
            RemoteProtocolError: The peer broke the protocol, and all that came before is taken.
        """
        while not self._inbox:
            if self.broken is not None:
                raise self.broken
            await self._wait_for_change()
        return self._inbox.popleft()

    async def wait_for_credit(self) -> None:
        """Return once another batch may be sent.

        Raises:
            FeederLost: The connection is gone.
            RemoteProtocolError: The peer broke the protocol.
        """
        while self.machine.credit <= 0:
            if self.broken is not None:
                raise self.broken
            await self._wait_for_change()

    async def send(self, message: Message) -> None:
        """Write a message, then wait until the transport has room for another.

        Cancelling it while it waits does not tear the message.

        Raises:
            FeederLost: The connection is gone.
            RemoteProtocolError: The peer broke the protocol.
            LocalProtocolError: The protocol does not allow it now.
        """
        await self.write(message)
        await self.flush()

    async def write(self, message: Message) -> None:
        """Write a message: once this returns, the peer gets it, unless the connection is cut.

        The errors are those of :meth:`send`.
        """
        if isinstance(message, BatchMessage) and message.payload_size >= LARGE:
            message = await asyncio.to_thread(seal, message)
        if self.broken is not None:
            raise self.broken
        self.post(message)

    async def flush(self) -> None:
        """Wait until the transport has room for another message."""
        # Until TLS has all of it, the transport does not know how much waits.
        await self._encrypted.wait()
        await self._writable.wait()

    @property
    def has_room(self) -> bool:
        """True where :meth:`flush` would not wait."""
        return self._encrypted.is_set() and self._writable.is_set()

    def peer_takes_nothing(self) -> bool:
        """Return whether the peer has read nothing since the last call, although all could come.

        Only Linux tells it of TCP: that the peer has confirmed nothing, and that its full buffer
        kept this side from sending (``tcpi_rwnd_limited``), not the network.
        """
        before, self._progress = self._progress, self._look_at_progress()
        taken, limited = (now - then for now, then in zip(self._progress, before, strict=True))
        return taken == 0 and limited > 0

    def _look_at_progress(self) -> tuple[int, int]:
        """Return the bytes that the peer took, and the time for which its full buffer held us."""
        sock = self._transport.get_extra_info("socket")
        if _is_unix(sock):
            return -self.unsent, time.monotonic_ns()
        if sys.platform != "linux":
            return 0, 0
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_SIZE)
        if len(info) < TCP_INFO_SIZE:  # a kernel before 4.10
            return 0, 0
        (acked,), (limited,) = (struct.unpack_from("=Q", info, at) for at in (ACKED_AT, LIMITED_AT))
        return acked, limited

    def post_with(self, descriptor: int, message: Message) -> None:
        """Write the first message of all, and a descriptor along with it.

        The caller may close the descriptor then. Where it cannot be sent, the message is.
        """
        data, sent = b"".join(self.machine.send(message)), 0
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self._fileno())) as sock:
            # No transport sends descriptors. This one has nothing to write yet.
            sent = socket.send_fds(sock, [data], [descriptor])
        # A socket without room takes a part of it, or nothing where there was an error.
        self._transport.write(data[sent:])

    def post(self, message: Message) -> None:
        """Write a message, without waiting for room; for small ones.

        Raises:
            FeederLost: The connection is gone.
            LocalProtocolError: The protocol does not allow it now.
        """
        if self.is_cut:
            raise self.broken or FeederLost("the connection is closed")
        self._write(self.machine.send(message))

    def post_if_possible(self, *messages: Message) -> None:
        """Write messages, unless all is over: :meth:`receive` will say so, in time."""
        if not self.is_cut and not self.machine.over:
            for message in messages:
                self.post(message)

    def ping(self) -> None:
        """Ask the peer for a sign of life."""
        self._nonce += 1
        self.post_if_possible(Ping(self._nonce))

    def stop(self, reason: Exception) -> None:
        """End the conversation for a reason, which :meth:`receive` raises; the first one counts."""
        if self.broken is None:
            self.broken = reason
            if self.on_broken is not None:
                self.on_broken()
        self._wake()

    async def aclose(self, linger: float = LINGER) -> None:
        """Close it, after the peer has read what was written and closed its end.

        Args:
            linger: Seconds to wait for that; then the connection is cut.
        """
        self._has_left = True
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(linger):
                    await self._encrypted.wait()
                    self._end_writing()
                    await self._closed.wait()
        finally:
            self.abort()
        await self._closed.wait()

    def _end_writing(self) -> None:
        # Closing a socket with bytes unread would reset it, and the peer could lose the last
        # message: so end our half, and go on reading until the peer has closed the other.
        if not self.is_cut and self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()

    def abort(self) -> None:
        """Cut the connection at once; one that is not made yet has no transport."""
        self._has_left = True
        self._forget_plain()
        if self._is_made:
            self._transport.abort()

    async def wait_closed(self) -> None:
        """Return once the transport is closed."""
        await self._closed.wait()

    def _fileno(self) -> int:
        return int(self._transport.get_extra_info("socket").fileno())

    async def _wait_for_change(self) -> None:
        if self._waiter is not None:
            raise WireError("two tasks receive from one connection; use one")
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _rest(self) -> None:
        """Leave a client that is slow to say its first message unread for a while."""
        self._reads += 1
        if self._reads > READS_AT_ONCE and not self.is_cut:
            self._transport.pause_reading()
            asyncio.get_running_loop().call_later(REST, self._read_on)

    def _read_on(self) -> None:
        if not self.is_cut:
            self._transport.resume_reading()

    def _count(self) -> None:
        """Count a message.

        Raises:
            RemoteProtocolError: The peer sends more than anybody needs, and would keep this busy.
        """
        if self.heard_at >= self._second + 1:
            self._second, self._frames = self.heard_at, 0
        self._frames += 1
        if self._frames > self._most_frames:
            raise RemoteProtocolError(
                f"more than {self._most_frames:g} messages came within a second; raise "
                "max_frames_per_second in the feeder's [server] if a client needs them"
            )

    def _wake(self) -> None:
        # A wait that was cancelled in this turn of the loop is done, and not yet forgotten.
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _flush_replies(self) -> None:
        # Only while the transport has room: a peer that never reads cannot pile answers up here.
        # Whoever leaves owes none: its half has ended, or is about to.
        if self._writable.is_set() and not (self._has_left or self.is_cut):
            replies = self.machine.replies()
            if replies:
                self._write(replies)

    def _write(self, data: Sequence[memoryview]) -> None:
        """Write buffers after those that wait."""
        if not self._encrypts or (not self._plain and sum(part.nbytes for part in data) <= AT_ONCE):
            self._transport.writelines(data)
            return
        self._plain.extend(buffer.cast("B") for buffer in data if buffer.nbytes)
        if self._encrypted.is_set():
            self._encrypt()

    def _encrypt(self) -> None:
        """Give TLS as much as it encrypts in one turn, and go on in the next."""
        if self._next_turn is not None:  # or the transport has room again before it
            self._next_turn.cancel()
        if self.is_cut:
            self._forget_plain()
        # A transport whose half has ended refuses even nothing at all.
        if self._plain and self._writable.is_set():
            self._transport.writelines(self._take(AT_ONCE))
        if not self._plain:
            self._encrypted.set()
            return
        self._encrypted.clear()
        if self._writable.is_set():  # else the transport tells when it has room
            self._next_turn = asyncio.get_running_loop().call_soon(self._encrypt)

    def _take(self, room: int) -> Iterator[memoryview]:
        """Take the next bytes that wait, at most so many."""
        while self._plain and room:
            data = self._plain.popleft()
            if len(data) > room:
                self._plain.appendleft(data[room:])
            yield data[:room]
            room -= min(room, len(data))

    def _forget_plain(self) -> None:
        self._plain.clear()
        self._encrypted.set()


def _is_unix(sock: socket.socket | None) -> bool:
    return sock is not None and sock.family == socket.AF_UNIX


def _refuse(offsets: Iterable[int]) -> NoReturn:
    raise RemoteProtocolError(f"{offsets} were released, and no memory is shared")


def tune(sock: socket.socket) -> None:
    """Set what a long-lived connection of large messages wants."""
    if sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A host that died sends no FIN: keep-alive finds it in two minutes, not in two hours.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
