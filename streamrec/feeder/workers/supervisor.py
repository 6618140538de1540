"""The supervisor of a daemon's workers: accepts connections, and holds what the whole must know.

It serves nobody itself. Each connection goes to the worker with the fewest, as a descriptor. How
many clients there may be, how much memory they may take, which datasets there are and whether their
stores answer: this is known here alone, and workers ask.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import ByteSize, SecretStr

from streamrec.config.machine import shared_limit
from streamrec.errors import FeederLost, StreamrecError
from streamrec.feeder.access.tokens import Grant
from streamrec.feeder.engine.engine import order_for
from streamrec.feeder.server.listener import remote_host
from streamrec.feeder.server.server import STANDS, Feeder
from streamrec.feeder.server.service import Admission
from streamrec.feeder.server.statistics import keep_counts, merge_snapshots
from streamrec.feeder.workers.worker import Worker
from streamrec.flow.cleanup import end, finish
from streamrec.flow.retry import Backoff
from streamrec.wire.error_fields import from_fields

if TYPE_CHECKING:
    import socket

    from streamrec.config import DatasetSettings
    from streamrec.config.server_settings import ServerSettings
    from streamrec.feeder.access.access import Access
    from streamrec.feeder.server.datasets import ServedDatasets
    from streamrec.feeder.server.service import SharedBudget
    from streamrec.pipeline.served import Served

STEADY = 60.0
"""Seconds after which a worker that ends is replaced as soon as the first was."""
LONGEST_BACKOFF = 30.0
MOST_LISTED = 100_000
"""Shards that a worker is told; of a dataset with more it lists them itself."""
SILENCE = 30.0
"""Seconds without a word of a worker; they say how they are twice a second."""
LOOKS = 2
"""Times of silence that follow each other until a worker counts as hanging. One could be that of a
machine that slept."""
GOODBYE = 2.0
"""Seconds that a worker gets to end by itself when it has said its last word."""
PATIENCE = 5.0
"""Seconds beyond the grace in which workers that drain have to end."""

log = logging.getLogger("streamrec.feeder")


class Supervisor(Feeder):
    """A feeder whose clients are served by processes of their own, which end with it.

    Args:
        datasets: By name.
        settings: The settings of the daemon.
        workers: The number of processes.
        budget: The memory that the sessions of all workers share.
        access: Who may read. The workers follow its files.
    """

    def __init__(
        self,
        datasets: ServedDatasets,
        settings: ServerSettings,
        workers: int,
        budget: SharedBudget,
        access: Access,
    ) -> None:
        super().__init__({**datasets}, settings, budget=budget, access=access)
        self.admission: Admission[int] = Admission(settings)
        self._served = datasets
        self._count = workers
        self._workers: list[Worker] = []
        self._keepers: dict[asyncio.Task[None], Worker | None] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self._owners: dict[int, Worker] = {}
        self._connections = count(1)
        self._lost = 0
        """Workers that have died."""
        self._cut = 0
        """Connections that workers have cut when they had drained."""
        self._retired: list[dict[str, Any]] = []
        """What workers that have ended had counted, added up to one."""

    @property
    def workers(self) -> list[Worker]:
        """The workers that run now."""
        return list(self._workers)

    @property
    def obstacle(self) -> str | None:
        """The reason why no new client could be served now; ``None`` while one could."""
        ready = [worker for worker in self._workers if worker.is_ready]
        if not ready and not self.draining:
            return "no worker process runs"
        silent = min((worker.silent_for for worker in ready), default=0.0)
        if silent > STANDS:
            return f"no worker process has said anything for {silent:.1f} s; the log says why"
        return super().obstacle

    def snapshot(self) -> dict[str, Any]:
        """Return all that the daemon shows of itself, as JSON can hold it."""
        snapshots = [worker.snapshot for worker in self._workers if worker.snapshot is not None]
        ready = sum(worker.is_ready for worker in self._workers)
        facts = {"workers": ready, "workers_lost": self._lost}
        return merge_snapshots({**super().snapshot(), **facts}, [*self._retired, *snapshots])

    async def all_ready(self) -> None:
        """Return when all workers serve.

        Raises:
            StreamrecError: One has ended instead.
        """
        # Shielded: one who waits may be cancelled, and others wait for the same future.
        await asyncio.shield(self._ready)

    def pass_on(self, order: Literal["reload", "dump"]) -> None:
        """Have the workers do what this process has just done."""
        content = _plain(_divide(self.settings, self._count)) if order == "reload" else True
        self._tell(**{order: content}, own=self._own)

    async def drain(self, grace: float) -> int:
        """End in peace, as :meth:`Feeder.drain` does in every worker."""
        self._stop_listening()
        self._tell(drain=grace)
        # A keeper between two workers would start one more, which nobody needs now.
        for keeper, worker in self._keepers.items():
            if worker is None:
                keeper.cancel()
        await asyncio.wait(self._keepers, timeout=grace + PATIENCE)
        # Those of workers that have not drained in time are cut with them.
        left = sum(len(worker.connections) for worker in self._workers)
        await self.aclose()
        return self._cut + left

    async def aclose(self) -> None:
        """Kill the workers and stop listening; closing again changes nothing."""
        self._stop_listening()
        self._ready.cancel()
        await finish(end(*self._keepers, *self._answering))

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = loop.create_future()
        self._ready.add_done_callback(_retrieve)
        numbers = range(1, self._count + 1)
        self._keepers = {loop.create_task(self._keep(number)): None for number in numbers}
        return self

    @property
    def _own(self) -> dict[str, list[str]]:
        """The files of tokens of each dataset, as a message can hold them."""
        return {name: list(files) for name, files in self.access.own.items()}

    def _accept(self, sock: socket.socket, *, tls: bool) -> None:
        if not self._workers:  # all have just died: the client will come again
            sock.close()
            return
        # Descriptors have other numbers in each process, so connections are counted here.
        number = next(self._connections)
        crowded_out = self.admission.arrive(number, remote_host(sock))
        if crowded_out is not None:
            self.statistics.dropped["crowd"] += 1
            # It is another worker's, perhaps: handshakes are counted over all of them.
            self._owners.pop(crowded_out).cut(crowded_out)
        worker = min(self._workers, key=lambda worker: worker.load)
        self._owners[number] = worker
        worker.hand_over(number, sock, tls=tls)

    async def _keep(self, number: int) -> None:
        """Keep one worker running until the daemon drains."""
        loop = asyncio.get_running_loop()
        backoff = Backoff(Random(), longest=LONGEST_BACKOFF)
        while not self.draining:
            began = loop.time()
            try:
                await self._run_worker(number)
            except Exception as error:  # noqa: BLE001 - a defect must not leave it without one
                self._note_failure(number, error)
            if self.draining:
                return
            if loop.time() - began > STEADY:
                # It has served for long: what ended it is not what ended the one before.
                backoff.reset()
            await asyncio.sleep(backoff.next())

    async def _run_worker(self, number: int) -> None:
        """Run a worker until it ends, and take back all that it had.

        Raises:
            StreamrecError: It could not begin, or has ended by itself.
        """
        worker = await Worker.start(number)
        keeper = asyncio.current_task()
        assert keeper is not None
        self._workers.append(worker)
        self._keepers[keeper] = worker
        # It gets a moment to end by itself only once it has said its last word.
        patience = 0.0
        try:
            settings = _plain(_divide(self.settings, self._count))
            worker.link.send(server=settings, own=self._own, number=number)
            await self._serve_worker(worker)
            patience = GOODBYE
        finally:
            self._keepers[keeper] = None
            # Out of the list before it ends: no connection may be handed to it meanwhile.
            self._workers.remove(worker)
            self._forget(worker)
            await finish(worker.end(patience))
        if not self.draining:
            raise FeederLost(
                f"the worker process {worker.process.pid} {worker.outcome()}; the log says why, "
                "or the system's (it may have lacked memory)"
            )

    def _note_failure(self, number: int, error: Exception) -> None:
        if not self._ready.done():
            self._ready.set_exception(error)
            return
        self._lost += 1
        defect = None if isinstance(error, StreamrecError) else error
        facts = {"worker": number}
        log.error("a worker is replaced: %s", error, extra=facts, exc_info=defect)

    def _forget(self, worker: Worker) -> None:
        for number in worker.connections:
            self._leave(number)
        for granted in worker.loans:
            self.give_back(granted)
        if worker.snapshot is not None:
            # The daemon's counters must not fall: who reads them would take it for a new start.
            counts = keep_counts(worker.snapshot)
            self._retired = [merge_snapshots(counts, self._retired)]

    async def _serve_worker(self, worker: Worker) -> None:
        """Answer a worker until it has ended."""
        # One message after the other: a loan is counted before the worker asks for the next.
        while (message := await _hear(worker)) is not None:
            if "admit" in message:
                worker.link.answer(message, self.admission.admit(message["admit"]))
            elif "left" in message:
                worker.connections.discard(message["left"])
                self._leave(message["left"])
            elif "lend" in message:
                worker.link.answer(message, await self._lend(worker, message))
            elif "grow" in message:
                worker.link.answer(message, await self._grow(worker, message))
            elif "give_back" in message:
                worker.loans.remove(message["give_back"])
                self.give_back(message["give_back"])
            elif "open" in message:
                self._answer_later(worker, message)
            else:
                self._note(worker, message)

    def _note(self, worker: Worker, message: dict[str, Any]) -> None:
        """Take a worker's news of itself."""
        if "snapshot" in message:
            worker.snapshot = message["snapshot"]
        elif "failed" in message:
            self.note_failure(message["failed"], from_fields(message["error"]))
        elif "drained" in message:
            self._cut += message["drained"]
        elif "ready" in message:
            worker.is_ready = True
            all_are = sum(worker.is_ready for worker in self._workers) == self._count
            if all_are and not self._ready.done():
                self._ready.set_result(None)

    async def _lend(self, worker: Worker, message: dict[str, Any]) -> int | StreamrecError:
        try:
            granted = await self.lend(message["lend"], message["least"])
        except StreamrecError as error:
            return error
        assert granted is not None
        worker.loans.append(granted)
        return granted

    async def _grow(self, worker: Worker, message: dict[str, Any]) -> StreamrecError | None:
        granted, more = message["granted"], message["grow"]
        try:
            await self.grow(granted, more)
        except StreamrecError as error:
            return error
        worker.loans.remove(granted)
        worker.loans.append(granted + more)
        return None

    def _answer_later(self, worker: Worker, message: dict[str, Any]) -> None:
        """Answer once a dataset is open."""

        # In a task: a store may take minutes, and the worker has other questions meanwhile.
        async def answer() -> None:
            grant = Grant(**message["grant"]) if message.get("grant") else None
            result = await self._order(message["open"], is_known=message["known"], grant=grant)
            worker.link.answer(message, result)

        task = asyncio.get_running_loop().create_task(answer())
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _order(
        self, name: str, *, is_known: bool, grant: Grant | None = None
    ) -> dict[str, Any] | Exception | None:
        """Return what a worker must know of a dataset, or why it has no client for it."""
        try:
            dataset = await self.dataset(name, grant)
            return None if is_known else _order(self._served[name].settings, dataset)
        except Exception as error:  # noqa: BLE001 - the client must hear of a defect too
            return error

    def _leave(self, number: int) -> None:
        self._owners.pop(number, None)
        self.admission.leave(number)

    def _tell(self, **message: Any) -> None:
        for worker in self._workers:
            worker.link.send(**message)


