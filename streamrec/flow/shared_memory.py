"""Memory that processes share, and its free and taken bytes."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import threading
import weakref
from bisect import bisect_left
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from streamrec.flow.pool import lent

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamrec.values.columns import ByteArray

PAGE = 4 << 10


def make_sealed(name: str, size: int, stack: contextlib.ExitStack) -> int | None:
    """Create memory of a size that stays, and return its descriptor; ``None`` where there is none.

    Args:
        name: The name that the system shows.
        size: Bytes.
        stack: Closes the descriptor.
    """
    if not size or not hasattr(os, "memfd_create"):
        return None
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    stack.callback(os.close, fd)
    # The pages come when they are first written: what is not used takes no memory.
    os.ftruncate(fd, size)
    # The feeder writes where it is mapped, and would be killed at a page that is gone: see below.
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def safe_size(fd: int) -> int:
    """Return the bytes that can be written whatever the owner of the descriptor does."""
    # Whoever touches a page that a file has lost, or a huge page where none is left, is killed.
    # Only memory of memfd_create can have this seal, and nobody can take it off again.
    try:
        keeps_its_size = fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
    except OSError:  # it is no memory at all
        return 0
    # The block size of memory in huge pages is that of a huge page.
    if not keeps_its_size or os.fstatvfs(fd).f_bsize != mmap.PAGESIZE:
        return 0
    return os.fstat(fd).st_size


def map_memory(fd: int, size: int) -> ByteArray:
    """Map memory for reading and writing; a size of 0 is that of the descriptor."""
    return np.frombuffer(mmap.mmap(fd, size), np.uint8)


def address_of(array: ByteArray) -> int:
    """Return the address of an array's first byte."""
    return int(array.__array_interface__["data"][0])


class Allocator:
    """The free and taken bytes of a memory; the lowest that fit are taken first: they are warm.

    Args:
        size: Of the memory, in bytes.
    """

    def __init__(self, size: int) -> None:
        self._free = [(0, size)] if size else []
        self.sizes: dict[int, int] = {}
        """The bytes that were asked for, by where they begin."""

    def __repr__(self) -> str:
        return (
            f"<Allocator {len(self.sizes)} taken, {sum(size for _, size in self._free)} bytes free>"
        )

    def take(self, size: int) -> int | None:
        """Take so many bytes, from 1, and return where they begin; ``None``: there is no room."""
        whole = _in_pages(size)
        for i, (begin, length) in enumerate(self._free):
            if length >= whole:
                self._free[i : i + 1] = [(begin + whole, length - whole)] if length > whole else []
                self.sizes[begin] = size
                return begin
        return None

    def free(self, begin: int) -> None:
        """Give back the bytes that were taken there."""
        size = _in_pages(self.sizes.pop(begin))
        # The free pieces on either side that touch this one become one piece with it.
        i = bisect_left(self._free, (begin, 0))
        first = i - 1 if i and sum(self._free[i - 1]) == begin else i
        last = i + 1 if i < len(self._free) and self._free[i][0] == begin + size else i
        begin = min(begin, self._free[first][0]) if first < i else begin
        whole = size + sum(length for _, length in self._free[first:last])
        self._free[first:last] = [(begin, whole)]


def _in_pages(size: int) -> int:
    """Return a size that is rounded up to whole pages."""
    return -(-size // PAGE) * PAGE


class SharedRanges:
    """Memory for ranges that other processes fill; its pages come when they are first written.

    Pieces are lent in any thread. One that no array views any more takes no memory.

    Args:
        size: Bytes that all pieces together may have.
        close: Called once, when no more pieces are lent.

    Raises:
        OSError: The system has no such memory.
    """

    def __init__(self, size: int, close: Callable[[SharedRanges], object]) -> None:
        with contextlib.ExitStack() as stack:
            fd = make_sealed("streamrec-ranges", size, stack)
            if fd is None:
                raise OSError("there is no memory that processes can share")
            self._mapping = mmap.mmap(fd, size)
            self.fd = fd
            """The descriptor, until it is closed."""
            stack.pop_all()
        memory = np.frombuffer(self._mapping, np.uint8)
        self.size = len(memory)
        """Bytes."""
        self._begin = address_of(memory)
        self._memory: ByteArray | None = memory
        self._allocator = Allocator(size)
        self._ended: deque[int] = deque()  # by garbage collection: in whatever thread, and line
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._close = weakref.finalize(self, os.close, fd)
        self._tell = close

    def __repr__(self) -> str:
        return f"<SharedRanges {self._allocator!r}>"

    def allocate(self, size: int) -> ByteArray | None:
        """Return an array of ``size`` bytes of zeros, from 1; ``None``: there is no room."""
        with self._lock:
            while self._ended:
                self._allocator.free(self._ended.popleft())
            begin = self._allocator.take(size) if self._memory is not None else None
        if begin is None or self._memory is None:
            return None
        piece = self._memory[begin : begin + size]
        return lent(
            piece, partial(_end_piece, self._mapping, self._ended, self._owner, begin, size)
        )

    def place_of(self, view: memoryview) -> int | None:
        """Return where a view begins in this memory; ``None``: it lies elsewhere."""
        place = address_of(np.frombuffer(view, np.uint8)) - self._begin
        return place if 0 <= place <= self.size - len(view) else None

    def close(self) -> None:
        """Lend nothing more; arrays stay as they are. Closing again changes nothing."""
        if self._close.alive:
            self._memory = None
            self._tell(self)
            self._close()


def _end_piece(mapping: mmap.mmap, ended: deque[int], owner: int, begin: int, size: int) -> None:
    """Give a piece's pages back to the system, and its place to others."""
    # The pages of a fork's copy are its parent's.
    if os.getpid() == owner:
        mapping.madvise(mmap.MADV_REMOVE, begin, _in_pages(size))
        ended.append(begin)
