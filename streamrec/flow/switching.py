"""The interpreter's lock changes hands sooner while somebody waits for a batch.

Who asks for the lock lets the thread that has it go on for the switch interval, 5 ms unless the
program sets another (``sys.setswitchinterval``). Beside a thread that never lets go by itself, that
much is lost after each wait for the network or for another thread, and until the first batch is
there that is a hundred times. There is one interval for the whole process, so it is shortened only
while somebody waits. It costs the other threads nothing that could be measured: two of them that
never stop do the same work in the same time.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Self

__all__ = ["SHORT", "short_switch_interval"]

SHORT = 0.001
"""Seconds. Shorter ones gained nothing more."""


class _ShortSwitchInterval:
    """A context for any number of threads and tasks at once; the last to leave puts it back.

    An interval that is shorter already stays, and so does one that the program sets meanwhile.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._before = SHORT
        # Else a fork in the midst of a change would leave the child with a lock that nobody frees.
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
"""The only one, since there is one interval."""