async def _hear(worker: Worker) -> dict[str, Any] | None:
    """Return a worker's next message; ``None``: it has ended, or hangs."""
    for _ in range(LOOKS):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SILENCE):
                message = await worker.link.receive()
                worker.heard_at = asyncio.get_running_loop().time()
                return message
    silent = SILENCE * LOOKS
    log.error("a worker has said nothing for %g s", silent, extra={"worker": worker.number})
    return None


def _divide(settings: ServerSettings, workers: int) -> ServerSettings:
    """Return the settings of each worker."""
    # Each maps its clients' memory by itself, and together they stay within the daemon's limit.
    shared = ByteSize(shared_limit(settings) // workers)
    return settings.model_copy(update={"shared_memory": shared})


def _plain(settings: ServerSettings) -> dict[str, Any]:
    """Return the settings as JSON can hold them. They have secrets: nobody else may read them."""
    secrets = {
        name: value.get_secret_value() for name, value in settings if isinstance(value, SecretStr)
    }
    return settings.model_dump(mode="json") | secrets


def _order(settings: DatasetSettings, dataset: Served) -> dict[str, Any]:
    """Return the message that lets a worker open a dataset, with the same shards.

    The components of a mix are not told apart by it: of a mix each worker lists the shards.
    """
    objects = () if settings.weights is not None else dataset.objects
    order: dict[str, Any] = json.loads(order_for(settings, objects, MOST_LISTED))
    return order


def _retrieve(ready: asyncio.Future[None]) -> None:
    """Retrieve the error of workers that nobody waits for any more."""
    if not ready.cancelled():
        ready.exception()
