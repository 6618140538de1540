"""Memory that is used again, for ranges and for columns, and who has how much of it.

Copying into newly mapped memory runs at a fraction of the speed of copying into warm memory, so
ranges are read, and batches decoded, into memory that was used before. A piece of memory goes back
to the pool when the last array that views it is gone; nobody has to say so, nobody can say so too
early, and a cancelled request that still holds its view cannot write into memory that someone else
reads.
"""

from __future__ import annotations

import mmap
import threading
from collections import defaultdict, deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

__all__ = ["LATELY", "Account", "BatchMemory", "Pool", "lent", "size_class"]

SMALLEST = 4 << 10
STEPS = 16
"""Sizes are rounded up to sixteenths of a power of two: an eighth is wasted at most."""
HUGE = 4 << 20
"""From here on memory is mapped in huge pages, where the kernel has them. Touching 192 MiB for the
first time took 99 page faults instead of 12,000 to 49,000, and a third of the time. In a mapping of
2 MiB a huge page seldom has room, since it stands at a multiple of its size: with columns of that
size a stream lost a fifth of its rate."""

LATELY = 256
"""Allocations of columns: for once to twice as many, freed memory waits to be used again."""


def _nothing(*_: object) -> None:
    """Where nobody is to be told."""


@dataclass(slots=True, eq=False)
class Account:
    """What one owner has of a pool."""

    in_use: int = 0
    """Bytes that are taken and not yet back."""


class Pool:
    """Memory that comes back by itself.

    Args:
        released: Called, in whatever thread, whenever memory has come back.
        mapped: Called with large new memory before it is lent.
    """

    def __init__(
        self,
        released: Callable[[], None],
        mapped: Callable[[npt.NDArray[np.uint8]], object] = _nothing,
    ) -> None:
        self.in_use = 0
        """Bytes that are taken and not yet back."""
        self.idle = 0
        """Bytes that wait to be used again."""
        self.most_in_use = 0
        """The largest ``in_use`` that there ever was."""
        self._released = released
        self._mapped = mapped
        self._idle: defaultdict[int, deque[tuple[int, npt.NDArray[np.uint8]]]] = defaultdict(deque)
        self._returns = 0
        self._closed = False
        self._lock = threading.RLock()  # a release may run inside an acquire, by garbage collection

    def __repr__(self) -> str:
        return f"<Pool {self.in_use} bytes in use, {self.idle} idle>"

    def acquire(self, size: int, account: Account, most: int = 0) -> npt.NDArray[np.uint8]:
        """An array of ``size`` bytes with undefined contents; never blocks, never refuses.

        Args:
            size: Bytes.
            account: Whose memory it is until it comes back, charged with the :func:`size_class`.
            most: Bytes of the largest idle piece that may be taken, and charged, where none of the
                very size is idle: it has been touched, which a new one would have to be.

        Raises:
            MemoryError: The system gives none; nobody is charged.
        """
        taken = size_class(size)
        with self._lock:
            if not self._idle[taken]:
                sizes = list(self._idle)  # a release in the midst of this may add one
                taken = min(
                    (s for s in sizes if taken < s <= most and self._idle[s]), default=taken
                )
            self.in_use += taken
            self.most_in_use = max(self.most_in_use, self.in_use)
            account.in_use += taken
            memory = self._idle[taken].pop()[1] if self._idle[taken] else None
            self.idle -= taken if memory is not None else 0
        try:
            memory = self._fresh(taken) if memory is None else memory
        except MemoryError:
            with self._lock:
                self.in_use -= taken
                account.in_use -= taken
            raise
        return lent(memory, partial(self._give_back, account, memory))[:size]

    def trim(self, most: int) -> None:
        """Free idle memory until at most so many bytes are idle, the longest idle first.

        What came back last is what is asked for next: sizes that are no longer asked for go.
        """
        with self._lock:
            while self.idle > most:
                size = min(
                    (s for s in self._idle if self._idle[s]), key=lambda s: self._idle[s][0][0]
                )
                self._idle[size].popleft()
                self.idle -= size

    def close(self) -> None:
        """Nothing is asked for any more: what is idle or comes back is freed, and nobody is told.

        An array that somebody keeps holds the pool, and the collector of cycles does not see into
        arrays. If the pool held its owner, who may hold such arrays, none of them would ever go.
        """
        with self._lock:
            self._released, self._closed = _nothing, True
        self.trim(0)

    def _fresh(self, size: int) -> npt.NDArray[np.uint8]:
        """New memory, not zeroed by hand: whoever is told, or fills it, touches its pages."""
        if size < HUGE or not hasattr(mmap, "MADV_HUGEPAGE"):
            return np.empty(size, np.uint8)
        try:
            memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise MemoryError(f"{size} bytes cannot be mapped: {error.strerror}") from None
        memory.madvise(mmap.MADV_HUGEPAGE)
        array = np.frombuffer(memory, np.uint8)
        self._mapped(array)
        return array

    def _give_back(self, account: Account, memory: npt.NDArray[np.uint8]) -> None:
        with self._lock:
            self._returns += 1
            if not self._closed:
                self._idle[len(memory)].append((self._returns, memory))
                self.idle += len(memory)
            self.in_use -= len(memory)
            account.in_use -= len(memory)
        self._released()


def lent(memory: npt.NDArray[np.uint8], give_back: Callable[[], object]) -> npt.NDArray[np.uint8]:
    """An array over some memory that is given back by itself.

    Args:
        memory: Which.
        give_back: Called, in whatever thread, once no array views it through the returned one.
    """
    return np.asarray(_Lease(memory, give_back))


class _Lease:
    """Lends memory to arrays: they hold the lease, and its end gives the memory back."""

    __slots__ = ("__array_interface__", "_give_back", "_memory")

    def __init__(self, memory: npt.NDArray[np.uint8], give_back: Callable[[], object]) -> None:
        self._memory = memory
        self._give_back = give_back
        self.__array_interface__: dict[str, Any] = memory.__array_interface__

    def __del__(self) -> None:
        self._give_back()


class BatchMemory:
    """Memory for the columns of batches, used again once nobody refers to them any more.

    What the consumer holds is its own for as long as it likes. What waits to be used again is, with
    what is in use, at most what was in use lately: batches come and go in bursts, and what a burst
    has freed is what the next one takes.
    """

    def __init__(self) -> None:
        self._pool = Pool(lambda: None)
        self._account = Account()
        self._allocations = 0
        self._most_before = self._most_since = 0

    def __repr__(self) -> str:
        return f"<BatchMemory {self._pool.in_use} bytes in use, {self._pool.idle} idle>"

    def allocate(self, size: int) -> npt.NDArray[np.uint8]:
        """An array of ``size`` bytes with undefined contents."""
        memory = self._pool.acquire(size, self._account)
        in_use = self._pool.in_use
        self._pool.trim(self._most_lately(in_use) - in_use)
        return memory

    def close(self) -> None:
        """Nothing is asked for any more: what waits, and what comes back, is freed."""
        self._pool.close()

    def _most_lately(self, in_use: int) -> int:
        """The most that was in use since a time that is one to two times ``LATELY`` ago."""
        self._allocations += 1
        if self._allocations % LATELY == 0:
            self._most_before, self._most_since = self._most_since, 0
        self._most_since = max(self._most_since, in_use)
        return max(self._most_before, self._most_since)


def size_class(size: int) -> int:
    """What is taken for so many bytes: few different sizes, so that they can be used again."""
    step = max(SMALLEST, (1 << (size - 1).bit_length()) // STEPS) if size > 0 else SMALLEST
    return max(step, -(-size // step) * step)
