"""One taker at a time: two that wait for the next batch of a stream would both get the same one."""

from __future__ import annotations

import threading

from streamrec.errors import Busy


class Turn:
    """A lock for one thread or task at a time; another is refused, and never waits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise busy()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def busy() -> Busy:
    """Return the error for a thread or task that takes while another does."""
    return Busy(
        "another thread or task is taking from this stream at this moment; let one of them take "
        "the batches and hand them on, or let them take turns"
    )
