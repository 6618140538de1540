"""Page faults of new memory, taken in a thread before anything writes into it.

The first write into a page makes the kernel find and clear one. Huge pages cost 0.05 s a GB in a
virtual machine whose memory is there, and 2 s a GB in one whose host takes free memory back. An
event loop that receives into new buffers would lose that time; the round trip between a request and
its first byte hides it.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, Any

from streamrec.flow.cleanup import start_threads

if TYPE_CHECKING:
    from concurrent.futures import Future

    import numpy as np
    import numpy.typing as npt

POPULATE_WRITE = 23
"""``MADV_POPULATE_WRITE`` of Linux 5.14, madvise(2): it makes pages writable and keeps their
content, also what is being written meanwhile."""
STEP = 2 << 20
"""Bytes at a time, one huge page: a thread that maps memory waits that long."""


class Prefaulter:
    """A thread that touches new memory ahead of the code that fills it.

    It only saves time: where it cannot, or until it has started, the first writes take the page
    faults.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "streamrec-prefault")
        self._has_started = False

    async def start(self) -> None:
        """Start the thread, which else nobody asks for anything."""
        await start_threads(self._thread, 1)
        self._has_started = True

    def prefault(self, memory: npt.NDArray[np.uint8]) -> Future[None] | None:
        """Queue memory for the thread to touch.

        Args:
            memory: Whole pages, from the beginning of one on.

        Returns:
            Done when the pages are there; ``None``: the thread is closed, or has not started, and
            touches nothing.
        """
        if not self._has_started:
            return None
        with contextlib.suppress(RuntimeError):  # closed, or the interpreter is about to end
            return self._thread.submit(_populate, memory)
        return None

    def close(self) -> None:
        """Drop the queue; the thread ends by itself."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def _populate(memory: npt.NDArray[np.uint8]) -> None:
    madvise, address = _madvise(), memory.ctypes.data
    for begin in range(0, len(memory), STEP):
        size = min(STEP, len(memory) - begin)
        if madvise is None or madvise(address + begin, size, POPULATE_WRITE):
            return  # an older kernel, or no memory: the first write takes the fault


@cache
def _madvise() -> Any:
    """Return the C function ``madvise``, which runs without the interpreter's lock; Linux only."""
    if sys.platform != "linux":
        return None
    function = ctypes.CDLL(None).madvise
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return function
