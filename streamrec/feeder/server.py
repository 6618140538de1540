"""The feeder: named datasets, served to any rank from any position, over TCP and Unix sockets.

A feeder keeps nothing about its clients. One task a connection talks to one client; the transport
reads all the while, so that credits count, pings are answered and a client that goes away ends its
run at once, whatever the task waits for.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Self

from streamrec.errors import FeederDraining
from streamrec.feeder.address import Address, check_exposure
from streamrec.feeder.connection import AsyncConnection
from streamrec.feeder.conversation import Conversation
from streamrec.feeder.listener import Listener, bind, remote_host
from streamrec.feeder.service import Service
from streamrec.wire.protocol import Connection, Role

if TYPE_CHECKING:
    import socket

__all__ = ["Feeder"]

log = logging.getLogger("streamrec.feeder")


class Feeder(Service):
    """A service that is open to clients; an asynchronous context manager that closes everything.

    Its arguments are the datasets, the settings, ``linger`` and ``outbox`` of a :class:`Service`.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.draining = False
        self._listeners: list[Listener] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        state = "draining" if self.draining else "serving"
        clients = self.admission.clients
        return f"<Feeder {state} {', '.join(self.datasets)}: {clients} clients>"

    @property
    def obstacle(self) -> str | None:
        """The reason why no new client could be served now; ``None`` while one could."""
        if self.draining:
            return "the feeder is draining"
        if any(listener.lacks_files for listener in self._listeners):
            return "no file is left for another connection; raise the limit of open files"
        return super().obstacle

    async def listen(self, where: str) -> Address:
        """Accept connections.

        Args:
            where: ``tcp://host:port`` or ``unix:///path``.

        Returns:
            The address with the port that was picked for 0.

        Raises:
            ConfigError: It cannot be listened at, or would show a token or the data to the network.
        """
        place = Address.parse(where, listen=True)
        check_exposure(place, token=bool(self.settings.token), insecure=self.settings.insecure)
        listener = Listener(bind(place), self._adopt)
        self._listeners.append(listener)
        return listener.address

    async def serve_socket(self, sock: socket.socket) -> None:
        """Serve one connected socket, which is then the feeder's; returns when it is closed."""
        task = self._adopt(sock)
        try:
            await asyncio.wait([task])
        finally:
            task.cancel()

    async def drain(self, grace: float) -> None:
        """End in peace: accept nobody, finish what is being sent, send every client elsewhere.

        Args:
            grace: Seconds until connections that are still open are cut.
        """
        self._stop_listening()
        for connection in self.admission.guests:
            connection.stop(FeederDraining("the feeder shuts down; go on elsewhere"))
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace)
        await self.aclose()

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

    def _adopt(self, sock: socket.socket) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(self._serve(sock))
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        # A task that is cancelled before its first step would not close it.
        task.add_done_callback(lambda _: sock.close())
        return task

    async def _serve(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        sock.setblocking(False)
        host = remote_host(sock)
        _, connection = await loop.connect_accepted_socket(
            lambda: AsyncConnection(Connection(Role.SERVER)), sock
        )
        if self.draining:
            connection.stop(FeederDraining("the feeder shuts down; go on elsewhere"))
        self.statistics.connections_total += 1
        try:
            crowded_out = self.admission.arrive(connection, host)
            if crowded_out is not None:
                self.statistics.dropped["crowd"] += 1
                crowded_out.abort()
            await Conversation(self, connection).run()
        finally:
            self.admission.leave(connection)
            connection.abort()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception():
            log.error("a connection failed", exc_info=task.exception())

    def _stop_listening(self) -> None:
        self.draining = True
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
