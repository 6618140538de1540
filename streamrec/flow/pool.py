"""Reusable memory for ranges, within a budget of bytes.

Copying into newly mapped memory runs at a fraction of the speed of copying into warm memory, so
ranges are read into memory that was used before. A piece of memory goes back to the pool when the
last array that views it is gone; nobody has to say so, nobody can say so too early, and a cancelled
request that still holds its view cannot write into memory that someone else reads.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

__all__ = ["BatchMemory", "Pool"]


class Pool:
    """Memory for ranges.

    Args:
        released: Called, in whatever thread, whenever memory has come back.
    """

    def __init__(self, released: Callable[[], None]) -> None:
        self.in_use = 0
        """Bytes that are taken and not yet back."""
        self.idle = 0
        """Bytes that wait to be used again."""
        self._released = released
        self._idle: defaultdict[int, list[npt.NDArray[np.uint8]]] = defaultdict(list)
        self._lock = threading.RLock()  # a release may run inside an acquire, by garbage collection

    def __repr__(self) -> str:
        return f"<Pool {self.in_use} bytes in use, {self.idle} idle>"

    def acquire(self, size: int) -> npt.NDArray[np.uint8]:
        """An array of ``size`` bytes with undefined contents; never blocks, never refuses."""
        with self._lock:
            self.in_use += size
            memory = self._idle[size].pop() if self._idle[size] else None
            self.idle -= size if memory is not None else 0
        # Not zeroed: the pages of fresh memory are then first touched by whoever fills them.
        return np.asarray(_Lease(self, np.empty(size, np.uint8) if memory is None else memory))

    def trim(self, most: int) -> None:
        """Free idle memory until at most so many bytes are idle, the largest pieces first."""
        with self._lock:
            for size in sorted(self._idle, reverse=True):
                while self.idle > most and self._idle[size]:
                    self._idle[size].pop()
                    self.idle -= size

    def _give_back(self, memory: npt.NDArray[np.uint8]) -> None:
        with self._lock:
            self._idle[len(memory)].append(memory)
            self.idle += len(memory)
            self.in_use -= len(memory)
        self._released()


class _Lease:
    """Lends memory to arrays: they hold the lease, and its end gives the memory back."""

    __slots__ = ("__array_interface__", "_memory", "_pool")

    def __init__(self, pool: Pool, memory: npt.NDArray[np.uint8]) -> None:
        self._pool = pool
        self._memory = memory
        self.__array_interface__: dict[str, Any] = memory.__array_interface__

    def __del__(self) -> None:
        self._pool._give_back(self._memory)  # noqa: SLF001 - one mechanism in two classes


class BatchMemory:
    """Memory for the columns of batches, used again once nobody refers to them any more.

    What the consumer holds is its own for as long as it likes. As much memory as it holds, at
    most, waits to be used again.
    """

    def __init__(self) -> None:
        self._pool = Pool(lambda: None)

    def __repr__(self) -> str:
        return f"<BatchMemory {self._pool.in_use} bytes in use, {self._pool.idle} idle>"

    def allocate(self, size: int) -> npt.NDArray[np.uint8]:
        """An array of ``size`` bytes with undefined contents."""
        memory = self._pool.acquire(_rounded(size))
        self._pool.trim(self._pool.in_use)
        return memory[:size]


def _rounded(size: int) -> int:
    """At most an eighth more, so that columns of about the same size have the same memory."""
    step = max(1 << 12, 1 << max(0, size.bit_length() - 4))
    return -(-size // step) * step
