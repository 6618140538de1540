"""Distance and width: the latency before the first byte, and a connection's bandwidth."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable

__all__ = ["UNPACED_SLICE", "Pace", "first_byte_delay"]

UNPACED_SLICE = 1 << 20
"""Bytes a write without a cap: large enough that the work per write does not count."""
SMALLEST_SLICE = 16 << 10
SLICE_SECONDS = 0.01
"""A slice of a capped body: 100 writes a second a connection cost little and look smooth."""
SLACK_SECONDS = 0.05
"""How much time lost to a busy loop is caught up; a reader that stopped gains no more by it."""


def first_byte_delay(latency: float, jitter: float, randomness: random.Random) -> float:
    """Seconds to wait before answering: uniform within ``latency`` plus or minus ``jitter``."""
    if not jitter:
        return latency
    return max(0.0, latency + randomness.uniform(-jitter, jitter))


class Pace:
    """One body's schedule: a byte may leave when the bytes before it have had their time.

    Args:
        rate: Bytes a second; None: as fast as the socket takes them.
        clock: Seconds, monotonic.
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
        self._sleep = sleep
        self._sent = 0
        self._due = clock()

    @property
    def slice(self) -> int:
        """Bytes that the next write should hold at most.

        It starts small and doubles, so that the first byte does not wait for a whole slice.
        """
        if self._rate is None:
            return UNPACED_SLICE
        largest = min(UNPACED_SLICE, max(SMALLEST_SLICE, int(self._rate * SLICE_SECONDS)))
        return min(largest, max(SMALLEST_SLICE, self._sent))

    async def wait(self, size: int) -> None:
        """Return when ``size`` more bytes would have arrived at the other end."""
        self._sent += size
        if self._rate is None:
            return
        now = self._clock()
        self._due = max(self._due, now - SLACK_SECONDS) + size / self._rate
        if self._due > now:
            await self._sleep(self._due - now)
