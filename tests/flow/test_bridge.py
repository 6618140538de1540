from __future__ import annotations

import asyncio
import gc
import inspect
import subprocess
import sys
import threading

import pytest

from streamrec.errors import ConfigError
from streamrec.flow.bridge import Bridge, Recall, new_event_loop, on_recall
from tests.forked_children import in_forked_child

# Python 3.12 and later warn of each fork of a process with several threads, as this one is.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


async def where() -> str:
    await asyncio.sleep(0)
    return threading.current_thread().name


def test_greenlets_in_the_place_of_threads_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: object) -> int:
        return 0

    start.__module__ = "gevent.thread"
    monkeypatch.setattr("_thread.start_new_thread", start)
    with pytest.raises(ConfigError, match='read with engine="process"'):
        Bridge()


def test_runs_in_a_thread_of_its_own() -> None:
    before = set(threading.enumerate())
    bridge = Bridge()
    assert bridge.call(where()) == "streamrec-bridge"
    bridge.close()
    left = {thread.name for thread in set(threading.enumerate()) - before}
    assert "streamrec-bridge" not in left


def test_a_loop_takes_no_descriptor_of_the_standard_streams() -> None:
    """A library that prints would write into its sockets."""
    program = (
        "import os; from streamrec.flow.bridge import new_event_loop; os.closerange(0, 3); "
        "loop = new_event_loop(); null = os.stat(os.devnull); "
        "os._exit(sum(os.path.samestat(os.fstat(number), null) for number in range(3)))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 3


def test_nothing_is_left_of_a_call_of_a_bridge_that_is_closed() -> None:
    bridge = Bridge()
    bridge.close()
    coroutine = where()
    with pytest.raises(RuntimeError):
        bridge.call(coroutine)
    assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED


def test_a_forked_child_is_refused_and_does_not_wait() -> None:
    with Bridge() as bridge:
        error = in_forked_child(lambda: bridge.call(where()))
        assert isinstance(error, ConfigError)
        assert "this process was forked" in str(error)
        assert in_forked_child(bridge.close) is None
        assert bridge.call(where()) == "streamrec-bridge"


def test_errors_come_back() -> None:
    async def fail() -> None:
        raise KeyError("cause")

    bridge = Bridge()
    with pytest.raises(KeyError, match="cause"):
        bridge.call(fail())
    bridge.close()


def test_closing_twice_and_with_a_task_under_way() -> None:
    cancelled = threading.Event()

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    tasks: set[asyncio.Task[None]] = set()

    async def start() -> None:
        tasks.add(asyncio.create_task(forever()))
        await asyncio.sleep(0)

    bridge = Bridge()
    bridge.call(start())
    bridge.close()
    bridge.close()
    assert cancelled.is_set()


def test_a_with_block_closes_it() -> None:
    with Bridge() as bridge:
        assert bridge.call(where()) == "streamrec-bridge"
    assert not bridge._thread.is_alive()


def test_what_a_forgotten_task_raised_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise KeyError("cause")

    async def forget() -> None:
        task = asyncio.create_task(fail())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        del task

    with Bridge() as bridge:
        bridge.call(forget())
        gc.collect()
    assert "cause" in caplog.text


def test_what_the_end_of_the_interpreter_breaks_is_not() -> None:
    """The interpreter refuses new work in thread pools before the bridge can be closed."""
    code = """
import asyncio, atexit
from streamrec.flow.bridge import Bridge

async def work():
    while True:
        await asyncio.get_running_loop().run_in_executor(None, int)

async def start():
    tasks.add(asyncio.create_task(work()))

tasks = set()
bridge = Bridge()
bridge.call(start())
atexit.register(bridge.close)
"""
    result = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_without_uvloop_asyncios_own_loop_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    loop = new_event_loop()
    loop.close()
    assert isinstance(loop, asyncio.BaseEventLoop)


def test_bridges_may_be_closed_in_their_own_threads() -> None:
    """As the garbage collector does with streams that are dropped."""
    bridges = [Bridge(), Bridge()]

    async def close() -> None:
        for bridge in bridges:
            bridge.close()

    bridges[0].call(close())
    for bridge in bridges:
        bridge._thread.join(60)
        assert not bridge._thread.is_alive()
        bridge.close()


def test_tasks_that_only_the_closing_thread_held_are_cancelled() -> None:
    """A loop refers to its tasks weakly, and the collector may come before the loop does."""
    ended: list[type[BaseException]] = []

    async def waiting() -> None:
        try:
            await asyncio.Event().wait()
        except BaseException as error:
            ended.append(type(error))
            raise

    async def started() -> asyncio.Task[None]:
        task = asyncio.create_task(waiting())
        await asyncio.sleep(0)
        return task

    async def closed(bridge: Bridge) -> None:
        bridge.close()

    bridge, busy = Bridge(), threading.Event()
    task = bridge.call(started())
    bridge._loop.call_soon_threadsafe(busy.wait)
    with Bridge() as other:
        other.call(closed(bridge))  # no bridge waits for another one to end
    del task
    gc.collect()
    busy.set()
    bridge._thread.join()
    assert ended == [asyncio.CancelledError]


def test_an_end_that_is_not_waited_for() -> None:
    """The collector may close a bridge where it holds a lock that the bridge's thread needs."""
    bridge, gate = Bridge(), threading.Event()
    begun = threading.Event()

    async def leave_slowly() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.to_thread(gate.wait)

    async def begin() -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(leave_slowly())

    task = bridge.call(begin())
    bridge.call(asyncio.sleep(0))
    assert begun.is_set()
    bridge.end()
    assert not task.done()
    gate.set()
    bridge.close()
    assert task.done()


def test_it_ends_a_wait_of_another_thread() -> None:
    recall, waits, ended = Recall(), threading.Event(), threading.Event()

    def work() -> None:
        with recall.covering():
            on_recall(ended.set)
            waits.set()
            ended.wait()

    thread = threading.Thread(target=work)
    thread.start()
    waits.wait()
    recall.recall()
    thread.join()
    assert ended.is_set()


def test_it_ends_waits_that_would_begin() -> None:
    recall, ended = Recall(), threading.Event()
    recall.recall()
    with recall.covering():
        on_recall(ended.set)
        assert ended.is_set()


def test_behind_the_work_nothing_is_ended() -> None:
    recall, ended = Recall(), threading.Event()
    with recall.covering():
        on_recall(ended.set)
    recall.recall()
    on_recall(ended.set)
    assert not ended.is_set()
