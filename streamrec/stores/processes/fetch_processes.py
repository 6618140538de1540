"""The stream's side of its fetch processes: they are started, kept, replaced and ended here.

A process gets the options of the stores as its standard input, and everything else over a socket
pair: never as arguments, which others can read. It ends with that pair, and looks after its parent,
in case that is killed while a fork of it still holds the pair.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import weakref
from contextlib import asynccontextmanager
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any

from streamrec.errors import ConfigError, StoreError, StoreUnavailable
from streamrec.flow import forks
from streamrec.flow.child_process import HELPERS, child_command, child_environment
from streamrec.flow.cleanup import end, finish, until_done
from streamrec.flow.retry import Backoff
from streamrec.flow.shared_memory import SharedRanges
from streamrec.stores.base.protocol import ObjectInfo
from streamrec.stores.processes.packets import Packets
from streamrec.wire.error_fields import from_fields, to_fields

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping

PROCESS = "streamrec.stores.fetch_process"
LONGEST_BACKOFF = 30.0
"""Seconds between two starts of a process that ends again and again."""
STEADY = 60.0
"""Seconds after which a process that ends is replaced as soon as the first was."""
GOODBYE = 5.0
"""Seconds in which a process must have ended a request that is given up, before it is killed."""
MOST_LENGTH = 8 << 10
"""Characters of the longest URL that goes to a process; longer ones the stream reads itself."""

log = logging.getLogger("streamrec.stores")


def failure_of(error: Exception) -> list[Any]:
    """Describe an error of a store as plain JSON-able data, with what a retry needs to know."""
    if isinstance(error, StoreUnavailable):
        return [to_fields(error), error.retry_after, error.throttled]
    return [to_fields(error), None, False]


def error_of(failure: list[Any]) -> Exception:
    """Rebuild the error that :func:`failure_of` described."""
    fields, retry_after, throttled = failure
    error = from_fields(fields)
    if isinstance(error, StoreUnavailable):
        error.retry_after, error.throttled = retry_after, throttled
    return error


class RemoteBody:
    """The bytes of one range, which a fetch process receives; see :class:`RangeBody`.

    Args:
        process: The process.
        number: The number of the request.
        url: The object's URL.
    """

    def __init__(self, process: FetchProcess, number: int, url: str) -> None:
        self.info = ObjectInfo(url)
        self._process = process
        self._number = number
        self._on_received: Callable[[int], None] | None = None
        self._view = memoryview(b"")
        self._failure: Exception | None = None
        self._loop = asyncio.get_running_loop()
        self._answer: asyncio.Future[Any] | None = None
        self.ended: asyncio.Future[None] = self._loop.create_future()
        """Done when the process has done with the request."""

    async def open(self, start: int, stop: int, etag: str | None) -> None:
        """Have the range requested, and wait for the head of the response."""
        url = self.info.url
        self.info = ObjectInfo(*await self._ask("open", url, start, stop, etag))

    async def fill(self, view: memoryview, on_received: Callable[[int], None]) -> None:
        """Fill a view; see :class:`RangeBody`."""
        if not view:
            return
        self._on_received, self._view = on_received, view
        try:
            await self._ask("fill", *self._process.place_of(view), len(view))
        except BaseException:
            # Cancelled as well: until it has done with the request, the process may write.
            self.close()
            self._process.expect_end(self.ended)
            await finish(until_done(self.ended))
            raise
        finally:
            self._on_received, self._view = None, memoryview(b"")

    def close(self) -> None:
        """Have the request ended; closing again changes nothing."""
        if self._failure is None:
            self._failure = StoreUnavailable(
                "the range is closed; open it again", url=self.info.url
            )
            self._process.packets.send("close", self._number)

    # -- what the process says ---------------------------------------------------------------------

    def received(self, count: int, content: memoryview | None = None) -> None:
        """Take in the news of bytes, or the bytes themselves."""
        if self._on_received is None:  # given up
            return
        if content is not None:
            self._view[:count] = content
        self._view = self._view[count:]
        try:
            self._on_received(count)
        except Exception as error:  # noqa: BLE001 - fill raises it in its caller
            self._on_received = None
            self._finish(error)

    def answered(self, value: Any) -> None:
        """Take in the answer to a question."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(value)

    def failed(self, error: Exception) -> None:
        """Take in a failure; every question after it has the same answer."""
        self._failure = error
        self._finish(error)

    def closed(self) -> None:
        """Note that the process has done with the request."""
        if not self.ended.done():
            self.ended.set_result(None)

    # -- questions ---------------------------------------------------------------------------------

    async def _ask(self, kind: str, *question: Any) -> Any:
        if self._failure is not None:
            raise self._failure
        self._answer = self._loop.create_future()
        self._process.packets.send(kind, self._number, *question)
        return await self._answer

    def _finish(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)


