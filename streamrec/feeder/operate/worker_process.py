"""A worker of the daemon: a process that serves the connections that its supervisor hands over.

:mod:`streamrec.feeder.workers.worker` starts it. All that it is told comes over the two channels
that it is started with, its settings and secrets too. It ends when its supervisor says so, or has
ended.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from streamrec.config import validate
from streamrec.config.server_settings import ServerSettings
from streamrec.errors import FeederDraining, StoreError
from streamrec.feeder.access.access import Access
from streamrec.feeder.engine.engine_process import find_functions, open_ordered
from streamrec.feeder.operate import log_format
from streamrec.feeder.operate.log_format import exporting
from streamrec.feeder.operate.signals import log_dump, reload_access, reload_server
from streamrec.feeder.server.datasets import close_opened
from streamrec.feeder.server.server import Feeder
from streamrec.feeder.workers.worker import NUMBER_BYTES, Link
from streamrec.flow.bridge import new_event_loop
from streamrec.flow.cleanup import end, finish
from streamrec.flow.timings import watching
from streamrec.wire.error_fields import to_fields

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamrec.feeder.access.tokens import Grant
    from streamrec.feeder.client.connection import AsyncConnection
    from streamrec.pipeline.served import Served

TELL_EVERY = 0.5
"""Seconds between two snapshots for the supervisor."""

log = logging.getLogger("streamrec.feeder")


def main() -> None:
    """Run the process, as its arguments say."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        # They may be sent to all processes of a service: the supervisor says what is to be done.
        signal.signal(number, signal.SIG_IGN)
    link, arrivals = (socket.socket(fileno=int(number)) for number in sys.argv[1:])
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        # Nobody is left to tell, and nothing on disk to tidy up.
        runner.run(serve(link, arrivals, abandoned=lambda: os._exit(1), begin=_begin_to_log))


def _begin_to_log(settings: ServerSettings, number: int) -> None:
    log_format.configure(settings, worker=number)


class WorkerFeeder(Feeder):
    """A feeder that is a part of a daemon: it asks for what only the whole can know.

    Args:
        number: The number of this worker.
        settings: Those of the daemon.
        link: The channel to the supervisor.
        arrivals: The channel on which connections come.
        access: Who may read; ``None``: as the settings say.
    """

    def __init__(
        self,
        number: int,
        settings: ServerSettings,
        link: Link,
        arrivals: socket.socket,
        access: Access | None = None,
    ) -> None:
        access = Access(settings) if access is None else access
        super().__init__({}, settings, access=access)
        self.statistics.worker = number
        self._link = link
        self._arrivals = arrivals
        self._numbers: dict[asyncio.Task[None], int] = {}
        """The daemon's numbers of the connections, by their tasks."""
        self._orders: dict[str, dict[str, Any]] = {}
        """What the supervisor has said about datasets."""
        self._openings: dict[str, asyncio.Task[Served]] = {}

    async def dataset(self, name: str, grant: Grant | None = None) -> Served:
        """Return a dataset, once it is open in the supervisor and here.

        Args:
            name: Its name.
            grant: What the client may know of; ``None``: everything.

        Raises:
            FeederRefused: There is no dataset of this name.
            StreamrecError: It cannot be opened, or its store fails.
        """
        may_know = None if grant is None else asdict(grant)
        order = await self._link.ask(open=name, known=name in self._orders, grant=may_know)
        if order is not None:
            # Kept, so that it is sent once: it may name 100,000 shards.
            self._orders[name] = order
        # A task, since several clients may wait for it, and each may go.
        opening = self._openings.get(name) or asyncio.create_task(self._open(name))
        self.datasets[name] = self._openings[name] = opening
        return await asyncio.shield(opening)

    def note_failure(self, name: str, error: Exception) -> None:
        """Tell the supervisor that a dataset's store has failed."""
        if name and isinstance(error, StoreError):
            self._link.send(failed=name, error=to_fields(error))

    async def admit(self, connection: AsyncConnection) -> None:
        """Count one who has said HELLO as a client, here and in the daemon.

        Raises:
            FeederDraining: There is no room for it.
        """
        task = asyncio.current_task()
        assert task is not None
        refusal = await self._link.ask(admit=self._numbers[task])
        if refusal is not None:
            self.statistics.dropped["full"] += 1
            raise FeederDraining(refusal)
        await super().admit(connection)

    async def lend(self, asked: int, least: int) -> int:
        """Borrow memory from the supervisor; errors as those of a budget."""
        answer = self._link.ask(lend=asked, least=least)
        try:
            return int(await asyncio.shield(answer))
        except asyncio.CancelledError:
            # The supervisor may have lent it by now, and would count it as lent for ever.
            answer.add_done_callback(self._return)
            raise

    async def grow(self, granted: int, more: int) -> None:
        """Borrow more memory for a session; errors as those of a budget."""
        await asyncio.shield(self._link.ask(grow=more, granted=granted))

    def give_back(self, granted: int) -> None:
        """Give memory back to the supervisor."""
        self._link.send(give_back=granted)

    def receive(self) -> None:
        """Serve the connections that have come."""
        while True:
            try:
                message, files, _, _ = socket.recv_fds(self._arrivals, NUMBER_BYTES + 1, 1)
            except (BlockingIOError, InterruptedError):
                return
            if not message:  # the supervisor is gone
                asyncio.get_running_loop().remove_reader(self._arrivals.fileno())
                return
            number = int.from_bytes(message[:NUMBER_BYTES], "little")
            if files:
                tls = any(message[NUMBER_BYTES:])
                self._serve_number(number, socket.socket(fileno=files[0]), tls=tls)
            else:
                log.error("a client is lost: no file is left; raise the limit of open files")
                self._link.send(left=number)

    def cut(self, number: int) -> None:
        """Close a connection at once."""
        for task, its_number in self._numbers.items():
            if its_number == number:
                task.cancel()

    async def aclose(self) -> None:
        """Cut all connections, and close the datasets; closing again changes nothing."""
        await super().aclose()
        await finish(close_opened(self._openings.values()))

    async def _open(self, name: str) -> Served:
        """Open a dataset; where that fails, the next client has it opened again."""
        order = self._orders[name]
        try:
            find_functions(order)
            return await open_ordered(order)
        except BaseException as error:
            del self._openings[name], self.datasets[name]
            if isinstance(error, StoreError):
                self.note_failure(name, error)
            raise

    def _serve_number(self, number: int, sock: socket.socket, *, tls: bool) -> None:
        task = self.adopt(sock, tls=tls)
        self._numbers[task] = number
        task.add_done_callback(self._note_left)

    def _note_left(self, task: asyncio.Task[None]) -> None:
        self._link.send(left=self._numbers.pop(task))

    def _return(self, answer: asyncio.Future[int]) -> None:
        """Give back what was lent to a session that has gone meanwhile."""
        if not answer.cancelled() and answer.exception() is None:
            self.give_back(answer.result())


