"""Gives memory that sessions have freed back to the system.

glibc keeps most of what is freed below a block that is still used: a feeder would hold what its
busiest hour took. ``malloc_trim`` gives whole free pages back, in some milliseconds.
"""

from __future__ import annotations

import asyncio
import ctypes

AFTER = 2.0
"""Seconds from the end of a session until memory is given back, once for all that end meanwhile."""

release = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""The C library's function, or ``None`` where it is not glibc."""


class Heap:
    """The memory of a process whose sessions come and go.

    Args:
        after: Seconds from the end of a session until memory is given back.
    """

    def __init__(self, after: float = AFTER) -> None:
        self._after = after
        self.is_due = False
        """``True`` while memory is going to be given back, and is."""

    def shrink_soon(self) -> None:
        """Give free memory back to the system, soon."""
        if not self.is_due and release is not None:
            self.is_due = True
            asyncio.get_running_loop().call_later(self._after, self._shrink)

    def _shrink(self) -> None:
        assert release is not None
        shrinking = asyncio.get_running_loop().run_in_executor(None, release, 0)
        shrinking.add_done_callback(self._done)

    def _done(self, _: asyncio.Future[int]) -> None:
        self.is_due = False
