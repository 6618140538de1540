"""One thread or task takes from a stream at a time; another that tries harms nothing."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

import streamrec as sr
from streamrec.errors import Busy
from streamrec.streams.state import Turn
from tests.forked_children import in_forked_child
from tests.pipeline.small_datasets import identities, write
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATIENCE = 20

# Python 3.12 and later warn of each fork of a process with several threads, as this one is.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


@pytest.fixture
def source(tmp_path: Path) -> str:
    return write(tmp_path / "raw", ((40,) * 8, (30,) * 8))


class Gate:
    """A ``transform`` that says that it was called, and waits until it is opened."""

    def __init__(self) -> None:
        self.entered, self._opened = threading.Event(), threading.Event()

    def __call__(self, batch: Any) -> Any:
        self.entered.set()
        assert self._opened.wait(PATIENCE)
        return batch

    def open(self) -> None:
        self._opened.set()


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open()


def opened(source: str, **values: Any) -> sr.Stream:
    return sr.open(source, batch_size=4, lanes=2, engine="thread", **values)


def whole(source: str) -> Any:
    with opened(source) as stream:
        return identities(list(stream))


def test_a_second_thread_is_refused(source: str, gate: Gate) -> None:
    stream = opened(source, transform=gate)
    with ThreadPoolExecutor(1) as thread, stream:
        first = thread.submit(next, stream)
        assert gate.entered.wait(PATIENCE)
        with pytest.raises(Busy, match="another thread or task"):
            next(stream)
        with pytest.raises(Busy), stream:
            pass
        gate.open()
        assert identities([first.result(PATIENCE), *stream]) == whole(source)


def test_threads_may_take_one_after_the_other(source: str) -> None:
    stream = opened(source)
    with ThreadPoolExecutor(1) as thread, stream:
        batches = [next(stream), thread.submit(next, stream).result(PATIENCE)]
        assert identities([*batches, *stream]) == whole(source)


def test_a_child_that_is_forked_meanwhile_has_its_turn(source: str, gate: Gate) -> None:
    stream = opened(source, transform=gate)
    with ThreadPoolExecutor(1) as thread, stream:
        first = thread.submit(next, stream)
        assert gate.entered.wait(PATIENCE)

        def take() -> Any:
            gate.open()
            return identities(list(stream))

        assert in_forked_child(take) == whole(source)
        gate.open()
        assert len(first.result(PATIENCE)) == 4


@asynchronous
async def test_a_second_task_is_refused(source: str, gate: Gate) -> None:
    async with opened(source, transform=gate) as stream:
        first = asyncio.create_task(anext(stream))
        assert await asyncio.to_thread(gate.entered.wait, PATIENCE)
        with pytest.raises(Busy, match="another thread or task"):
            await anext(stream)
        gate.open()
        batches = [await first, *[batch async for batch in stream]]
    assert identities(batches) == await asyncio.to_thread(whole, source)


@asynchronous
async def test_a_task_that_is_cancelled_leaves_its_turn(source: str, gate: Gate) -> None:
    async with opened(source, transform=gate) as stream:
        first = asyncio.create_task(anext(stream))
        assert await asyncio.to_thread(gate.entered.wait, PATIENCE)
        first.cancel()
        await asyncio.wait([first])
        gate.open()
        batches = [batch async for batch in stream]
    assert identities(batches) == await asyncio.to_thread(whole, source)


def test_a_record_that_another_thread_took(source: str) -> None:
    class Emptied(deque[Any]):
        """Rows as a thread sees them that looks just before the last one is taken."""

        def __len__(self) -> int:
            return 1

    with sr.open(source, lanes=2, engine="thread") as stream:
        first = next(stream)
        stream._cursor._rows = Emptied()
        with pytest.raises(Busy, match="another thread or task"):
            next(stream)
        stream._cursor._rows = deque()
        assert len([first, *stream]) == 16
        assert stream.statistics()["records"] == 16


def test_the_end_of_a_run_leaves_the_turn(source: str) -> None:
    with opened(source) as stream:
        assert identities(list(stream)) == whole(source)
        assert next(iter(stream)).epoch == 1


def test_nobody_waits_for_a_turn() -> None:
    turn = Turn()
    with turn, pytest.raises(Busy), turn:
        pass
    with turn:
        pass
