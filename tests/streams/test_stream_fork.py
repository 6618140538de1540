"""A stream on both sides of a fork: the child opens it anew, and the parent notices nothing."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import multiprocessing
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import uvloop

import streamrec as sr
from streamrec.feeder.client.blocking import BlockingConnection
from tests.by_day import at_night
from tests.feeder.support import serving
from tests.forked_children import PATIENCE, in_forked_child
from tests.pipeline.small_datasets import identities, settings_of, write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from streamrec.streams.stream import Stream

# Python 3.12 and later warn of each fork of a process with several threads, as this one is.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

SHARDS = ((40,) * 13, (), (30,) * 8, (500,) * 5)
READERS: dict[str, dict[str, Any]] = {
    "thread": {"engine": "thread"},
    "process": {"engine": "process"},
    "both": {},
    "feeder": {},
}


@pytest.fixture
def source(tmp_path: Path) -> str:
    return write(tmp_path / "raw", SHARDS)


@pytest.fixture(params=READERS)
def opened(request: pytest.FixtureRequest, source: str) -> Iterator[Callable[..., Stream]]:
    """Yield a function that opens streams of one reader; close them after the test."""
    with contextlib.ExitStack() as stack:

        def open_stream(batch_size: int | None = 4) -> Stream:
            if request.param == "feeder":
                settings = settings_of(source, batch_size=batch_size, lanes=4)
                address = stack.enter_context(serving(settings))
                stream = sr.connect(f"{address}/data", rank=0, world_size=1)
            else:
                values = {"batch_size": batch_size, "lanes": 4, **READERS[request.param]}
                stream = sr.open(source, **values)
            stack.callback(stream.close)
            return stream

        yield open_stream


def whole(source: str, batch_size: int | None = 4) -> list[Any]:
    with sr.open(source, batch_size=batch_size, lanes=4, engine="thread") as stream:
        return list(stream)


def rest(stream: Stream) -> Any:
    with stream:
        return identities(list(stream))


@pytest.mark.parametrize("k", [at_night(0), 3])
def test_both_go_on_at_the_same_place(opened: Callable[..., Stream], source: str, k: int) -> None:
    expected = whole(source)
    with opened() as stream:
        head = list(sr.take(stream, k))
        assert in_forked_child(lambda: rest(stream)) == identities(expected[k:])
        assert in_forked_child(lambda: rest(stream)) == identities(expected[k:])
        assert identities(head + list(stream)) == identities(expected)


def test_single_records_that_wait_come_again(opened: Callable[..., Stream], source: str) -> None:
    expected = whole(source, None)
    with opened(None) as stream:
        head = list(sr.take(stream, 3))
        assert in_forked_child(lambda: (stream.state_dict()["step"], list(stream))) == (
            3,
            expected[3:],
        )
        assert head + list(stream) == expected


def test_rows_that_wait_are_read_anew(opened: Callable[..., Stream]) -> None:
    """They may view memory that the parent gives back, and that another batch fills."""
    with opened(None) as stream:
        while not stream._cursor.rows:
            next(stream)
        assert in_forked_child(lambda: stream._cursor.rows) == 0
        assert stream._cursor.rows > 0


def test_the_next_epoch_is_the_childs_too(opened: Callable[..., Stream]) -> None:
    with opened() as stream:
        list(stream)
        epochs = in_forked_child(lambda: {batch.epoch for batch in stream})
        assert epochs == {batch.epoch for batch in stream} == {1}


def test_the_child_lets_go_of_the_connection(opened: Callable[..., Stream]) -> None:
    """Else the other end would not notice that the parent has closed it."""
    with opened() as stream:
        list(sr.take(stream, 1))
        open_here = [c for c in gc.get_objects() if type(c) is BlockingConnection]
        sockets = [c._socket for c in open_here if c._socket.fileno() >= 0]
        assert in_forked_child(lambda: {sock.fileno() for sock in sockets}) <= {-1}
        assert all(sock.fileno() >= 0 for sock in sockets)


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("reader", ["loop", "feeder"])
def test_in_asyncio(source: str, reader: str, factory: Any) -> None:
    async def remainder(stream: Stream) -> Any:
        async with stream:
            return identities([batch async for batch in stream])

    async def main(stream: Stream) -> None:
        async with stream:
            head = [batch async for batch in sr.take(stream, 3)]
            tail = in_forked_child(lambda: asyncio.run(remainder(stream)))
            assert tail == identities(expected[3:])
            assert identities(head) + await remainder(stream) == identities(expected)

    expected = whole(source)
    with contextlib.ExitStack() as stack:
        stream = sr.open(source, batch_size=4, lanes=4)
        if reader == "feeder":
            address = stack.enter_context(serving(settings_of(source, batch_size=4, lanes=4)))
            stream = sr.connect(f"{address}/data", rank=0, world_size=1)
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(main(stream))


def test_in_a_process_of_multiprocessing(opened: Callable[..., Stream], source: str) -> None:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    with opened() as stream:
        head = list(sr.take(stream, 2))
        process = context.Process(target=lambda: theirs.send(rest(stream)))
        process.start()
        assert ours.poll(PATIENCE)
        assert ours.recv() == identities(whole(source)[2:])
        process.join()
        assert identities(head + list(stream)) == identities(whole(source))


PROGRAM = """
import os, sys
import streamrec as sr

source, engine = sys.argv[1:]
stream = sr.open(source, batch_size=4, lanes=4, engine=engine)
count = sum(len(batch) for batch in sr.take(stream, 2))
records = sr.read_records(source.replace("part-*", "part-00000"))
next(records)
child = os.fork()
if not child:
    sys.exit(sum(len(batch) for batch in stream) != 26 - count)
assert os.waitpid(child, 0)[1] == 0
print(count + sum(len(batch) for batch in stream), 1 + len(list(records)))
"""


@pytest.mark.parametrize("engine", ["thread", "process"])
def test_a_child_that_ends_as_programs_end(source: str, engine: str) -> None:
    """Its interpreter forgets all that it has, the parent's event loop included."""
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, source, engine]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.split(), done.stderr) == (["26", "13"], "")
