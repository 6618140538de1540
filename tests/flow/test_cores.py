from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from streamrec.flow.cores import BEHIND, Cores, CoreShare, step_back

if TYPE_CHECKING:
    from collections.abc import Iterator


class Clock:
    """A clock that stands still unless it is told to go on."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as pool:
        yield pool


def until_waiting(cores: Cores, count: int) -> None:
    """Return once so many threads wait for a core."""
    while len(cores._waiting) < count:
        os.sched_yield()


class Turns:
    """The order in which shares get one core, each for the seconds that its pieces take."""

    def __init__(self, threads: ThreadPoolExecutor) -> None:
        self.clock = Clock()
        self.cores = Cores(1, self.clock)
        self.order: list[str] = []
        self._threads = threads

    def submit(self, name: str, share: CoreShare, seconds: float) -> None:
        """Have a piece of work wait for its turn."""
        waiting = len(self.cores._waiting)
        self._threads.submit(self._work, name, share, seconds)
        until_waiting(self.cores, waiting + 1)

    def _work(self, name: str, share: CoreShare, seconds: float) -> None:
        with share.working():
            self.order.append(name)
            self.clock.seconds += seconds


def test_the_share_that_has_used_the_least_goes_first(threads: ThreadPoolExecutor) -> None:
    turns = Turns(threads)
    large, small = turns.cores.share(), turns.cores.share()
    with turns.cores.share().working():
        for _ in range(4):
            turns.submit("large", large, 10.0)
        for _ in range(3):
            turns.submit("small", small, 1.0)
    threads.shutdown()
    assert turns.order == ["large", "small", "small", "small", "large", "large", "large"]


def test_equal_shares_take_turns(threads: ThreadPoolExecutor) -> None:
    turns = Turns(threads)
    shares = {name: turns.cores.share() for name in "abc"}
    with turns.cores.share().working():
        for name in "aaabbbccc":
            turns.submit(name, shares[name], 1.0)
    threads.shutdown()
    assert turns.order == list("abcabcabc")


def test_an_idle_share_saves_up_nothing(threads: ThreadPoolExecutor) -> None:
    turns = Turns(threads)
    busy, idle = turns.cores.share(), turns.cores.share()
    for _ in range(5):
        with busy.working():
            turns.clock.seconds += 1.0
    with busy.working():
        for _ in range(2):
            turns.submit("idle", idle, 1.0)
            turns.submit("busy", busy, 1.0)
    threads.shutdown()
    assert turns.order == ["idle", "busy", "idle", "busy"]


def test_only_so_many_threads_work_at_a_time(threads: ThreadPoolExecutor) -> None:
    cores, lock = Cores(3), threading.Lock()
    share = cores.share()
    counts = [0]

    def work(_: int) -> None:
        with share.working():
            with lock:
                counts.append(counts[-1] + 1)
            os.sched_yield()
            with lock:
                counts.append(counts[-1] - 1)

    list(threads.map(work, range(200)))
    assert max(counts) <= 3
    assert (repr(cores), share.threads) == ("<Cores, 3 free, 0 threads wait>", 0)


def test_work_that_fails_leaves_its_core() -> None:
    share = Cores(1).share()
    for _ in range(2):
        with pytest.raises(ValueError, match=r"^broken$"), share.working():
            raise ValueError("broken")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has priorities of threads")
def test_a_thread_steps_back_behind_its_process() -> None:
    def niceness() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    with ThreadPoolExecutor(1, initializer=step_back) as pool:
        behind = pool.submit(niceness).result()
    assert behind == min(19, niceness() + BEHIND)
