"""The feeder: what listens, drains, and shows itself; a visit lets in each client who comes.

Named datasets are served to any rank from any position, over TCP and Unix sockets.
A feeder keeps nothing about its clients. One task a connection talks to one client; the transport
reads all the while, so that credits count, pings are answered and a client that goes away ends its
run at once, whatever the task waits for.
"""

from __future__ import annotations

import asyncio
import logging
import platform
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self

from streamrec import kernel
from streamrec.config.machine import shared_limit
from streamrec.errors import FeederDraining, StreamrecError
from streamrec.feeder.access.address import Address, check_exposure
from streamrec.feeder.client.shared import Outboxes
from streamrec.feeder.server.arrival import Visit
from streamrec.feeder.server.datasets import ServedDataset, obstacle_of
from streamrec.feeder.server.listener import Listener, bind_in_thread
from streamrec.feeder.server.service import Service
from streamrec.flow.timings import add_up
from streamrec.version import __version__
from streamrec.wire.protocol import PROTOCOL_VERSIONS

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable

    from streamrec.feeder.server.service import SharedBudget
    from streamrec.pipeline.served import Served


_NOTHING: dict[str, Any] = {
    "sent": {"batches": 0, "records": 0, "bytes": 0},
    "fetch": {},
    "kept_back": {},
    "waits": {},
    "now": {"subscriptions": 0},
}


def snapshot_of(service: Service, *, obstacle: str | None, draining: bool) -> dict[str, Any]:
    """Return all that a feeder shows of itself, as JSON can hold it.

    Args:
        service: What it serves.
        obstacle: The reason why no new client could be served now.
        draining: It sends its clients elsewhere.
    """
    counted = service.statistics.snapshot()
    datasets = {name: _result_of(handle) for name, handle in list(service.datasets.items())}
    listings = (one.timings.to_dict() for one in datasets.values() if _is_dataset(one))
    counts = counted["datasets"]
    return {
        **counted,
        "datasets": {
            name: {**_facts(result, _trouble(service.datasets[name])), **counts.get(name, _NOTHING)}
            for name, result in datasets.items()
        },
        "timings": add_up((counted["timings"], *listings)),
        "obstacle": obstacle,
        "draining": draining,
        "connections": service.admission.clients,
        "handshakes": service.admission.handshakes,
        "workers": 1,
        "workers_lost": 0,
        "budget": {"used": _memory(counts.values()), **_loans_of(service.budget)},
        "build": build(),
    }


def _result_of(handle: Served | Awaitable[Served]) -> Any:
    """Return the dataset, the error that opening it ended with, or ``None`` meanwhile."""
    if isinstance(handle, ServedDataset):
        return handle.outcome
    if not asyncio.isfuture(handle):
        return handle
    if not handle.done() or handle.cancelled():
        return None
    return handle.exception() or handle.result()


def _is_dataset(result: Any) -> bool:
    return result is not None and not isinstance(result, BaseException)


def _trouble(handle: Served | Awaitable[Served]) -> str | None:
    return handle.trouble if isinstance(handle, ServedDataset) else None


def _facts(result: Any, trouble: str | None) -> dict[str, Any]:
    """Return a dataset's state; one whose store fails is ``failing``, open or not."""
    shards = len(result.shards) if _is_dataset(result) else 0
    if isinstance(result, BaseException):
        # The text of another error may hold anything.
        problem = result.message if isinstance(result, StreamrecError) else type(result).__name__
        return {"state": "failed", "shards": shards, "problem": problem}
    if trouble is not None:
        return {"state": "failing", "shards": shards, "problem": trouble}
    return {"state": "opening" if result is None else "open", "shards": shards, "problem": None}


def _memory(datasets: Any) -> int:
    """Return the bytes in buffers of ranges, idle ones too, and in batches that wait."""
    names = ("bytes_in_memory", "bytes_idle", "bytes_ready")
    return sum(dataset["now"].get(name, 0) for dataset in datasets for name in names)


def _loans_of(budget: SharedBudget | None) -> dict[str, int]:
    return {} if budget is None else {"lent": budget.lent, "limit": budget.total}


def build() -> dict[str, str]:
    """Return the versions that run."""
    return {
        "version": __version__,
        "kernel": kernel.implementation,
        "protocol": str(max(PROTOCOL_VERSIONS)),
        "python": platform.python_version(),
    }


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
        listener = Listener(bound, partial(self._accept, tls=place.tls))
        self._listeners.append(listener)
        # The system knows nothing of TLS, so its address does not say it.
        return replace(listener.address, tls=place.tls)

    def adopt(self, sock: socket.socket, *, tls: bool = False) -> asyncio.Task[None]:
        """Serve a connected socket, which is then the feeder's, in a task.

        Args:
            sock: The socket.
            tls: It came to an address of TLS.
        """
        task = asyncio.get_running_loop().create_task(self._visit(sock, tls=tls))
        self._tasks.add(task)
        task.add_done_callback(self._note_end)
        # A task that is cancelled before its first step would not close it.
        task.add_done_callback(lambda _: sock.close())
        return task

    async def serve_socket(self, sock: socket.socket) -> None:
        """Serve one connected socket, which is then the feeder's; returns when it is closed."""
        task = self.adopt(sock)
        try:
            # Not awaited itself: its error is logged by `_note_end`, and the caller has nothing to
            # do with it.
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
            # What is being sent is still sent whole: the conversation ends after it.
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

    def _accept(self, sock: socket.socket, *, tls: bool) -> None:
        self.adopt(sock, tls=tls)

    async def _visit(self, sock: socket.socket, *, tls: bool) -> None:
        visit = Visit(self, sock, tls=tls)
        if self.draining:
            # It came before the drain began, and is told like all others.
            visit.connection.stop(FeederDraining("the feeder shuts down; go on elsewhere"))
        await visit.serve(self._outboxes)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception():
            log.error("a connection failed", exc_info=task.exception())

    def _stop_listening(self) -> None:
        self.draining = True
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
