from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from streamrec.flow.cores import BEHIND, Cores, CoreShare, share_work, step_back

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def threads_work_sharing() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(3) as pool:
        yield pool


@pytest.mark.parametrize("most", [0, 1, 3])
@pytest.mark.parametrize("count", [0, 1, 2, 100])
def test_every_number_once(threads_work_sharing: ThreadPoolExecutor, most: int, count: int) -> None:
    done: list[int] = []
    share_work(threads_work_sharing, most, done.append, count)
    assert sorted(done) == list(range(count))


def test_others_help(threads_work_sharing: ThreadPoolExecutor) -> None:
    # Nobody passes before all four are there.
    barrier = threading.Barrier(4)

    def work(number: int) -> None:
        barrier.wait()

    share_work(threads_work_sharing, 3, work, 4)


def test_who_works_in_the_pool_waits_for_nobody(threads_work_sharing: ThreadPoolExecutor) -> None:
    done: list[int] = []
    sharing = [
        threads_work_sharing.submit(share_work, threads_work_sharing, 3, done.append, 50)
        for _ in range(9)
    ]
    for future in sharing:
        future.result()
    assert sorted(done) == sorted(list(range(50)) * 9)


def test_the_lowest_failure_is_raised(threads_work_sharing: ThreadPoolExecutor) -> None:
    others_failed = threading.Event()

    def work(number: int) -> None:
        if number == 0:
            others_failed.wait()
        if number < 3:
            others_failed.set()
            raise ValueError(number)

    for _ in range(20):
        others_failed.clear()
        with pytest.raises(ValueError, match=r"^0$"):
            share_work(threads_work_sharing, 2, work, 10)


def test_after_a_failure_nothing_more_is_begun(threads_work_sharing: ThreadPoolExecutor) -> None:
    done: list[int] = []

    def work(number: int) -> None:
        done.append(number)
        if number == 4:
            raise ValueError

    with pytest.raises(ValueError):
        share_work(threads_work_sharing, 0, work, 1000)
    assert done == [0, 1, 2, 3, 4]


def test_a_pool_that_is_shut_down(threads_work_sharing: ThreadPoolExecutor) -> None:
    threads_work_sharing.shutdown()
    done: list[int] = []
    share_work(threads_work_sharing, 3, done.append, 5)
    assert done == [0, 1, 2, 3, 4]


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
