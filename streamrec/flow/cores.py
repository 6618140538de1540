"""The cores of a feeder, which its runs share by the time that each has used.

The idle threads of a pool take part in the many small pieces of one thread's work.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from concurrent.futures import wait
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future, ThreadPoolExecutor


def share_work(
    threads: ThreadPoolExecutor,
    most: int,
    work: Callable[[int], None],
    count: int,
    at_once: int = sys.maxsize,
) -> None:
    """Call ``work`` with every number of ``range(count)``, helped by the idle threads of a pool.

    The calling thread, which may be of the pool itself, does the work too, so it never waits for a
    thread that is not free. After a failure no more work is begun. Numbers are handed out in order,
    so the lowest one that fails is always the same.

    Args:
        threads: The pool.
        most: The most threads that help.
        work: One piece of the work.
        count: The number of pieces.
        at_once: The most of them at once, in the calling thread too.

    Raises:
        Exception: The error of the failed call with the lowest number.
    """
    numbers, taking = iter(range(count)), threading.Lock()
    failures: dict[int, Exception] = {}

    def take() -> int | None:
        # Without an interpreter's lock, threads that share an iterator get numbers twice.
        with taking:
            return next(numbers, None)

    def pull() -> None:
        for number in iter(take, None):
            try:
                work(number)
            except Exception as error:  # noqa: BLE001 - it is raised in the caller's thread
                failures[number] = error
            if failures:
                return

    helpers: list[Future[None]] = []
    with suppress(RuntimeError):  # the pool shuts down: this thread does the work alone
        for _ in range(min(most, count - 1, at_once - 1)):
            helpers.append(threads.submit(pull))  # noqa: PERF401 - it may end early
    try:
        pull()
    finally:
        wait([helper for helper in helpers if not helper.cancel()])
    if failures:
        raise failures[min(failures)]


BEHIND = 10
"""Niceness of decoding threads beyond that of their process. A thread that is ahead by 10 gets nine
times as much of a core: an event loop beside busy decoders runs nearly as if it were alone."""


class Cores:
    """The cores on which threads of many runs work: only so many threads at a time.

    Of the runs that wait, the one that has used the least time goes first. So a run that needs
    little waits for one piece of somebody else's work at most, however many others are busy. A run
    that was idle saves up nothing: it begins again level with those that are served.

    Args:
        at_once: The most threads at a time.
        clock: Gives the time in seconds. That of the thread alone would take a system call, twice
            for each picture.
    """

    def __init__(self, at_once: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self._free = at_once
        self._clock = clock
        self._level = 0.0
        """The seconds that the run which was served last had used by then."""
        self._waiting: dict[threading.Lock, CoreShare] = {}  # in the order of their arrival
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<Cores, {self._free} free, {len(self._waiting)} threads wait>"

    def share(self) -> CoreShare:
        """Return the share of another run."""
        return CoreShare(self)

    def enter(self, share: CoreShare) -> float:
        """Wait for a core; return the time."""
        with self._lock:
            if not share.threads:
                share.used = max(share.used, self._level)
            share.threads += 1
            if self._free:
                self._free -= 1
                # It never goes back: a run that begins is level with those that are served.
                self._level = max(self._level, share.used)
                return self._clock()
            turn = threading.Lock()
            turn.acquire()
            self._waiting[turn] = share
        turn.acquire()  # the thread that leaves its core to this one releases it
        return self._clock()

    def leave(self, share: CoreShare, began: float) -> None:
        """Leave the core to the next thread."""
        used = self._clock() - began
        with self._lock:
            share.used += used
            share.threads -= 1
            if not self._waiting:
                self._free += 1
                return
            # Of equals the first that came, as min takes the first.
            turn = min(self._waiting, key=lambda waiting: self._waiting[waiting].used)
            self._level = max(self._level, self._waiting.pop(turn).used)
            turn.release()


class CoreShare:
    """The share of one run.

    Args:
        cores: The cores that runs share.
    """

    def __init__(self, cores: Cores) -> None:
        self._cores = cores
        self.used = 0.0
        """Seconds of cores, as if it had been busy whenever it was idle."""
        self.threads = 0
        """Its threads that work or wait."""

    @contextmanager
    def working(self) -> Iterator[None]:
        """Work on a core while the block runs, as soon as it is this run's turn.

        The block must wait for nobody: others could do nothing meanwhile.
        """
        began = self._cores.enter(self)
        try:
            yield
        finally:
            self._cores.leave(self, began)


def step_back() -> None:
    """Let the calling thread yield to those of the process that do not; only Linux can."""
    if sys.platform != "linux":
        return
    thread = threading.get_native_id()
    niceness = os.getpriority(os.PRIO_PROCESS, thread) + BEHIND
    os.setpriority(os.PRIO_PROCESS, thread, niceness)  # the system limits it to 19
