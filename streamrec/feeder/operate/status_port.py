"""The connections of the status port: few, short, and asked for under its own name.

Whoever can reach the port may open thousands of connections, or send a byte a minute. They cost
neither the clients their descriptors nor a probe its answer: the oldest is cut where there are too
many, and each is cut after some seconds.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, cast

from aiohttp import web

from streamrec.errors import ConfigError
from streamrec.feeder.access.address import Address, is_loopback, join_host
from streamrec.feeder.server.listener import Listener, bind_in_thread

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Collection

    from aiohttp.typedefs import Handler, Middleware

MOST = 256
"""The most connections, each of which takes a descriptor."""
AT_ONCE = 32
"""Connections that are accepted in one turn of the loop. A request is answered within eight turns,
before so many others have come that its connection is the oldest of :data:`MOST`."""
DEADLINE = 10.0
"""Seconds for one request and its answer."""


class StatusPort:
    """An open status port, in the running loop.

    Args:
        sock: Bound; owned from now on.
        make: Makes the protocol of a connection.
        dropped: Called for each connection that is cut.
    """

    def __init__(
        self,
        sock: socket.socket,
        make: Callable[[], asyncio.Protocol],
        dropped: Callable[[], object],
    ) -> None:
        self._make = make
        self._dropped = dropped
        self._loop = asyncio.get_running_loop()
        self._connections: dict[_StatusConnection, None] = {}
        """The connections, the oldest first."""
        self._starting: set[asyncio.Task[object]] = set()
        self._listener = Listener(sock, self._accept, burst=math.inf, at_once=AT_ONCE)
        self.address = self._listener.address

    def __repr__(self) -> str:
        return f"<StatusPort {self.address}, {len(self)} connections>"

    def __len__(self) -> int:
        return len(self._connections)

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        make: Callable[[], asyncio.Protocol],
        dropped: Callable[[], object],
    ) -> StatusPort:
        """Listen at an address.

        Args:
            host: The address.
            port: The port; 0 picks a free one.
            make: Makes the protocol of a connection.
            dropped: Called for each connection that is cut.

        Raises:
            ConfigError: It cannot be listened at.
        """
        try:
            sock = await bind_in_thread(Address(host=host, port=port))
        except ConfigError as error:
            # Under the name that the configuration has, without the scheme of a feeder's address.
            reason = error.message.rpartition(": ")[2]
            raise ConfigError(f"cannot listen at {join_host(host, port)}: {reason}") from None
        return cls(sock, make, dropped)

    def stop(self) -> None:
        """Accept no more connections."""
        self._listener.close()

    async def aclose(self) -> None:
        """Cut all connections; closing again changes nothing."""
        self.stop()
        for connection in list(self._connections):
            self._leave(connection)
            connection.cut()
        await asyncio.gather(*self._starting, return_exceptions=True)

    def _accept(self, sock: socket.socket) -> None:
        if len(self) >= MOST:
            # The oldest: a request is answered before its connection is that, see AT_ONCE.
            self._drop(next(iter(self._connections)))
        sock.setblocking(False)
        self._connections[_StatusConnection(sock, self._begin, self._drop, self._leave)] = None

    def _begin(self, connection: _StatusConnection) -> None:
        task = self._loop.create_task(connection.begin(self._make()))
        # The loop refers to tasks weakly.
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    def _drop(self, connection: _StatusConnection) -> None:
        self._dropped()
        self._leave(connection)
        connection.cut()

    def _leave(self, connection: _StatusConnection) -> None:
        self._connections.pop(connection, None)


class _StatusConnection(asyncio.Protocol):
    """A connection with a deadline; it has a protocol that answers once something has come.

    Thousands that say nothing cost the loop little: no transport, no task, no parser.

    Args:
        sock: Its socket, owned from now on.
        spoken: Called with the connection on which the first bytes have come, or its end.
        late: Called with the connection that is still there at its deadline.
        left: Called with the connection that has ended.
    """

    _inner: asyncio.Protocol

    def __init__(
        self,
        sock: socket.socket,
        spoken: Callable[[_StatusConnection], object],
        late: Callable[[_StatusConnection], object],
        left: Callable[[_StatusConnection], object],
    ) -> None:
        self._socket = sock
        self._spoken = spoken
        self._left = left
        self._transport: asyncio.Transport | None = None
        self._is_silent, self._is_cut = True, False
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock.fileno(), self._hear)
        self._timer = self._loop.call_later(DEADLINE, late, self)

    def _hear(self) -> None:
        self._loop.remove_reader(self._socket.fileno())
        self._is_silent = False
        self._spoken(self)

    async def begin(self, inner: asyncio.Protocol) -> None:
        """Have a protocol answer."""
        self._inner = inner
        try:
            await self._loop.connect_accepted_socket(lambda: self, self._socket)
        except OSError:  # it has gone already
            self._timer.cancel()
            self._left(self)
            self._socket.close()

    def cut(self) -> None:
        """Cut it at once, or as soon as it is made."""
        self._is_cut = True
        self._timer.cancel()
        if self._is_silent:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, unless it was cut meanwhile."""
        self._transport = cast("asyncio.Transport", transport)
        self._inner.connection_made(transport)
        if self._is_cut:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end."""
        self._timer.cancel()
        self._left(self)
        self._inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Hand bytes on."""
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        """Hand the end of what comes on."""
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        """Hand on that nothing more fits."""
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Hand on that there is room again."""
        self._inner.resume_writing()


def host_check(host: str, names: Collection[str]) -> Middleware:
    """Return a check of the name under which a page is asked for.

    A page of another site, whose name is made to lead to this machine, could read the status of a
    browser's own machine. It comes with the name of that site.

    Args:
        host: The host at which the port listens.
        names: Further names; beyond this machine, with none, every name will do.
    """
    is_near = is_loopback(host)
    known_names = {name.lower() for name in (*names, host, *(["localhost"] if is_near else []))}
    is_open = not is_near and not names

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        name = (request.url.host or "").lower()
        if is_open or name in known_names or (is_near and is_loopback(name)):
            return await handler(request)
        text = "the status port is not known under this name; add it to status_hosts in [server]\n"
        # "Misdirected Request" of RFC 9110.
        return web.Response(text=text, status=421)

    return check
