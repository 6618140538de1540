"""Many small pieces of work of one thread, shared with whatever threads of a pool are idle."""

from __future__ import annotations

from concurrent.futures import wait
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future, ThreadPoolExecutor

__all__ = ["WorkSharing"]


class WorkSharing:
    """Lends the threads of a pool, also to who works in one of them.

    Who shares work does it, too, so nobody ever waits for a thread that is not there.

    Args:
        threads: The pool.
        most: How many may help at a time.
    """

    def __init__(self, threads: ThreadPoolExecutor, most: int) -> None:
        self._threads = threads
        self._most = most

    def share(self, work: Callable[[int], None], count: int) -> None:
        """Call ``work`` with every number from 0 to below ``count``, in several threads.

        After a failure no more work is begun. Numbers are given out in their order, so the lowest
        that fails is always the same.

        Raises:
            Exception: What the call with the lowest number raised, of those that failed.
        """
        numbers = iter(range(count))  # whose steps the interpreter does not interleave
        failures: dict[int, Exception] = {}

        def pull() -> None:
            for number in numbers:
                try:
                    work(number)
                except Exception as error:  # noqa: BLE001 - it is raised in the caller's thread
                    failures[number] = error
                if failures:
                    return

        helpers = self._helpers(pull, count - 1)
        try:
            pull()
        finally:
            wait([helper for helper in helpers if not helper.cancel()])
        if failures:
            raise failures[min(failures)]

    def _helpers(self, pull: Callable[[], None], useful: int) -> list[Future[None]]:
        helpers: list[Future[None]] = []
        try:
            for _ in range(min(self._most, useful)):
                helpers.append(self._threads.submit(pull))  # noqa: PERF401 - it may end early
        except RuntimeError:
            pass  # the pool shuts down: what is begun is ended by this thread alone
        return helpers
