"""A feeder in a thread, loops of both kinds, and checks that nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import uvloop

from streamrec.config.server_settings import ServerSettings
from streamrec.feeder.server.server import Feeder
from streamrec.pipeline.dataset import Dataset
from streamrec.plan.state.position import VERSION
from streamrec.wire.messages import Hello
from streamrec.wire.protocol import PROTOCOL_VERSIONS, Connection, Role
from tests.pipeline.simulated_store import SimulatedLoop
from tests.support import open_fds

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from streamrec.config import DatasetSettings
    from streamrec.pipeline.served import Served
    from streamrec.wire.messages import Message

LoopFactory = Callable[[], asyncio.AbstractEventLoop]
LOOPS = [
    pytest.param(asyncio.new_event_loop, id="asyncio"),
    pytest.param(uvloop.new_event_loop, id="uvloop"),
]
PATIENCE = 60.0
"""Seconds after which a test that waits for something has failed."""


uvloop.new_event_loop().close()  # opens a pipe for signals, once a process


def is_open(fd: int) -> bool:
    return Path(f"/proc/self/fd/{fd}").exists()


def shared_mappings(name: str = "streamrec-batches") -> set[tuple[str, str]]:
    """Return where this process has mapped memory of a name, and its inodes."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    words = [line.split() for line in lines if f"memfd:{name}" in line]
    return {(place, inode) for place, _, _, _, inode, *_ in words}


def unsealed(size: int) -> int:
    """Return memory that its owner can shrink at any time."""
    fd = os.memfd_create("other", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    return fd


def on_both_loops(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in asyncio and in uvloop; no task and no file may outlive it."""

    async def checked(*args: Any, **kwargs: Any) -> None:
        async with asyncio.timeout(PATIENCE):
            await test(*args, **kwargs)
        await settled()

    @functools.wraps(test)
    def run(*args: Any, loop_factory: LoopFactory, **kwargs: Any) -> None:
        before = open_fds()
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(checked(*args, **kwargs))
        until(lambda: open_fds() <= before)

    # pytest reads the signature: the loop's factory comes in addition.
    del run.__wrapped__
    run.__signature__ = _with_loop(test)  # type: ignore[attr-defined]
    marked: Callable[..., None] = pytest.mark.parametrize("loop_factory", LOOPS)(run)
    return marked


def in_simulated_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in a loop whose clock jumps to the next timer; no task may outlive it."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        async def checked() -> None:
            await test(*args, **kwargs)
            await settled()

        with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
            runner.run(checked())

    return run


def _with_loop(test: Callable[..., Any]) -> Any:
    signature = inspect.signature(test)
    more = inspect.Parameter("loop_factory", inspect.Parameter.KEYWORD_ONLY)
    return signature.replace(parameters=[*signature.parameters.values(), more])


async def settled() -> None:
    """Return once the present task is the only one."""
    await eventually(lambda: len(asyncio.all_tasks()) == 1)


async def eventually(condition: Callable[[], bool]) -> None:
    """Turn the loop until a condition holds."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.001)


def until(condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Look at a condition again and again, until it holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


class Scripted:
    """One end of a connection that says what it is told to, and answers nothing by itself."""

    def __init__(self, sock: socket.socket, role: Role) -> None:
        self._socket = sock
        self._socket.setblocking(False)
        self.machine = Connection(role)

    def say(self, *messages: Message) -> None:
        for message in messages:
            self._socket.sendall(b"".join(self.machine.send(message)))

    def hear(self) -> list[Message]:
        """All that has come, and is not taken yet."""
        with contextlib.suppress(BlockingIOError):
            while count := self._socket.recv_into(self.machine.get_buffer()):
                self.machine.buffer_updated(count)
        return list(self.machine.events())

    async def answer(self) -> list[Message]:
        """Return the next messages."""
        heard: list[Message] = []

        def has_come() -> bool:
            heard.extend(self.hear())
            return bool(heard)

        await eventually(has_come)
        return heard


def hello(**fields: Any) -> Hello:
    """Return a correct HELLO, but for the given fields."""
    values = {
        "dataset": "train",
        "world_size": 1,
        "position_version": VERSION,
        "protocol_versions": PROTOCOL_VERSIONS,
        **fields,
    }
    return Hello(**values)


def server_settings(**values: Any) -> ServerSettings:
    """Return the settings of a feeder, with the defaults but for the given values."""
    return ServerSettings(**values)


class ServedFeeder:
    """A feeder whose loop turns in a thread, for blocking clients."""

    def __init__(self, feeder: Feeder, loop: asyncio.AbstractEventLoop) -> None:
        self.feeder = feeder
        self.loop = loop

    def call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(PATIENCE)

    def listen(self, where: str) -> str:
        return str(self.call(self.feeder.listen(where)))

    def connect(self) -> tuple[socket.socket, Future[None]]:
        """Return a connected socket, and the service at its other end."""
        ours, theirs = socket.socketpair()
        serving = self.feeder.serve_socket(theirs)
        return ours, asyncio.run_coroutine_threadsafe(serving, self.loop)


@contextlib.contextmanager
def served(
    datasets: Mapping[str, Served],
    loop_factory: LoopFactory = asyncio.new_event_loop,
    **options: Any,
) -> Iterator[ServedFeeder]:
    started: Future[ServedFeeder] = Future()
    stop: Future[asyncio.Event] = Future()

    async def main() -> None:
        event = asyncio.Event()
        stop.set_result(event)
        async with Feeder(dict(datasets), **options) as feeder:
            started.set_result(ServedFeeder(feeder, asyncio.get_running_loop()))
            await event.wait()
        await settled()

    def run() -> None:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(main())

    thread = threading.Thread(target=run)
    thread.start()
    try:
        feeder = started.result(PATIENCE)
        yield feeder
    finally:
        feeder.loop.call_soon_threadsafe(stop.result(PATIENCE).set)
        thread.join(PATIENCE)
        assert not thread.is_alive()


@contextlib.contextmanager
def serving(settings: DatasetSettings) -> Iterator[str]:
    """Run a feeder of a real dataset, named ``data``; yield its address."""
    with served({}) as feeder:
        dataset = feeder.call(Dataset.open(settings))
        feeder.feeder.datasets["data"] = dataset
        try:
            yield feeder.listen("tcp://127.0.0.1:0")
        finally:
            feeder.call(feeder.feeder.aclose())
            feeder.call(dataset.aclose())


def gone(pid: int) -> bool:
    """Return whether a process has ended, perhaps as a zombie that nobody has waited for."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return True
    return state == "Z"
