"""The feeder: named datasets, served to any rank from any position, over TCP and Unix sockets.

A feeder keeps nothing about its clients. One task a connection talks to one client; the transport
reads all the while, so that credits count, pings are answered and a client that goes away ends its
run at once, whatever the task waits for.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Self

from streamrec.errors import FeederDraining
from streamrec.feeder.address import Address, check_exposure
from streamrec.feeder.admission import Admission, Limits
from streamrec.feeder.connection import AsyncConnection
from streamrec.feeder.conversation import Conversation
from streamrec.feeder.listener import Listener, bind, remote_host
from streamrec.feeder.watch import Deadlines
from streamrec.wire.protocol import Connection, Role

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from streamrec.config import DatasetSettings
    from streamrec.feeder.shared import Outbox
    from streamrec.kernel.contract import Allocate
    from streamrec.plan.position import Fingerprint, Position
    from streamrec.plan.resume_point import ResumePoint
    from streamrec.stores.base import ObjectInfo
    from streamrec.values.batch import Batch

__all__ = ["DatasetHandle", "Feeder", "RunHandle", "Statistics", "open_dataset"]

WAITS = ("credit", "data", "socket")
DROPS = ("full", "crowd", "handshake", "idle")

log = logging.getLogger("streamrec.feeder")


class RunHandle(Protocol):
    """One rank's batches, from a position on."""

    @property
    def position(self) -> Position:
        """The position of the next batch."""

    async def receive(self) -> Batch:
        """Return the next batch; raise ``EndOfStream`` after the last."""

    def statistics(self) -> Mapping[str, Any]:
        """Return the counters of this run, as plain JSON-able data."""


class DatasetHandle(Protocol):
    """A dataset, as far as a feeder uses it."""

    @property
    def settings(self) -> DatasetSettings:
        """The settings with which it is read."""

    @property
    def shards(self) -> tuple[str, ...]:
        """The URLs of the shards."""

    @property
    def lanes(self) -> int:
        """The number of lanes."""

    def fingerprint(self, batch_size: int | None, world_size: int) -> Fingerprint:
        """Return everything that determines the order; refuse what cannot be served."""

    def length(self, batch_size: int | None, world_size: int) -> int | None:
        """Return the steps of a run; ``None``: it has no end, or nobody knows."""

    def surplus(self, batch_size: int | None, world_size: int) -> int | None:
        """Return the masked rows of all ranks in a run; below 0: so many records are left out."""

    def run(
        self,
        *,
        rank: int,
        world_size: int,
        batch_size: int | None,
        position: ResumePoint | None,
        allocate: Allocate | None = None,
    ) -> AbstractAsyncContextManager[RunHandle]:
        """Start to read; without a ``batch_size``, single records. Columns may be allocated."""

    async def aclose(self) -> None:
        """Close the dataset; a feeder leaves this to whoever opened it."""


async def open_dataset(
    settings: DatasetSettings, objects: Sequence[ObjectInfo] | None = None
) -> DatasetHandle:
    """Open a dataset of the pipeline; the arguments are those of ``Dataset.open``."""
    from streamrec.pipeline.dataset import Dataset

    return await Dataset.open(settings, objects)


@dataclass
class Statistics:
    """The counters of a feeder since its start."""

    connections: int = 0
    """The number of clients now."""
    handshakes: int = 0
    """The number of connections now that are no clients yet."""
    connections_total: int = 0
    batches: Counter[str] = field(default_factory=Counter)
    """Batches that were sent, by dataset."""
    records: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    """Bytes of whole frames that were sent, by dataset."""
    faults: Counter[str] = field(default_factory=Counter)
    """Errors that were sent to clients, by type."""
    waited: dict[str, float] = field(default_factory=lambda: dict.fromkeys(WAITS, 0.0))
    """Seconds of all connections together, by what they waited for: ``credit`` (the client does not
    take), ``data`` (the store does not give) or ``socket`` (the network does not carry)."""
    dropped: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DROPS, 0))
    """Connections that the feeder ended, by reason: no room for the client (``full``), or for so
    many handshakes (``crowd``), a handshake that took too long, no sign of life (``idle``)."""


