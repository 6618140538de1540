"""The simulated bandwidth of a connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["UNPACED_SLICE", "Pace"]

UNPACED_SLICE = 1 << 20
"""Bytes of a write without a bandwidth: large, so that the cost of each write does not matter."""
SMALLEST_SLICE = 16 << 10
SLICE_SECONDS = 0.01
"""Seconds that a slice takes at a given bandwidth: 100 writes a second are cheap and smooth."""
SLACK_SECONDS = 0.05
"""Most seconds of delay that are caught up. It covers a busy loop, but no reader that paused."""


class Pace:
    """The schedule of one body, which is sent at a given rate.

    Args:
        rate: Bytes a second; None: as fast as the socket takes them.
        clock: Returns seconds, monotonic.
        sleep: Waits that many seconds.
    """

    def __init__(
        self,
        rate: float | None,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self._rate = rate
        self._clock = clock
        self.sleep = sleep
        self._sent = 0
        self._due = clock()

    @property
    def slice(self) -> int:
        """The most bytes that the next write should hold.

        It starts small and doubles, so that the first byte does not wait for a whole slice.
        """
        if self._rate is None:
            return UNPACED_SLICE
        largest = min(UNPACED_SLICE, max(SMALLEST_SLICE, int(self._rate * SLICE_SECONDS)))
        return min(largest, max(SMALLEST_SLICE, self._sent))

    async def wait(self, size: int) -> None:
        """Wait until ``size`` more bytes would have arrived at the client."""
        self._sent += size
        if self._rate is None:
            return
        now = self._clock()
        self._due = max(self._due, now - SLACK_SECONDS) + size / self._rate
        if self._due > now:
            await self.sleep(self._due - now)
