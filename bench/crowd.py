"""Clients of a feeder, many in one event loop, and the programs that run beside or against it.

``python -m bench.crowd PROGRAM ARGUMENTS...``: *attack* KIND HOST PORT, *visit* ADDRESS COUNT MOST,
*beat* SECONDS, *sink*, *feeder* SETTINGS. All but *visit* end with their standard input.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
import threading
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

from bench.machine import ROOT
from bench.stopwatch import descriptors, resident_megabytes
from streamrec.config import DatasetSettings, validate
from streamrec.errors import FeedError
from streamrec.feeder.client.client import ENGINE_DATASET, AsyncFeed
from streamrec.feeder.client.session import Options
from streamrec.feeder.server.server import Feeder
from streamrec.flow.bridge import new_event_loop
from streamrec.flow.channel import EndOfStream
from streamrec.pipeline.dataset import Dataset
from streamrec.wire.messages import Hello
from streamrec.wire.protocol import Connection, Role

AT_ONCE = 50
"""Clients that connect at a time."""
FRUGAL = Options(credit_bytes=1 << 20)
PATIENCE = 120.0
"""Seconds that a client waits for a sign of life: two hundred sessions begin at once."""


class Readers:
    """The clients that read until they are told to rest.

    Args:
        pace: Records a second that each of them computes; ``None``: they compute nothing, and read
            as fast as they can.
        options: Options of their feeds; by default they take little memory.
    """

    def __init__(self, pace: float | None = None, options: Options = FRUGAL) -> None:
        self._pace = pace
        self._options = options
        self.records = 0
        self._began = asyncio.Semaphore(0)
        self._going = asyncio.Event()
        self._going.set()

    async def rate(self, seconds: float) -> float:
        loop = asyncio.get_running_loop()
        began, records = loop.time(), self.records
        await asyncio.sleep(seconds)
        return (self.records - records) / (loop.time() - began)

    async def all_read(self, count: int) -> None:
        """Return once each of so many has read something."""
        for _ in range(count):
            await self._began.acquire()

    def rest(self) -> None:
        """Take no more batches, and keep the connections."""
        self._going.clear()

    async def read(self, address: str, token: str | None) -> None:
        """Read until cancelled."""
        options = Options(token=token)
        options.update(self._options)
        feed = await AsyncFeed.open(address, patience=PATIENCE, connect_timeout=PATIENCE, **options)
        async with aclosing(feed):
            await feed.receive()
            self._began.release()
            while True:
                await self._going.wait()
                batch = await feed.receive()
                self.records += len(batch)
                if self._pace is not None:  # and batches arrive meanwhile
                    await asyncio.sleep(len(batch) / self._pace)


@asynccontextmanager
async def reading(
    address: str,
    count: int,
    token: str | None = None,
    pace: float | None = None,
    options: Options = FRUGAL,
) -> AsyncIterator[Readers]:
    """Have clients read while the block runs, each all that there is, at a pace or at none."""
    readers = Readers(pace, options)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(readers.read(address, token)) for _ in range(count)]
        yield readers
        for task in tasks:
            task.cancel()


@asynccontextmanager
async def finished(address: str, count: int) -> AsyncIterator[None]:
    """Keep clients connected while the block runs, each at the end of its run."""
    limit = asyncio.Semaphore(AT_ONCE)

    async def open_and_finish() -> AsyncFeed:
        async with limit:
            feed = await AsyncFeed.open(address, patience=PATIENCE, connect_timeout=PATIENCE)
            try:
                while True:
                    await feed.receive()
            except EndOfStream:
                return feed

    feeds = await asyncio.gather(*(open_and_finish() for _ in range(count)))
    try:
        yield
    finally:
        await asyncio.gather(*(feed.aclose() for feed in feeds))


HABITS = ("leaves", "is killed", "leaves", "takes a batch")
"""In turn. The first two go while their next batch is decoded."""
SHORTEST, STEP = 0.2, 0.1
"""Seconds of the shortest visit, and by how much others are longer."""


async def visit(address: str, seconds: float | None) -> int:
    """Be a client; return the number of batches that have come.

    Args:
        address: The dataset's.
        seconds: How long to stay; ``None``: until a batch has come.
    """
    came = 0
    with suppress(FeedError, EndOfStream):
        feed = await AsyncFeed.open(address, patience=PATIENCE, connect_timeout=PATIENCE)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    while seconds is not None or not came:
                        await feed.receive()
                        came += 1
        finally:
            await feed.aclose()
    return came


def _fork(address: str, number: int) -> tuple[int, float | None]:
    """Start a client; return its process, and the time at which it is to be killed."""
    habit = HABITS[number % len(HABITS)]
    seconds = SHORTEST + STEP * (number % 5)
    pid = os.fork()
    if not pid:
        stays = {"leaves": seconds, "is killed": 2 * PATIENCE, "takes a batch": None}[habit]
        os._exit(min(255, asyncio.run(visit(address, stays))))
    return pid, time.monotonic() + seconds if habit == "is killed" else None


def reap(here: dict[int, float | None]) -> int:
    """Kill those whose time it is, and forget those who have gone; return the batches they had."""
    came = 0
    for pid, ends in list(here.items()):
        if ends is not None and time.monotonic() > ends:
            os.kill(pid, signal.SIGKILL)
        gone, status = os.waitpid(pid, os.WNOHANG)
        if gone:
            del here[pid]
            came += max(0, os.waitstatus_to_exitcode(status))
    return came


def let_visit(address: str, count: int, most: int) -> None:
    """Let clients come, leave or be killed; print how many batches they have received together.

    Each is a process of its own, at the idle priority, and at most ``most`` are there at a time.
    """
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    here: dict[int, float | None] = {}
    number = batches = 0
    while number < count or here:
        if number < count and len(here) < most:
            pid, ends = _fork(address, number)
            here[pid] = ends
            number += 1
        batches += reap(here)
        time.sleep(0.01)
    print(batches)


# -- attackers, and a server that does nothing -----------------------------------------------------

ATTACKS = 64
"""Connections that an attacker has at a time."""
HALF_OPEN = 500
"""Connections of the attack that holds as many as it can: twice what a feeder keeps by default."""
SLOWLY = 0.05
"""Seconds between two bytes of the attack by slow bytes."""
SETTLE = 1.0
"""Seconds until an attack has all its connections."""
GARBAGE = random.Random(1).randbytes(4096)
HELLO = b"".join(
    Connection(Role.CLIENT).send(Hello(dataset="train", world_size=1, token="a wrong token"))
)

Place = tuple[str, int]


async def garbage(place: Place) -> None:
    """Send what is no frame, and read until the feeder hangs up."""
    await _say(place, [GARBAGE], 0.0)


async def wrong_token(place: Place) -> None:
    """Say HELLO with a wrong token, and hang up once that is refused."""
    async with _connect(place) as (reader, writer):
        writer.write(HELLO)
        await reader.read(1)


async def slow_bytes(place: Place) -> None:
    """Say HELLO byte by byte, and never its end."""
    await _say(place, [HELLO[i : i + 1] for i in range(len(HELLO) - 1)], SLOWLY)


async def half_open(place: Place) -> None:
    """Say nothing until the feeder hangs up."""
    await _say(place, [], 0.0)


async def connect(place: Place) -> None:
    """Connect and hang up at once."""
    async with _connect(place):
        pass


KINDS: dict[str, tuple[Callable[[Place], Awaitable[None]], int]] = {
    "garbage": (garbage, ATTACKS),
    "wrong tokens": (wrong_token, ATTACKS),
    "slow bytes": (slow_bytes, HALF_OPEN),
    "half-open": (half_open, HALF_OPEN),
    "connect and leave": (connect, ATTACKS),
}
"""Kinds of attacks, and with how many connections at a time."""


async def attack(kind: str, place: Place) -> None:
    """Print a line once the attack goes on, and the connections a second when the input ends."""
    go, at_once = KINDS[kind]
    done = 0

    async def again_and_again() -> None:
        nonlocal done
        while True:
            # uvloop's, for writing to a connection that the feeder has just cut
            with contextlib.suppress(OSError, RuntimeError):
                await go(place)
            done += 1
            await asyncio.sleep(0)

    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(again_and_again()) for _ in range(at_once)]
        await asyncio.sleep(SETTLE)
        print("attacking", flush=True)
        await asyncio.to_thread(sys.stdin.read)
        for task in tasks:
            task.cancel()
    print(done / (time.monotonic() - began))


async def _say(place: Place, pieces: Iterable[bytes], pause: float) -> None:
    async with _connect(place) as (reader, writer):
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(pause)
        await reader.read()


@asynccontextmanager
async def _connect(
    place: Place,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(*place)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


HANG_UP = 10.0
"""Seconds that the server waits for bytes, as a feeder does."""


class Sink(asyncio.Protocol):
    """A connection that ends with its first bytes, unless they come slowly, or in time."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.timer = asyncio.get_running_loop().call_later(HANG_UP, transport.close)

    def data_received(self, data: bytes) -> None:
        if len(data) > 1:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self.timer.cancel()


