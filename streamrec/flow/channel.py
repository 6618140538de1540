"""A channel with two closable ends, bounded by bytes.

:class:`EndOfStream`, or the error that the sender closed the channel with, reaches the receiver
after all values that were sent before.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class EndOfStream(Exception):
    """The sender closed the channel, and all values are received."""


class Channel(Generic[T]):
    """A bounded queue of values from one task to another, within one event loop.

    Args:
        capacity: Bytes that may wait; one value larger than that may wait alone.
        most: Values that may wait.
    """

    def __init__(self, capacity: int, most: int) -> None:
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
        """``True`` once nothing more will be sent."""
        return self._closed_by is not None

    async def send(self, value: T, size: int) -> None:
        """Send a value of ``size`` bytes, as soon as there is room.

        Raises:
            RuntimeError: The channel was closed.
        """
        await self.wait_for_room(size)
        self._values.append((value, size))
        self.waiting_bytes += size
        self._notify()

    async def wait_for_room(self, size: int) -> None:
        """Wait until a value of ``size`` bytes can be sent; it need not exist yet.

        Raises:
            RuntimeError: The channel was closed.
        """
        while self._closed_by is None and not self._has_room(size):
            await self._changed.wait()
        if self._closed_by is not None:
            raise RuntimeError("the channel is closed")

    async def receive(self) -> T:
        """Wait for the next value and return it.

        Raises:
            EndOfStream: The sender closed the channel, and all values are received.
            BaseException: The sender closed the channel with this error.
        """
        while not self._values:
            if self._closed_by is not None:
                # A new end each time: the traceback of one that is kept holds who received it.
                is_end = isinstance(self._closed_by, EndOfStream)
                raise EndOfStream if is_end else self._closed_by
            await self._changed.wait()
        value, size = self._values.popleft()
        self.waiting_bytes -= size
        self._notify()
        return value

    async def close(self, error: BaseException | None = None) -> None:
        """Close the channel; waiting values can still be received. Closing again does nothing."""
        self._closed_by = self._closed_by or error or EndOfStream()
        self._notify()

    def take_all(self) -> deque[tuple[T, int]]:
        """Take out the waiting values and their sizes; freeing large ones takes a while."""
        values, self._values = self._values, deque()
        self.waiting_bytes = 0
        self._notify()
        return values

    def _notify(self) -> None:
        """Wake all waiting tasks; each checks its condition again."""
        # Set and cleared in one step: it wakes all who wait now, and nobody who comes later.
        self._changed.set()
        self._changed.clear()

    def _has_room(self, size: int) -> bool:
        # One value may wait alone, however large: else it could never be sent.
        if not self._values:
            return True
        fits = self.waiting_bytes + size <= self.capacity
        return fits and len(self._values) < self.most
