"""New memory gets its pages before somebody writes into it.

The first write into a page makes the kernel find and clear one. Huge pages cost 0.05 s a GB in a
virtual machine whose memory is there, and 2 s a GB in one whose host takes free memory back: time
in which an event loop that receives into new buffers does nothing else. But between a request and
its first byte there is a round trip.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from concurrent.futures import Future

    import numpy as np
    import numpy.typing as npt

__all__ = ["Prefaulter"]

POPULATE_WRITE = 23
"""``MADV_POPULATE_WRITE`` of Linux 5.14, madvise(2): pages become writable, and what is in them
stays as it is, also what is being written meanwhile."""
STEP = 2 << 20
"""Bytes at a time, one huge page: whoever maps memory meanwhile waits for the end of a step."""


class Prefaulter:
    """A thread that touches new memory ahead of whoever fills it; where it cannot, nobody does.

    Nothing but time depends on it.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "streamrec-prefault")

    def prefault(self, memory: npt.NDArray[np.uint8]) -> Future[None] | None:
        """Have the pages of some memory made, after those of all that came before.

        Args:
            memory: It begins at a page.

        Returns:
            Done when they are; ``None``: they will not be.
        """
        with contextlib.suppress(RuntimeError):  # closed, or the interpreter is about to end
            return self._thread.submit(_populate, memory)
        return None

    def close(self) -> None:
        """What waits is not touched any more; the thread ends by itself."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def _populate(memory: npt.NDArray[np.uint8]) -> None:
    madvise, address = _madvise(), memory.ctypes.data
    for begin in range(0, len(memory), STEP):
        size = min(STEP, len(memory) - begin)
        if madvise is None or madvise(address + begin, size, POPULATE_WRITE):
            return  # of an older kernel, or there is no memory: whoever writes finds out


@cache
def _madvise() -> Any:
    """The system's; it is called without the interpreter's lock."""
    if sys.platform != "linux":
        return None
    function = ctypes.CDLL(None).madvise
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return function
