"""Gives memory that sessions have freed back to the system.

glibc keeps most of what is freed below a block that is still used: a feeder would hold what its
busiest hour took. ``malloc_trim`` gives whole free pages back, in some milliseconds.
"""

from __future__ import annotations

import asyncio
import ctypes

__all__ = ["Heap", "release"]

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
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_due(self) -> bool:
        """``True`` while memory is going to be given back."""
        return self._timer is not None

    def shrink_soon(self) -> None:
        """Give free memory back to the system, soon."""
        if self._timer is None and release is not None:
            self._timer = asyncio.get_running_loop().call_later(self._after, self._shrink)

    def _shrink(self) -> None:
        self._timer = None
        if release is not None:
            release(0)
