"""Memory that processes share, and its free and taken bytes."""

from __future__ import annotations

import fcntl
import mmap
import os
from bisect import bisect_left
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import contextlib

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
