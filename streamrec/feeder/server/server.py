"""The feeder: named datasets, served to any rank from any position, over TCP and Unix sockets.

A feeder keeps nothing about its clients. One task a connection talks to one client; the transport
reads all the while, so that credits count, pings are answered and a client that goes away ends its
run at once, whatever the task waits for.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Self

from streamrec.config.memory_budget import shared_limit
from streamrec.errors import FeederDraining, FeederLost, FeederRefused
from streamrec.feeder.access.address import Address
from streamrec.feeder.access.exposure import check_exposure
from streamrec.feeder.client.connection import AsyncConnection
from streamrec.feeder.client.shared import Outboxes
from streamrec.feeder.server.conversation import Conversation
from streamrec.feeder.server.datasets import obstacle_of
from streamrec.feeder.server.handshake import greet, shake_hands
from streamrec.feeder.server.listener import (
    Listener,
    bind_in_thread,
    first_bytes,
    peer_of,
    remote_host,
)
from streamrec.feeder.server.service import Service
from streamrec.feeder.server.session_log import SessionLog
from streamrec.feeder.server.snapshot import snapshot_of
from streamrec.wire.protocol import Connection, Role

STANDS = 5.0
"""Seconds for which an event loop stood still within the last minute, from which on new clients are
better served elsewhere. Those that are served count a feeder as lost after 60 s of silence."""

log = logging.getLogger("streamrec.feeder")


class Feeder(Service):
    """A feeder that is open to clients; an asynchronous context manager that closes everything."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.draining = False
        self._outboxes = Outboxes(shared_limit(self.settings))
        self._listeners: list[Listener] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        state = "draining" if self.draining else "serving"
        clients = self.admission.clients
        name = type(self).__name__
        return f"<{name} {state} {', '.join(self.datasets)}: {clients} clients>"

    @property
    def obstacle(self) -> str | None:
        """The reason why no new client could be served now; ``None`` while one could."""
        if self.draining:
            return "the feeder is draining"
        if any(listener.lacks_files for listener in self._listeners):
            return "no file is left for another connection; raise the limit of open files"
        if (stood := self.statistics.loop.recent) > STANDS:
            return f"the event loop has just stood still for {stood:.1f} s; the log says where"
        obstacles = map(obstacle_of, self.datasets.values())
        spent = self.budget.spent if self.budget else None
        return next(filter(None, (*obstacles, self.admission.full, spent)), None)

    def snapshot(self) -> dict[str, Any]:
        """Return all that the feeder shows of itself, as JSON can hold it."""
        return snapshot_of(self, obstacle=self.obstacle, draining=self.draining)

    def pass_on(self, order: Literal["reload", "dump"]) -> None:
        """Do nothing, since this server has no worker processes that must do the same."""

    async def listen(self, where: str) -> Address:
        """Accept connections.

        Args:
            where: ``tcp://host:port``, ``tls://host:port`` or ``unix:///path``.

        Returns:
            The address with the port that was picked for 0.

        Raises:
            ConfigError: It cannot be listened at, or would show a token or the data to the network.
        """
        place = Address.parse(where, listen=True)
        check_exposure(place, self.access.server, self.access.own)
        bound = await bind_in_thread(place)
        listener = Listener(bound, partial(self._accepted, tls=place.tls))
        self._listeners.append(listener)
        return replace(listener.address, tls=place.tls)

    def adopt(self, sock: socket.socket, *, tls: bool = False) -> asyncio.Task[None]:
        """Serve a connected socket, which is then the feeder's, in a task.

        Args:
            sock: The socket.
            tls: It came to an address of TLS.
        """
        task = asyncio.get_running_loop().create_task(self._serve(sock, tls=tls))
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        # A task that is cancelled before its first step would not close it.
        task.add_done_callback(lambda _: sock.close())
        return task

    async def serve_socket(self, sock: socket.socket) -> None:
        """Serve one connected socket, which is then the feeder's; returns when it is closed."""
        task = self.adopt(sock)
        try:
            await asyncio.wait([task])
        finally:
            task.cancel()

    async def drain(self, grace: float) -> int:
        """End in peace: accept nobody, finish what is being sent, send every client elsewhere.

        Args:
            grace: Seconds until connections that are still open are cut.

        Returns:
            The number of those that were cut.
        """
        self._stop_listening()
        cut: set[asyncio.Task[None]] = set()
        for connection in self.admission.guests:
            connection.stop(FeederDraining("the feeder shuts down; go on elsewhere"))
        if self._tasks:
            _, cut = await asyncio.wait(self._tasks, timeout=grace)
        await self.aclose()
        return len(cut)

    async def aclose(self) -> None:
        """Cut all connections and stop listening; closing again changes nothing."""
        self._stop_listening()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _accepted(self, sock: socket.socket, *, tls: bool) -> None:
        self.adopt(sock, tls=tls)

    async def _serve(self, sock: socket.socket, *, tls: bool) -> None:
        sock.setblocking(False)
        host = remote_host(sock)
        session_log = SessionLog(peer_of(sock))
        connection = AsyncConnection(
            Connection(Role.SERVER), most_frames=self.settings.max_frames_per_second
        )
        if self.draining:
            connection.stop(FeederDraining("the feeder shuts down; go on elsewhere"))
        self.statistics.connections_total += 1
        try:
            self._arrive(connection, host)
            memory = None if tls else await self._descriptor(sock, connection)
            with self._outboxes.open(memory) as outbox:
                refusal = await self._begin(sock, connection, tls=tls)
                is_private = tls or host is None
                conversation = Conversation(
                    self, connection, session_log, host, outbox, is_private=is_private
                )
                await conversation.run(refusal)
        except (FeederDraining, FeederLost) as reason:
            connection.stop(reason)
        except FeederRefused as refused:
            self.statistics.dropped["tls"] += 1
            session_log.failed(refused)
        finally:
            self.admission.leave(connection)
            connection.abort()
            session_log.ended(connection.broken)

    async def _descriptor(self, sock: socket.socket, connection: AsyncConnection) -> int | None:
        """Receive what a client on this machine says first; return the descriptor that it sends."""
        if sock.family != socket.AF_UNIX or connection.broken is not None:
            return None
        descriptor = None
        try:
            async with asyncio.timeout(self.settings.handshake_timeout) as waiting:
                connection.on_broken = partial(waiting.reschedule, 0)
                connection.first, descriptor = await first_bytes(sock)
        except TimeoutError:
            if connection.broken is None:
                self.statistics.dropped["handshake"] += 1
                connection.stop(FeederLost("no HELLO came in time"))
        finally:
            connection.on_broken = None
        return descriptor

    async def _begin(
        self, sock: socket.socket, connection: AsyncConnection, *, tls: bool
    ) -> FeederRefused | None:
        """Put a connection on its socket; return what to tell a client that has the wrong port.

        Raises:
            FeederLost: It is gone, or was too slow.
            FeederDraining: This feeder serves nobody any more.
            FeederRefused: The handshake of TLS has failed.
        """
        if not tls:
            await greet(sock, connection)
            return None
        await self.access.look()
        certificates = self.access.certificates
        if certificates is None:
            raise FeederLost("there is no certificate any more")
        seconds = self.settings.handshake_timeout
        try:
            return await shake_hands(sock, connection, certificates.context, seconds)
        except TimeoutError:
            self.statistics.dropped["handshake"] += 1
            raise FeederLost("no handshake of TLS came in time") from None

    def _arrive(self, connection: AsyncConnection, host: str | None) -> None:
        crowded_out = self.admission.arrive(connection, host)
        if crowded_out is not None:
            self.statistics.dropped["crowd"] += 1
            crowded_out.stop(FeederLost("the handshakes under way are too many (max_handshakes)"))
            crowded_out.abort()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception():
            log.error("a connection failed", exc_info=task.exception())

    def _stop_listening(self) -> None:
        self.draining = True
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
