"""Many small pieces of one thread's work, shared with the idle threads of a pool."""

from __future__ import annotations

import sys
from concurrent.futures import wait
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
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
    numbers = iter(range(count))  # next() on it is atomic under the interpreter's lock
    failures: dict[int, Exception] = {}

    def pull() -> None:
        for number in numbers:
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
