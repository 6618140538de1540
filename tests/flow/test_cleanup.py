from __future__ import annotations

import asyncio
import gc
import os
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import aiofiles
import pytest

from streamrec.flow.cleanup import (
    apart,
    end,
    end_threads,
    finish,
    start_threads,
    until_done,
    wait_out,
)
from tests.cancellation import TURNS, SlowlyCancelled, cancel_in_every_turn
from tests.feeder.support import eventually
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Thing:
    """Something to be closed, which takes a while."""

    def __init__(self) -> None:
        self.closed = False

    async def aclose(self) -> str:
        for _ in range(TURNS):
            await asyncio.sleep(0)
        self.closed = True
        return "closed"


@asynchronous
async def test_a_cleanup_gives_what_it_returns() -> None:
    assert await finish(Thing().aclose()) == "closed"


@asynchronous
async def test_a_cleanup_that_fails_raises() -> None:
    async def fail() -> None:
        raise KeyError("cause")

    with pytest.raises(KeyError, match="cause"):
        await finish(fail())


@pytest.mark.parametrize("after", [0, 1, TURNS // 2])
@asynchronous
async def test_a_cleanup_runs_to_its_end(after: int) -> None:
    thing = Thing()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await finish(thing.aclose())

    await cancel_in_every_turn(work(), after + 1)
    assert thing.closed


@asynchronous
async def test_within_a_time_limit_a_cleanup_ends_and_the_limit_is_told() -> None:
    thing = Thing()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await finish(thing.aclose())
    assert thing.closed


def test_a_loop_that_ends_waits_for_a_cleanup() -> None:
    thing, started = Thing(), asyncio.Event()

    async def clean_up() -> None:
        started.set()
        await finish(thing.aclose())

    async def main() -> None:
        cleaning = asyncio.create_task(clean_up())
        await started.wait()
        await asyncio.sleep(0)
        assert not cleaning.done()

    asyncio.run(main())
    assert thing.closed


@asynchronous
async def test_ending_tasks_returns_when_they_have_ended() -> None:
    tasks = [SlowlyCancelled(), SlowlyCancelled()]
    await asyncio.sleep(0)
    await end(*(one.task for one in tasks))
    assert all(one.ended for one in tasks)
    await end()


@asynchronous
async def test_ending_tasks_is_not_cut_short() -> None:
    one = SlowlyCancelled()
    await asyncio.sleep(0)
    await cancel_in_every_turn(end(one.task))
    assert one.ended


@asynchronous
async def test_a_task_that_fails_as_it_ends_is_no_failure_of_who_ends_it() -> None:
    async def fail() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise KeyError("cause")

    task = asyncio.create_task(fail())
    await asyncio.sleep(0)
    await end(task)
    assert isinstance(task.exception(), KeyError)


@asynchronous
async def test_an_ended_task_keeps_nothing_of_what_it_worked_with() -> None:
    async def work(thing: Thing) -> None:
        await asyncio.Event().wait()
        thing.closed = True

    thing = Thing()
    held = weakref.ref(thing)
    task = asyncio.create_task(work(thing))
    del thing
    await asyncio.sleep(0)
    gc.disable()
    try:
        await end(task)
        assert held() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "settle",
    [
        lambda future: future.set_result(None),
        lambda future: future.set_exception(KeyError("cause")),
        lambda future: future.cancel(),
    ],
)
@asynchronous
async def test_futures_are_waited_for_whatever_becomes_of_them(
    settle: Callable[[asyncio.Future[None]], object],
) -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(until_done(future))
    await asyncio.sleep(0)
    for _ in range(3):
        waiting.cancel()
        await asyncio.sleep(0)
    assert not waiting.done()
    assert not future.done(), "who waits is cancelled, not what is waited for"
    settle(future)
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await until_done(future)
    assert future.cancelled() or future.exception() or future.result() is None


@pytest.mark.parametrize("cancel", [False, True])
@asynchronous
async def test_threads_end_while_the_loop_turns(cancel: bool) -> None:
    begun, gate, done = threading.Event(), threading.Event(), threading.Event()
    threads = ThreadPoolExecutor(1)

    def run() -> bool:
        begun.set()
        return gate.wait(60)

    running = threads.submit(run)
    waiting = threads.submit(done.set)
    await asyncio.to_thread(begun.wait)
    ending = asyncio.create_task(end_threads(threads, cancel=cancel))
    for _ in range(5):
        await asyncio.sleep(0)
        ending.cancel()
    assert not ending.done(), "what has begun is waited for, also by who is cancelled"
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert running.result(0)
    assert waiting.cancelled() == cancel
    assert done.is_set() != cancel


@asynchronous
async def test_calls_apart_are_made_in_their_order_in_another_thread() -> None:
    made: list[tuple[int, int]] = []
    await apart(*(partial(lambda n: made.append((n, threading.get_ident())), n) for n in range(3)))
    assert [number for number, _ in made] == [0, 1, 2]
    assert len({thread for _, thread in made} | {threading.get_ident()}) == 2


@pytest.mark.parametrize(
    "place", ["streamrec.flow.cleanup._thread.start_new_thread", "threading.Thread.start"]
)
@asynchronous
async def test_without_another_thread_the_calls_are_made_all_the_same(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    made: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(place, refuse)
        await apart(lambda: made.append(1))
    assert made == [1]


@asynchronous
async def test_a_call_apart_leaves_no_thread_in_the_list() -> None:
    before = set(threading.enumerate())
    await apart(threading.current_thread)
    await eventually(lambda: set(threading.enumerate()) <= before)


@asynchronous
async def test_all_threads_of_an_executor_start_apart_from_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    starting: list[int] = []
    start = threading.Thread.start

    def note(thread: threading.Thread) -> None:
        starting.append(threading.get_ident())
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", note)
    with ThreadPoolExecutor(3) as executor:
        await start_threads(executor, 3)
        await asyncio.gather(*(asyncio.wrap_future(executor.submit(int)) for _ in range(9)))
    assert len(starting) == 4, "three of the executor, and the one that waits for them"
    assert threading.get_ident() not in starting


@asynchronous
async def test_a_system_without_more_threads_has_some_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start = threading.Thread.start
    left = iter([True, True])

    def start_some(thread: threading.Thread) -> None:
        if not next(left, False):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_some)
    executor = ThreadPoolExecutor(3)
    await start_threads(executor, 3)
    monkeypatch.undo()
    assert await asyncio.wrap_future(executor.submit(int)) == 0
    await end_threads(executor)


@asynchronous
async def test_a_cancelled_read_of_aiofiles_is_waited_for(tmp_path: Path) -> None:
    begun, go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def open_late(path: str, flags: int) -> int:
        loop.call_soon_threadsafe(begun.set)
        go_on.wait()
        return os.open(path, flags)

    async def read() -> bytes:
        async with aiofiles.open(tmp_path / "x", "rb", opener=open_late) as file:
            found.append(await file.read())
            return found[0]

    found: list[bytes] = []
    (tmp_path / "x").write_bytes(b"abc")
    task = asyncio.create_task(wait_out(read()))
    await begun.wait()
    every = asyncio.all_tasks() - {asyncio.current_task()}
    for one in every:  # as the end of a loop does
        one.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert found == [b"abc"]
