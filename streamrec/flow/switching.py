"""A shorter switch interval of the interpreter's lock while a consumer waits for a batch.

A thread that asks for the lock lets the holder go on for the switch interval, 5 ms unless the
program sets another (``sys.setswitchinterval``). Beside a thread that never releases the lock by
itself, that much is lost after each wait for the network or for another thread: about a hundred
times before the first batch. The interval is one for the whole process, so it is shortened only
while a consumer waits. Other threads lose nothing that could be measured: two busy ones do the same
work in the same time.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Self

__all__ = ["SHORT", "short_switch_interval"]

SHORT = 0.001
"""Seconds. Shorter intervals gained nothing more."""


class _ShortSwitchInterval:
    """A context manager for many threads and tasks; the last to leave restores the interval.

    A shorter interval stays as it is, and so does one that the program sets meanwhile.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._before = SHORT
        # A fork during a change would otherwise leave the child with a lock that nobody releases.
        free = self._lock.release
        os.register_at_fork(before=self._lock.acquire, after_in_parent=free, after_in_child=free)

    def __enter__(self) -> Self:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self._before = sys.getswitchinterval()
                sys.setswitchinterval(min(self._before, SHORT))
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside and sys.getswitchinterval() == SHORT:
                sys.setswitchinterval(self._before)


short_switch_interval = _ShortSwitchInterval()
"""The only instance: a process has one interval."""
