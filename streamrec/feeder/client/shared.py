"""Batches in memory that two processes of one machine share: only their places go over the socket.

The client makes the memory, and sends its descriptor along with its first bytes. The feeder, a
private engine process or a daemon, decodes large columns right there and copies the rest; the
client views them, and says so once nothing refers to them any more. What it keeps is its own for as
long as it likes: while the memory is full of that, batches travel over the socket as they would
from any feeder.

The two need not trust each other. A client's memory cannot shrink under the feeder, and nothing
that steers the feeder is read from it; a feeder's places are checked by the client.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from streamrec.errors import RemoteProtocolError
from streamrec.flow.pool import BatchMemory, lent
from streamrec.flow.shared_memory import (
    PAGE,
    Allocator,
    address_of,
    make_sealed,
    map_memory,
    safe_size,
)
from streamrec.wire.frame import ALIGNMENT
from streamrec.wire.messages import Shared

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from streamrec.values.columns import ByteArray
    from streamrec.wire.messages import BatchMessage

SHARED_CREDITS = 4
"""Shared memory is this many times what may be on its way: batches wait before, and the
trainer holds them after."""
SHARE = 4
"""A client gets one part in this many of what is free, at most, and so leaves room for others."""
FEW = 64 << 10
"""Bytes for which NumPy should not let go of the interpreter: to have it back takes longer."""


@contextlib.contextmanager
def create_memory(size: int) -> Iterator[int | None]:
    """Create memory of a size that stays, and give its descriptor; ``None`` where there is none."""
    with contextlib.ExitStack() as stack:
        fd = None
        with contextlib.suppress(OSError):  # the socket serves, too
            fd = make_sealed("streamrec-batches", size, stack)
        yield fd


class Outboxes:
    """The outboxes of a feeder's clients, each in memory that its client has brought.

    Args:
        total: Bytes that they may have together: what is written there counts for the feeder.
    """

    def __init__(self, total: int) -> None:
        self._free = total

    def __repr__(self) -> str:
        return f"<Outboxes, {self._free} bytes free>"

    @contextlib.contextmanager
    def open(self, fd: int | None) -> Iterator[Outbox | None]:
        """Map a client's memory while the block runs.

        Args:
            fd: From a client, so it may be of anything; it is closed. ``None``: it sent none.

        Yields:
            The outbox; ``None`` where it could do harm, or none is left.
        """
        if fd is None:
            yield None
            return
        size = 0
        try:
            size = min(safe_size(fd), self._free // SHARE)
            outbox = Outbox(fd, size) if size >= PAGE else None
        except OSError:  # it may not be written
            outbox = None
        finally:
            os.close(fd)
        self._free -= size
        try:
            yield outbox
        finally:
            self._free += size
            if outbox is not None:
                outbox.close()


class Outbox:
    """The feeder's side: memory to decode into, and to send from. Lent in any thread, sent in one.

    A place is free again once no array of this process views it and, if it was sent, the other side
    has said that it does not refer to it either.

    Args:
        fd: Of the memory; it may be closed afterwards.
        size: How many bytes of it are for use; what is not used takes none.

    Raises:
        OSError: It cannot be mapped for writing.
    """

    def __init__(self, fd: int, size: int) -> None:
        self._memory = map_memory(fd, size)
        self._address = address_of(self._memory)
        self._allocator = Allocator(len(self._memory))
        self._overflow = BatchMemory()
        self._smallest = sys.maxsize
        """Bytes of the smallest column that may lie in the memory."""
        self._lock = threading.Lock()
        self._ended: deque[int] = deque()  # by garbage collection: in whatever thread, and line
        self._sent: dict[int, ByteArray] = {}

    def close(self) -> None:
        """Let the memory go, as soon as no array views it."""
        self._sent.clear()
        self._allocator = Allocator(0)
        # Arrays that are lent keep the mapping; this side's own hold on it ends here.
        self._memory = self._memory[:0].copy()

    def allocate(self, size: int) -> ByteArray:
        """Return an array of ``size`` undefined bytes; not shared if the memory is full."""
        # Two threads may leave the larger size here: a column below it is copied, and none is lost.
        self._smallest = min(self._smallest, size)
        place = self._lend(size)
        return self._overflow.allocate(size) if place is None else place

    def put(self, message: BatchMessage) -> Shared | BatchMessage:
        """Put the payload into the memory; return the message itself if it does not fit in."""
        places: dict[int, ByteArray] = {}
        for piece in self._pieces(message.payload):
            place = self._copy(piece) if isinstance(piece, list) else piece
            if place is None:
                return message
            places[self._offset(place)] = place
        # The arrays are held until RELEASE, so that nothing else is lent there meanwhile.
        self._sent |= places
        sizes = tuple(map(len, places.values()))
        return Shared(message.metadata, tuple(places), sizes) if places else message

    def free(self, offsets: Iterable[int]) -> None:
        """Free the places that the other side no longer uses.

        Raises:
            RemoteProtocolError: Nothing does.
        """
        for offset in offsets:
            if self._sent.pop(offset, None) is None:
                raise RemoteProtocolError(f"nothing is shared at {offset} that could be released")

    def _pieces(self, payload: Iterable[memoryview]) -> Iterator[ByteArray | list[memoryview]]:
        """Arrays that stay where they are, and what is between them, to be copied to one place."""
        loose: list[memoryview] = []
        stay, size = set(self._sent), 0
        for buffer in payload:
            is_padding, size = size % ALIGNMENT, size + len(buffer)
            begin = self._place_of(buffer)
            # What is viewed for the second time is somebody else's, too.
            if begin is None or begin in stay:
                if loose or not is_padding:
                    loose.append(buffer)
                continue
            stay.add(begin)
            if loose:
                yield loose
                loose = []
            yield np.frombuffer(buffer, np.uint8)
        if loose:
            yield loose

    def _place_of(self, buffer: memoryview) -> int | None:
        """Return where the place in a buffer begins; ``None``: the buffer is not a whole place."""
        if len(buffer) < self._smallest:
            return None
        begin = self._offset(np.frombuffer(buffer, np.uint8))
        return begin if self._allocator.sizes.get(begin) == len(buffer) else None

    def _copy(self, buffers: list[memoryview]) -> ByteArray | None:
        place = self._lend(sum(map(len, buffers)))
        if place is None:
            return None
        begin = 0
        for buffer in buffers:
            end = begin + len(buffer)
            if len(buffer) > FEW:
                np.copyto(place[begin:end], np.frombuffer(buffer, np.uint8))
            else:
                place.data[begin:end] = buffer
            begin = end
        return place

    def _lend(self, size: int) -> ByteArray | None:
        with self._lock:
            # Arrays end in any thread, amid a collection too, which must not wait for this lock.
            while self._ended:
                self._allocator.free(self._ended.popleft())
            # Nothing at all has no place: two of them would begin at the same byte.
            begin = self._allocator.take(size) if size else None
        if begin is None:
            return None
        return lent(self._memory[begin : begin + size], partial(self._ended.append, begin))

    def _offset(self, array: ByteArray) -> int:
        return address_of(array) - self._address


class Inbox:
    """The client's side.

    Args:
        fd: Of the memory; it may be closed afterwards.
    """

    def __init__(self, fd: int) -> None:
        self._memory = map_memory(fd, 0)
        self._freed: deque[int] = deque()  # by garbage collection, in whatever thread

    def view(self, offset: int, size: int) -> memoryview:
        """Return the bytes there; they are freed when nothing views them any more.

        Raises:
            RemoteProtocolError: They lie outside of the memory.
        """
        # A slice beyond the end would be shorter without a word.
        if offset % PAGE or size > len(self._memory) - offset:
            raise RemoteProtocolError(
                f"{size} bytes from {offset} on are not in a shared memory of {len(self._memory)}"
            )
        return lent(self._memory[offset : offset + size], partial(self._freed.append, offset)).data

    def take_freed(self) -> tuple[int, ...]:
        """Return the places of which views have ended since the last call."""
        # As many as there are now: other views may end meanwhile, in any thread.
        return tuple(self._freed.popleft() for _ in range(len(self._freed)))