class FetchProcess:
    """A fetch process as the stream sees it; made by :meth:`start`."""

    def __init__(self, process: subprocess.Popen[bytes], sock: socket.socket) -> None:
        self.ready = asyncio.Event()
        """Set once it has imported its libraries."""
        self.ended = asyncio.Event()
        """Set when it is gone."""
        self.packets = Packets(sock, self._take, self.ended.set)
        self.ranges: dict[int, RemoteBody] = {}
        """The open requests, by number."""
        self._numbers = count(1)
        self._process = process
        self._memories: dict[int, SharedRanges] = {}
        self._finalizer = weakref.finalize(self, _kill, process, sock, os.getpid())
        HELPERS.add(process.pid)
        forks.watch(self, FetchProcess.leave_to_parent)

    def __repr__(self) -> str:
        state = "ready" if self.ready.is_set() else "starting"
        return f"<FetchProcess {self.pid}, {state}, {len(self.ranges)} requests>"

    @classmethod
    def start(cls, order: bytes) -> FetchProcess:
        """Start a process, which imports its libraries while the caller goes on.

        Args:
            order: The message of :func:`order_for`.

        Raises:
            OSError: It cannot be started.
        """
        return cls(*_spawn(order))

    @property
    def pid(self) -> int:
        """The system's number of the process."""
        return self._process.pid

    @asynccontextmanager
    async def open_range(
        self, url: str, start: int, stop: int, etag: str | None
    ) -> AsyncIterator[RemoteBody]:
        """Have a range read by the process; see :class:`Store`."""
        number = next(self._numbers)
        body = self.ranges[number] = RemoteBody(self, number, url)
        try:
            await body.open(start, stop, etag)
            yield body
        except BaseException:
            body.close()
            # It counts as open until then, so that one that hangs does not get all requests.
            body.ended.add_done_callback(lambda _: self.ranges.pop(number))
            if not body.ended.done():
                self.expect_end(body.ended)
            raise
        body.close()
        del self.ranges[number]

    def share(self, memory: SharedRanges) -> None:
        """Have the process map memory."""
        number = next(self._numbers)
        self._memories[number] = memory
        self.packets.send("map", number, fd=memory.fd)

    def unshare(self, memory: SharedRanges) -> None:
        """Have the process let memory go."""
        for number in [number for number, one in self._memories.items() if one is memory]:
            del self._memories[number]
            self.packets.send("unmap", number)

    def place_of(self, view: memoryview) -> tuple[int, int] | tuple[None, None]:
        """Return the number of the memory in which a view lies, and where; ``None``: in none."""
        for number, memory in self._memories.items():
            if (place := memory.place_of(view)) is not None:
                return number, place
        return None, None

    async def aclose(self) -> None:
        """End the process, and fail the requests that are open when it writes nothing more."""
        # It has nothing to tidy up.
        self._process.kill()
        HELPERS.end(self.pid)
        await asyncio.to_thread(self._process.wait)
        self.packets.close()
        self._finalizer.detach()
        self.ended.set()
        for body in list(self.ranges.values()):
            body.failed(self._loss(body.info.url))
            body.closed()

    def outcome(self) -> str:
        """Return how the process ended, in words."""
        code = self._process.returncode
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        return f"the fetch process {self.pid} {how}"

    def leave_to_parent(self) -> None:
        """Leave the process to the parent of this fork."""
        self._finalizer.detach()
        HELPERS.leave(self.pid)
        self.packets.leave()
        # Popen's own destructor would else warn of a process that nobody has waited for.
        self._process.returncode = 0

    def expect_end(self, request: asyncio.Future[None]) -> None:
        """Kill the process if it does not end a request soon, which is given up."""

        def kill() -> None:
            log.warning("the fetch process %d hangs, and is replaced", self.pid)
            self._process.kill()

        timer = asyncio.get_running_loop().call_later(GOODBYE, kill)
        request.add_done_callback(lambda _: timer.cancel())

    def _loss(self, url: str) -> StoreError:
        advice = "its ranges are asked for again"
        return StoreUnavailable(f"{self.outcome()}; {advice}", url=url)

    def _take(self, message: list[Any], content: memoryview, fd: int | None) -> None:  # noqa: ARG002
        kind, *facts = message
        if kind == "ready":
            self.ready.set()
            log.debug("the fetch process %d is ready", self.pid)
        elif kind == "received":
            for number, counted in facts:
                if (body := self.ranges.get(number)) is not None:
                    body.received(counted)
        elif (body := self.ranges.get(facts[0])) is not None:
            if kind == "content":
                body.received(len(content), content)
            elif kind == "failed":
                body.failed(error_of(facts[1]))
            elif kind == "closed":
                body.closed()
            else:
                body.answered(facts[1])