async def serve_sink() -> None:
    """Print the port of a server that does nothing, which shows what attackers alone cost."""
    server = await asyncio.get_running_loop().create_server(Sink, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)


# -- a trainer without data, and a feeder that says what it holds ----------------------------------


class Beat:
    """A running process that sleeps and computes, again and again, and reads nothing."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def count(self) -> int:
        """Return how often it has computed since its start."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"\n")
        return int(await self._process.stdout.readline())


@asynccontextmanager
async def beating(seconds: float) -> AsyncIterator[Beat]:
    """Run such a process while the block runs."""
    process = await asyncio.create_subprocess_exec(
        *program("beat", str(seconds)), cwd=ROOT, stdin=PIPE, stdout=PIPE
    )
    beat = Beat(process)
    await beat.count()
    try:
        yield beat
    finally:
        process.kill()
        await process.wait()


async def beat(seconds: float) -> None:
    """Sleep that long at a time; answer each line with the number of times; end with the input."""
    count = 0
    lines = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)

    async def answer() -> None:
        while await lines.readline():
            print(count, flush=True)

    asked = asyncio.create_task(answer())
    while not asked.done():
        await asyncio.sleep(seconds)
        count += 1


def report(feeder: Feeder) -> dict[str, Any]:
    """Return what this process holds now."""
    return {
        "connections": feeder.admission.clients,
        "megabytes": resident_megabytes(os.getpid()),
        "descriptors": descriptors(os.getpid()),
        "tasks": len(asyncio.all_tasks()),
        "threads": threading.active_count(),
    }


async def serve_feeder(settings: dict[str, Any]) -> None:
    dataset = await Dataset.open(validate(DatasetSettings, settings))
    async with Feeder({ENGINE_DATASET: dataset}) as feeder:
        address = await feeder.listen("tcp://127.0.0.1:0")
        print(json.dumps({"port": address.port}), flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(report(feeder)), flush=True)
    await dataset.aclose()


def program(*arguments: str) -> list[str]:
    """Return the command line of a program of this module."""
    return [sys.executable, "-m", "bench.crowd", *arguments]


PROGRAMS: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
    "attack": lambda kind, host, port: attack(kind, (host, int(port))),
    "beat": lambda seconds: beat(float(seconds)),
    "feeder": lambda settings: serve_feeder(json.loads(settings)),
    "sink": serve_sink,
}


def main(name: str, *arguments: str) -> None:
    if name == "visit":
        address, count, most = arguments
        let_visit(address, int(count), int(most))
    else:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(PROGRAMS[name](*arguments))


if __name__ == "__main__":
    main(*sys.argv[1:])