class Feeder:
    """Serves datasets; an asynchronous context manager that closes everything.

    Args:
        datasets: By name; what is still being opened lets its clients wait.
        token: What clients must present; ``None``: nothing.
        insecure: Listen beyond this machine too.
        limits: How many may be connected.
        deadlines: How long it waits for a client.
        outbox: Memory that is shared with the only client.
    """

    def __init__(
        self,
        datasets: Mapping[str, DatasetHandle | Awaitable[DatasetHandle]],
        *,
        token: str | None = None,
        insecure: bool = False,
        limits: Limits | None = None,
        deadlines: Deadlines | None = None,
        outbox: Outbox | None = None,
    ) -> None:
        self.datasets: dict[str, DatasetHandle | asyncio.Future[DatasetHandle]] = {
            name: asyncio.ensure_future(value) if isinstance(value, Awaitable) else value
            for name, value in datasets.items()
        }
        self.token = token
        self.insecure = insecure
        self.deadlines = deadlines or Deadlines()
        self.outbox = outbox
        self.draining = False
        self._statistics = Statistics()
        self._listeners: list[Listener] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._admission: Admission[Conversation] = Admission(limits or Limits())

    def __repr__(self) -> str:
        state = "draining" if self.draining else "serving"
        clients = self._admission.clients
        return f"<Feeder {state} {', '.join(self.datasets)}: {clients} clients>"

    def statistics(self) -> Statistics:
        """Return the counters since the start; live, not a copy."""
        self._statistics.connections = self._admission.clients
        self._statistics.handshakes = self._admission.handshakes
        return self._statistics

    @property
    def obstacle(self) -> str | None:
        """The reason why no new client could be served now; ``None`` while one could."""
        if self.draining:
            return "the feeder is draining"
        if not all(map(_is_open, self.datasets.values())):
            return "datasets are being opened"
        if any(listener.lacks_files for listener in self._listeners):
            return "no file is left for another connection; raise the limit of open files"
        return self._admission.full

    def admit(self, conversation: Conversation) -> None:
        """Count one who has said HELLO as a client.

        Raises:
            FeederDraining: There is no room for it here.
        """
        refusal = self._admission.admit(conversation)
        if refusal is not None:
            self._statistics.dropped["full"] += 1
            raise FeederDraining(refusal)

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
        check_exposure(place, token=bool(self.token), insecure=self.insecure)
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
        for conversation in self._admission.guests:
            conversation.stop(FeederDraining("the feeder shuts down; go on elsewhere"))
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace)
        await self.aclose()

    async def aclose(self) -> None:
        """Cut all connections and stop listening; closing again changes nothing."""
        self._stop_listening()
        tasks = [*self._tasks, *filter(asyncio.isfuture, self.datasets.values())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

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
        conversation = Conversation(self, connection)
        if self.draining:
            conversation.stop(FeederDraining("the feeder shuts down; go on elsewhere"))
        self._statistics.connections_total += 1
        try:
            self._cut(self._admission.arrive(conversation, host))
            await conversation.run()
        finally:
            self._admission.leave(conversation)
            connection.abort()

    def _cut(self, crowded_out: Conversation | None) -> None:
        if crowded_out is not None:
            self._statistics.dropped["crowd"] += 1
            crowded_out.connection.abort()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception():
            log.error("a connection failed", exc_info=task.exception())

    def _stop_listening(self) -> None:
        self.draining = True
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()


def _is_open(value: DatasetHandle | asyncio.Future[DatasetHandle]) -> bool:
    if not asyncio.isfuture(value):
        return True
    return value.done() and not value.cancelled() and value.exception() is None