class FetchProcesses:
    """The fetch processes of one dataset; they start when memory is first shared with them.

    Args:
        number: How many there are.
        options: fsspec's options, for the source's scheme.
        urls: URLs of the stores that they will read.

    Raises:
        ConfigError: The options cannot be sent to another process.
    """

    def __init__(self, number: int, options: Mapping[str, Any], urls: Iterable[str]) -> None:
        if not hasattr(os, "memfd_create"):
            raise ConfigError("fetch processes need Linux; set fetch_processes=0")
        self._number = number
        self._order = order_for(options, urls)
        self._keepers: list[asyncio.Task[None]] = []
        self._processes: list[FetchProcess] = []
        self._memories: list[SharedRanges] = []

    def __repr__(self) -> str:
        return f"<FetchProcesses {self._processes}>"

    @property
    def processes(self) -> list[FetchProcess]:
        """The processes that run now."""
        return list(self._processes)

    def share_memory(self, size: int) -> SharedRanges | None:
        """Return memory that the processes fill; ``None``: the system has none."""
        self.start()
        try:
            memory = SharedRanges(size, self._unshare)
        except OSError:
            return None
        self._memories.append(memory)
        for process in self._processes:
            process.share(memory)
        return memory

    def start(self) -> None:
        """Start the processes; starting again changes nothing."""
        if not self._keepers:
            create = asyncio.get_running_loop().create_task
            self._keepers = [create(self._keep()) for _ in range(self._number)]

    def process_for(self, url: str) -> FetchProcess | None:
        """Return the process with the fewest requests; ``None``: the stream reads this itself."""
        if len(url) > MOST_LENGTH:
            return None
        ready = [one for one in self._processes if one.ready.is_set() and not one.ended.is_set()]
        return min(ready, key=lambda one: len(one.ranges), default=None)

    async def aclose(self) -> None:
        """End the processes; closing again changes nothing."""
        keepers, self._keepers = self._keepers, []
        await finish(end(*keepers))

    async def _keep(self) -> None:
        """Keep one process running until cancelled."""
        loop, backoff = asyncio.get_running_loop(), Backoff(Random(), longest=LONGEST_BACKOFF)
        while True:
            began = loop.time()
            try:
                await self._run_one()
            except Exception as error:
                defect = None if isinstance(error, OSError) else error
                log.warning("a fetch process cannot be started: %s", error, exc_info=defect)
            if loop.time() - began > STEADY:
                backoff.reset()
            await asyncio.sleep(backoff.next())

    async def _run_one(self) -> None:
        """Run a process until it ends, and take back its requests."""
        process = FetchProcess.start(self._order)
        self._processes.append(process)
        try:
            for memory in self._memories:
                process.share(memory)
            await process.ended.wait()
        finally:
            self._processes.remove(process)
            await finish(process.aclose())
        log.warning("%s, and is replaced", process.outcome())

    def _unshare(self, memory: SharedRanges) -> None:
        self._memories.remove(memory)
        for process in self._processes:
            process.unshare(memory)


def order_for(options: Mapping[str, Any], urls: Iterable[str]) -> bytes:
    """Return the message that tells a process which stores it will read.

    Raises:
        ConfigError: The options cannot be sent to another process.
    """
    try:
        return json.dumps({"options": dict(options), "urls": list(urls)}).encode()
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"storage_options cannot be sent to a fetch process: {error}; give plain values in "
            "them, or set fetch_processes=0"
        ) from None


def _spawn(order: bytes) -> tuple[subprocess.Popen[bytes], socket.socket]:
    with contextlib.ExitStack() as ours:
        pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock, theirs = ours.enter_context(pair[0]), pair[1]
        # A file in memory: a pipe might have to wait for a reader.
        fd = os.memfd_create("streamrec-order")
        with theirs, os.fdopen(fd, "w+b") as stdin:
            stdin.write(order)
            stdin.seek(0)
            process = subprocess.Popen(
                child_command(PROCESS, os.getpid(), theirs.fileno()),
                stdin=stdin,
                pass_fds=[theirs.fileno()],
                env=child_environment(),
                # In a group of its own, so that the terminal's Ctrl-C reaches the trainer alone.
                process_group=0,
            )
        ours.pop_all()
    return process, sock


def _kill(process: subprocess.Popen[bytes], sock: socket.socket, owner: int) -> None:
    """End a process that nobody has closed, when it is forgotten or at the interpreter's exit."""
    sock.close()
    if os.getpid() == owner:
        process.kill()
        HELPERS.end(process.pid)
        process.wait()
    else:
        process.returncode = 0