async def serve(
    link_socket: socket.socket,
    arrivals: socket.socket,
    *,
    abandoned: Callable[[], object],
    begin: Callable[[ServerSettings, int], object] = lambda *_: None,
) -> None:
    """Serve until the supervisor says that it is enough.

    Args:
        link_socket: The channel of messages.
        arrivals: The channel of descriptors.
        abandoned: Called when the supervisor has ended without a word.
        begin: Called with the settings and this worker's number, when they have come.
    """
    link = await Link.open(link_socket)
    arrivals.setblocking(False)
    with arrivals:
        order = await link.receive()
        if order is None:
            abandoned()
        elif "server" in order:  # else it is told to end, before it has begun
            settings = validate(ServerSettings, order["server"])
            begin(settings, order["number"])
            number = order["number"]
            access = await asyncio.to_thread(Access, settings, order.get("own"))
            async with (
                exporting(settings.traces) as traces,
                WorkerFeeder(number, settings, link, arrivals, access) as feeder,
            ):
                feeder.statistics.tracing = None if traces is None else traces.subscribed
                with watching(feeder.statistics.loop):
                    await _work(link, arrivals, feeder, abandoned)
    await link.aclose()


async def _work(
    link: Link, arrivals: socket.socket, feeder: WorkerFeeder, abandoned: Callable[[], object]
) -> None:
    link.send(ready=True)
    asyncio.get_running_loop().add_reader(arrivals.fileno(), feeder.receive)
    telling = asyncio.create_task(_tell(link, feeder))
    try:
        cut = await _obey(link, feeder, abandoned)
    finally:
        asyncio.get_running_loop().remove_reader(arrivals.fileno())
        await end(telling)
    link.send(snapshot=feeder.snapshot())
    link.send(drained=cut)


async def _obey(link: Link, feeder: WorkerFeeder, abandoned: Callable[[], object]) -> int:
    """Do what the supervisor says until all is to end; return the number of clients cut then."""
    draining: asyncio.Task[int] | None = None
    receiving = asyncio.create_task(link.receive())
    try:
        while draining is None or not draining.done():
            tasks = [receiving, *filter(None, [draining])]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if not receiving.done():
                continue
            message = receiving.result()
            if message is None:
                abandoned()
                return 0
            if "drain" in message:
                feeder.receive()  # who has come is told to go elsewhere
                draining = asyncio.create_task(feeder.drain(message["drain"]))
            else:
                await _do(feeder, message)
            receiving = asyncio.create_task(link.receive())
        return draining.result()
    finally:
        await end(*filter(None, [receiving, draining]))


async def _do(feeder: WorkerFeeder, message: dict[str, Any]) -> None:
    if "cut" in message:
        feeder.cut(message["cut"])
    elif "reload" in message:
        server = validate(ServerSettings, message["reload"])
        done = list(reload_server(feeder, server))
        done += await reload_access(feeder, server, message["own"])
        for sentence in done:
            log.debug("reload: %s", sentence)  # the supervisor has said it
    elif "dump" in message:
        log_dump(feeder)


async def _tell(link: Link, feeder: Feeder) -> None:
    """Send snapshots, unless the supervisor is too busy to read them."""
    while True:
        if not link.unsent:
            link.send(snapshot=feeder.snapshot())
        await asyncio.sleep(TELL_EVERY)
