"""A channel with two closable ends, bounded by bytes.

Errors say who did it: :class:`EndOfStream` and any other error that the sender closed with reach
the receiver after everything that was sent before.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

__all__ = ["Channel", "EndOfStream"]

T = TypeVar("T")


class EndOfStream(Exception):
    """The sender is done: nothing will follow."""


class Channel(Generic[T]):
    """Passes values from one task to another, within one event loop.

    Args:
        capacity: Bytes that may wait; one value larger than that may wait alone.
        most: Values that may wait.
    """

    def __init__(self, capacity: int, most: int | None = None) -> None:
        self.capacity = capacity
        self.most = most
        self.waiting_bytes = 0
        self._values: deque[tuple[T, int]] = deque()
        self._closed_by: BaseException | None = None
        self._changed = asyncio.Event()

    def __repr__(self) -> str:
        state = "open" if self._closed_by is None else f"closed by {self._closed_by!r}"
        return f"<Channel {state}, {len(self._values)} waiting, {self.waiting_bytes} bytes>"

    def __len__(self) -> int:
        return len(self._values)

    @property
    def is_closed(self) -> bool:
        """Whether nothing more will be sent."""
        return self._closed_by is not None

    async def send(self, value: T, size: int) -> None:
        """Hand over a value of so many bytes; waits for room.

        Raises:
            RuntimeError: The channel was closed.
        """
        await self.wait_for_room(size)
        self._values.append((value, size))
        self.waiting_bytes += size
        self._notify()

    async def wait_for_room(self, size: int) -> None:
        """Wait until a value of so many bytes could be sent, before it is made.

        Raises:
            RuntimeError: The channel was closed.
        """
        while self._closed_by is None and not self._has_room(size):
            await self._changed.wait()
        if self._closed_by is not None:
            raise RuntimeError("the channel is closed")

    async def receive(self) -> T:
        """Take the next value.

        Raises:
            EndOfStream: The sender closed it, and all that it sent is taken.
            BaseException: What the sender closed it with.
        """
        while not self._values:
            if self._closed_by is not None:
                raise self._closed_by
            await self._changed.wait()
        value, size = self._values.popleft()
        self.waiting_bytes -= size
        self._notify()
        return value

    async def close(self, error: BaseException | None = None) -> None:
        """End it; what waits can still be received. Closing again changes nothing."""
        self._closed_by = self._closed_by or error or EndOfStream()
        self._notify()

    def clear(self) -> None:
        """Let go of what waits: nobody will receive it."""
        self._values.clear()
        self.waiting_bytes = 0
        self._notify()

    def _notify(self) -> None:
        """Have all who wait look again."""
        self._changed.set()
        self._changed.clear()

    def _has_room(self, size: int) -> bool:
        if not self._values:
            return True
        fits = self.waiting_bytes + size <= self.capacity
        return fits and (self.most is None or len(self._values) < self.most)
