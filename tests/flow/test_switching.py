from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from streamrec.flow.switching import SHORT, short_switch_interval

if TYPE_CHECKING:
    from collections.abc import Iterator

LONG = 0.005


@pytest.fixture(autouse=True)
def interval() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(LONG)
    yield
    sys.setswitchinterval(before)


def test_is_short_inside_only() -> None:
    with short_switch_interval:
        assert sys.getswitchinterval() == SHORT
        with short_switch_interval:
            assert sys.getswitchinterval() == SHORT
        assert sys.getswitchinterval() == SHORT
    assert sys.getswitchinterval() == LONG


def test_comes_back_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), short_switch_interval:
        _ = 1 / 0
    assert sys.getswitchinterval() == LONG


@pytest.mark.parametrize("shorter", [SHORT, SHORT / 2])
def test_a_shorter_one_stays(shorter: float) -> None:
    sys.setswitchinterval(shorter)
    with short_switch_interval:
        assert sys.getswitchinterval() == shorter
    assert sys.getswitchinterval() == shorter


@pytest.mark.parametrize("chosen", [SHORT / 2, SHORT * 2])
def test_what_the_program_sets_meanwhile_stays(chosen: float) -> None:
    with short_switch_interval:
        sys.setswitchinterval(chosen)
    assert sys.getswitchinterval() == chosen


def test_the_last_of_several_tasks_puts_it_back() -> None:
    async def wait(event: asyncio.Event) -> None:
        with short_switch_interval:
            await event.wait()

    async def run() -> None:
        events = [asyncio.Event(), asyncio.Event()]
        tasks = [asyncio.ensure_future(wait(event)) for event in events]
        await asyncio.sleep(0)
        for event, task in zip(events, tasks, strict=True):
            assert sys.getswitchinterval() == SHORT
            event.set()
            await task

    asyncio.run(run())
    assert sys.getswitchinterval() == LONG


FORKS = """
import os, threading
from streamrec.flow.switching import short_switch_interval

def come_and_go():
    while not ended:
        with short_switch_interval:
            pass

ended = False
thread = threading.Thread(target=come_and_go)
thread.start()
try:
    for _ in range(200):
        if not (child := os.fork()):
            with short_switch_interval:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
finally:
    ended = True
    thread.join()
"""


def test_a_fork_in_the_midst_of_a_change_holds_nobody_up() -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORKS], check=True, timeout=60)


def test_threads_that_come_and_go_leave_nothing() -> None:
    def come_and_go() -> None:
        for _ in range(2000):
            with short_switch_interval:
                pass

    threads = [threading.Thread(target=come_and_go) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sys.getswitchinterval() == LONG
