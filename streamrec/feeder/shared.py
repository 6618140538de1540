"""Batches in memory that two processes of one machine share: only their places go over the socket.

The private engine process writes a batch's payload there, the trainer's process views it, and says
so once nothing refers to it any more. What the trainer keeps is its own for as long as it likes:
while the memory is full of that, batches travel over the socket as they would from any feeder.
"""

from __future__ import annotations

import mmap
import os
from bisect import bisect_left
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec.errors import RemoteProtocolError
from streamrec.wire import Shared

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from streamrec.types import Octets
    from streamrec.wire import BatchMessage

__all__ = ["Inbox", "Outbox", "Places", "created"]

PAGE = 4 << 10


@contextmanager
def created(size: int) -> Iterator[int | None]:
    """A descriptor of new memory of so many bytes; ``None`` where the system has no such thing."""
    if not hasattr(os, "memfd_create"):
        yield None
        return
    fd = os.memfd_create("streamrec-batches")
    try:
        os.ftruncate(fd, size)
        yield fd
    finally:
        os.close(fd)


def _mapped(fd: int) -> Octets:
    return np.frombuffer(mmap.mmap(fd, 0), np.uint8)


class Places:
    """Which bytes of a memory are taken; the lowest that fit are taken first, since they are warm.

    Args:
        size: Of the memory, in bytes.
    """

    def __init__(self, size: int) -> None:
        self._free = [(0, size)] if size else []
        self._taken: dict[int, int] = {}

    def __repr__(self) -> str:
        return (
            f"<Places {len(self._taken)} taken, {sum(size for _, size in self._free)} bytes free>"
        )

    def take(self, size: int) -> int | None:
        """Where so many bytes, from 1, begin now, at a multiple of a page; ``None``: nowhere."""
        size = -(-size // PAGE) * PAGE
        for i, (begin, length) in enumerate(self._free):
            if length >= size:
                self._free[i : i + 1] = [(begin + size, length - size)] if length > size else []
                self._taken[begin] = size
                return begin
        return None

    def free(self, begin: int) -> None:
        """Give back what began there.

        Raises:
            RemoteProtocolError: Nothing did.
        """
        size = self._taken.pop(begin, None)
        if size is None:
            raise RemoteProtocolError(f"nothing is shared at {begin} that could be released")
        i = bisect_left(self._free, (begin, 0))
        first = i - 1 if i and sum(self._free[i - 1]) == begin else i
        last = i + 1 if i < len(self._free) and self._free[i][0] == begin + size else i
        begin = min(begin, self._free[first][0]) if first < i else begin
        joined = size + sum(length for _, length in self._free[first:last])
        self._free[first:last] = [(begin, joined)]


class Outbox:
    """The engine's side.

    Args:
        fd: Of the memory; it may be closed afterwards.
    """

    def __init__(self, fd: int) -> None:
        self._memory = _mapped(fd)
        self._places = Places(len(self._memory))

    def put(self, message: BatchMessage) -> Shared | BatchMessage:
        """Write the payload to the memory; the message itself, if it does not fit in."""
        size = message.payload_size
        offset = self._places.take(size) if size else None
        if offset is None:
            return message
        begin = offset
        for buffer in message.payload:
            np.copyto(self._memory[begin : begin + buffer.nbytes], np.frombuffer(buffer, np.uint8))
            begin += buffer.nbytes
        return Shared(message.metadata, offset, size)

    def free(self, offsets: Iterable[int]) -> None:
        """The other side no longer refers to what begins there.

        Raises:
            RemoteProtocolError: Nothing does.
        """
        for offset in offsets:
            self._places.free(offset)


class Inbox:
    """The trainer's side.

    Args:
        fd: Of the memory; it may be closed afterwards.
    """

    def __init__(self, fd: int) -> None:
        self._memory = _mapped(fd)
        self._freed: deque[int] = deque()  # by garbage collection, in whatever thread

    def view(self, offset: int, size: int) -> memoryview:
        """The bytes there; they are freed when nothing views them any more.

        Raises:
            RemoteProtocolError: They lie outside of the memory.
        """
        if offset % PAGE or size > len(self._memory) - offset:
            raise RemoteProtocolError(
                f"{size} bytes from {offset} on are not in a shared memory of {len(self._memory)}"
            )
        lease = _Lease(self._memory[offset : offset + size], offset, self._freed)
        return np.asarray(lease).data

    def freed(self) -> tuple[int, ...]:
        """Where views have ended since the last call."""
        return tuple(self._freed.popleft() for _ in range(len(self._freed)))


class _Lease:
    """What arrays over one place hold."""

    __slots__ = ("__array_interface__", "_freed", "_memory", "_offset")

    def __init__(self, memory: Octets, offset: int, freed: deque[int]) -> None:
        self._memory = memory
        self._offset = offset
        self._freed = freed
        self.__array_interface__: dict[str, Any] = memory.__array_interface__

    def __del__(self) -> None:
        self._freed.append(self._offset)
