"""Pools of reused memory for ranges and columns, and accounts of the memory that batches hold.

Copying into newly mapped memory runs at a fraction of the speed of copying into warm memory, so
ranges are read, and batches decoded, into memory that was used before. A piece of memory returns to
the pool when the last array that views it is gone. No call returns it, so none comes too early: a
cancelled request that still holds its view cannot write into memory that somebody else reads.

A thread takes the page faults of new memory before anything writes into it. The first write into a
page makes the kernel find and clear one. Huge pages cost 0.05 s a GB in a virtual machine whose
memory is there, and 2 s a GB in one whose host takes free memory back. An event loop that receives
into new buffers would lose that time; the round trip between a request and its first byte hides it.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import sys
import threading
from collections import defaultdict, deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec.flow.cleanup import start_threads
from streamrec.values.aligned import empty

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

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


SMALLEST = 4 << 10
STEPS = 16
"""Sizes are rounded up to sixteenths of a power of two, which wastes an eighth at most."""
HUGE = 4 << 20
"""Bytes from which memory is mapped in huge pages, where the kernel has them. Touching 192 MiB for
the first time took 99 page faults instead of 12,000 to 49,000, and a third of the time. A mapping
of 2 MiB seldom has room for a huge page, which starts at a multiple of its size: with columns of
that size a stream lost a fifth of its rate."""

LATELY = 256
"""Allocations of columns: freed memory is kept idle for one to two times this many of them."""


def _nothing(*_: object) -> None:
    """Do nothing: the callback that stands for none."""


@dataclass(slots=True, eq=False)
class Account:
    """The share of one owner in a pool."""

    in_use: int = 0
    """Bytes that are taken and not yet back."""


class Pool:
    """A pool of memory that returns to it when no array views it any more.

    Args:
        released: Called, in any thread, whenever memory has returned.
        mapped: Called with newly mapped memory before it is lent.
        allocate: Allocates memory that other processes share, or returns ``None``.
    """

    def __init__(
        self,
        released: Callable[[], None],
        mapped: Callable[[npt.NDArray[np.uint8]], object] = _nothing,
        allocate: Callable[[int], npt.NDArray[np.uint8] | None] = _nothing,
    ) -> None:
        self.in_use = 0
        """Bytes that are taken and not yet back."""
        self.idle = 0
        """Bytes that wait to be used again."""
        self.most_in_use = 0
        """The largest ``in_use`` so far."""
        self._released = released
        self._mapped = mapped
        self._allocate = allocate
        self._idle: defaultdict[int, deque[tuple[int, npt.NDArray[np.uint8]]]] = defaultdict(deque)
        self._returns = 0
        self._closed = False
        self._lock = threading.RLock()  # a release may run inside an acquire, by garbage collection

    def __repr__(self) -> str:
        return f"<Pool {self.in_use} bytes in use, {self.idle} idle>"

    def acquire(self, size: int, account: Account, most: int = 0) -> npt.NDArray[np.uint8]:
        """Return an array of ``size`` bytes with undefined contents, without waiting.

        Args:
            size: Bytes.
            account: Charged with the :func:`size_class` until the memory returns.
            most: Bytes of the largest idle piece that may be taken, and charged, where none of the
                exact size is idle: unlike new memory it has its pages already.

        Raises:
            MemoryError: The system has no memory; the account is not charged.
        """
        whole = size_class(size)
        with self._lock:
            if not self._idle[whole]:
                sizes = list(self._idle)  # a release in the midst of this may add one
                whole = min(
                    (s for s in sizes if whole < s <= most and self._idle[s]), default=whole
                )
            self.in_use += whole
            self.most_in_use = max(self.most_in_use, self.in_use)
            account.in_use += whole
            memory = self._idle[whole].pop()[1] if self._idle[whole] else None
            self.idle -= whole if memory is not None else 0
        try:
            memory = self._fresh(whole) if memory is None else memory
        except MemoryError:
            with self._lock:
                self.in_use -= whole
                account.in_use -= whole
            raise
        # Cut after the lease: views of the shorter array hold the whole.
        return lent(memory, partial(self._give_back, account, memory))[:size]

    def trim(self, most: int) -> None:
        """Free idle memory, the longest idle first, until at most ``most`` bytes are idle."""
        # What returned last is likely to be asked for next; sizes out of use go first.
        with self._lock:
            while self.idle > most:
                size = min(
                    (s for s in self._idle if self._idle[s]), key=lambda s: self._idle[s][0][0]
                )
                self._idle[size].popleft()
                self.idle -= size

    def close(self) -> None:
        """Free the idle memory, and free what returns later without calling ``released``."""
        # An array that somebody keeps refers to the pool, and the garbage collector does not see
        # through arrays. If the pool referred to its owner, who may hold such arrays, none of them
        # would ever be freed.
        with self._lock:
            self._released, self._closed = _nothing, True
        self.trim(0)

    def _fresh(self, size: int) -> npt.NDArray[np.uint8]:
        """Allocate memory; its pages are first touched by ``mapped`` or by whoever fills it."""
        # Not touched here: whoever fills it makes the pages, and this process then maps those.
        if (shared := self._allocate(size)) is not None:
            return shared
        if size < HUGE or not hasattr(mmap, "MADV_HUGEPAGE"):
            return empty((size,), np.uint8)
        try:
            memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise MemoryError(f"mapping {size} bytes of memory failed: {error.strerror}") from None
        with contextlib.suppress(OSError):  # a kernel that is built without them
            memory.madvise(mmap.MADV_HUGEPAGE)
        # The array holds the mapping, which ends with the last view.
        array = np.frombuffer(memory, np.uint8)
        self._mapped(array)
        return array

    def _give_back(self, account: Account, memory: npt.NDArray[np.uint8]) -> None:
        with self._lock:
            # The number of the return is the age of what lies idle, across all sizes.
            self._returns += 1
            if not self._closed:
                self._idle[len(memory)].append((self._returns, memory))
                self.idle += len(memory)
            self.in_use -= len(memory)
            account.in_use -= len(memory)
        self._released()


def lent(memory: npt.NDArray[np.uint8], give_back: Callable[[], object]) -> npt.NDArray[np.uint8]:
    """Return an array over memory, and call ``give_back`` when it is not viewed any more.

    Args:
        memory: The memory.
        give_back: Called, in any thread, once no array views it through the returned one.
    """
    return np.asarray(_Lease(memory, give_back))


class _Lease:
    """A loan of memory to arrays: they hold it, and its end gives the memory back."""

    __slots__ = ("__array_interface__", "_give_back", "_memory")

    def __init__(self, memory: npt.NDArray[np.uint8], give_back: Callable[[], object]) -> None:
        self._memory = memory
        self._give_back = give_back
        self.__array_interface__: dict[str, Any] = memory.__array_interface__

    def __del__(self) -> None:
        self._give_back()


class BatchMemory:
    """Memory for the columns of batches, reused once nothing refers to them any more.

    The consumer may keep a batch for as long as it likes. Idle memory and memory in use together
    are at most what was in use lately: batches come and go in bursts, and what one burst has freed
    the next one takes.
    """

    def __init__(self) -> None:
        self._pool = Pool(lambda: None)
        self._account = Account()
        self._allocations = 0
        self._most_before = self._most_since = 0

    def __repr__(self) -> str:
        return f"<BatchMemory {self._pool.in_use} bytes in use, {self._pool.idle} idle>"

    def allocate(self, size: int) -> npt.NDArray[np.uint8]:
        """Return an array of ``size`` bytes with undefined contents."""
        memory = self._pool.acquire(size, self._account)
        in_use = self._pool.in_use
        self._pool.trim(self._most_lately(in_use) - in_use)
        return memory

    def close(self) -> None:
        """Free the idle memory, and what returns later."""
        self._pool.close()

    def _most_lately(self, in_use: int) -> int:
        """Return the most bytes in use in the last one to two times ``LATELY`` allocations."""
        self._allocations += 1
        if self._allocations % LATELY == 0:
            self._most_before, self._most_since = self._most_since, 0
        self._most_since = max(self._most_since, in_use)
        return max(self._most_before, self._most_since)


def size_class(size: int) -> int:
    """Return the bytes that are taken for ``size``: a few different sizes are easily reused."""
    step = max(SMALLEST, (1 << (size - 1).bit_length()) // STEPS)
    return max(step, -(-size // step) * step)


# -- batches that are being decoded ----------------------------------------------------------------


class Abandoned(Exception):
    """The run has ended, and nobody waits for this batch any more."""


def _borrow_nothing(_: int) -> None:
    """Borrow nothing: the run may overdraw."""


class DecodedMemory:
    """The bytes that decoded batches hold together, of which threads claim some and may wait.

    The batch that is delivered next never waits, so that a consumer gets it however large it is.
    The others wait until they fit. A batch that is delivered holds its bytes until the next one is:
    the consumer has it that long.

    Args:
        capacity: Bytes of the batches together.
        borrow: Called, in the thread that claims, with the bytes that the next batch takes beyond
            the capacity; they are the run's from then on. What it raises, the claim raises.
    """

    def __init__(self, capacity: int, borrow: Callable[[int], object] = _borrow_nothing) -> None:
        self.capacity = capacity
        self.in_use = 0
        """Bytes of the batches in flight, and of the one that was delivered last."""
        self._borrow = borrow
        self._waiting: dict[BatchInFlight, None] = {}  # in the order of delivery
        self._delivered: BatchInFlight | None = None
        self._closed = False
        self._changed = threading.Condition()

    def __repr__(self) -> str:
        return f"<DecodedMemory {self.in_use} of {self.capacity} bytes, {len(self._waiting)} wait>"

    def open(self) -> BatchInFlight:
        """Return the account of another batch, which is delivered after all before it."""
        batch = BatchInFlight(self)
        with self._changed:
            self._waiting[batch] = None
        return batch

    def close(self) -> None:
        """Abandon the batches that are not delivered: their claims raise :class:`Abandoned`."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def check(self) -> None:
        """Raise :class:`Abandoned` after :meth:`close`."""
        if self._closed:
            raise Abandoned

    def claim(self, batch: BatchInFlight, size: int) -> None:
        """Take more bytes for a batch, as soon as they fit or it is the next one.

        Raises:
            Abandoned: The run has ended.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._may_take(batch, size))
            self.check()
            self._change(batch, size)
            lacking = max(0, self.in_use - self.capacity)
        if lacking:
            self._borrow(lacking)
            if self._borrow is not _borrow_nothing:
                self.capacity += lacking

    def settle(self, batch: BatchInFlight, size: int) -> None:
        """Hold exactly so many bytes for a batch, which has been decoded."""
        with self._changed:
            self._change(batch, size - batch.held)

    def deliver(self, batch: BatchInFlight) -> None:
        """Note that the consumer has a batch, and so no longer the one before."""
        with self._changed:
            if self._delivered is not None:
                self._change(self._delivered, -self._delivered.held)
            self._waiting.pop(batch, None)
            self._delivered = batch
            self._changed.notify_all()

    def _may_take(self, batch: BatchInFlight, size: int) -> bool:
        return self.in_use + size <= self.capacity or next(iter(self._waiting), None) is batch

    def _change(self, batch: BatchInFlight, more: int) -> None:
        batch.held += more
        self.in_use += more
        if more < 0:
            self._changed.notify_all()


class BatchInFlight:
    """The account of one batch.

    Args:
        memory: Of the run.
    """

    __slots__ = ("_memory", "held")

    def __init__(self, memory: DecodedMemory) -> None:
        self._memory = memory
        self.held = 0
        """Bytes that it holds."""

    def admit(self, size: int) -> None:
        """Claim bytes; see :meth:`DecodedMemory.claim`."""
        self._memory.claim(self, size)

    def settle(self, size: int) -> None:
        """Hold so many bytes; see :meth:`DecodedMemory.settle`."""
        self._memory.settle(self, size)

    def deliver(self) -> None:
        """Be the consumer's; see :meth:`DecodedMemory.deliver`."""
        self._memory.deliver(self)
