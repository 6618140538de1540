"""The simulated bandwidth of connections and their link, jitter, and a limit of requests."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


BURST_SECONDS = 0.1
"""Seconds of the rate that may come at once: clients send in bursts, and stores bear small ones."""


class RequestRate:
    """A token bucket: it admits requests up to a rate, and small bursts beyond it.

    Args:
        rate: Requests a second.
        clock: Returns seconds, monotonic.
    """

    def __init__(self, rate: float, clock: Callable[[], float]) -> None:
        self._rate = rate
        self._clock = clock
        self._most = max(2.0, rate * BURST_SECONDS)  # one would lose parts of tokens in between
        self._tokens, self._filled = self._most, -math.inf

    def admit(self) -> bool:
        """Count a request, and return whether it is within the rate."""
        now = self._clock()
        self._tokens = min(self._most, self._tokens + (now - self._filled) * self._rate)
        self._filled = now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True


class Jitter:
    """A source of latencies around a mean, drawn from a log-normal distribution.

    Stores answer like that: never at once, mostly a little before the mean, now and then far behind
    it. A uniform distribution has no such tail, and a normal one has negative values.

    Args:
        deviation: The standard deviation, as a part of the mean; 0: each latency is the mean.
        seed: The seed of the draws.
    """

    def __init__(self, deviation: float, seed: int) -> None:
        variance = math.log1p(deviation**2)
        self._sigma = math.sqrt(variance)
        self._mu = -variance / 2  # which makes the mean of the factors 1
        # Not the numbers of faults: then the same requests would always be late and faulty.
        self._randomness = random.Random(f"jitter {seed}")

    def draw(self, mean: float) -> float:
        """Return a latency, in the unit of the mean."""
        return mean * self._randomness.lognormvariate(self._mu, self._sigma)


UNPACED_SLICE = 1 << 20
"""Bytes of a write without a bandwidth: large, so that the cost of each write does not matter."""
SMALLEST_SLICE = 16 << 10
SLICE_SECONDS = 0.01
"""Seconds that a slice takes at a given bandwidth: 100 writes a second are cheap and smooth."""
SLACK_SECONDS = 0.05
"""Most seconds of delay that are caught up. It covers a busy loop, but not a reader that paused."""
LINK_SLICE_SECONDS = 0.001
"""Seconds that a slice takes on the link: each body waits for a slice of every other one."""


class SharedLink:
    """The schedule of all bodies together, which share a rate slice by slice, in turn.

    A body that its connection holds back takes its turn less often, and leaves the rest to others.

    Args:
        rate: Bytes a second.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._free = -math.inf

    @property
    def slice(self) -> int:
        """The most bytes that a turn should hold."""
        return max(SMALLEST_SLICE, int(self._rate * LINK_SLICE_SECONDS))

    def reserve(self, start: float, size: int) -> float:
        """Reserve the link for ``size`` bytes; return the time at which they have passed.

        Args:
            start: The time from which the bytes are ready; what the link could have carried while
                nothing was ready is lost.
            size: The number of bytes.
        """
        self._free = max(self._free, start) + size / self._rate
        return self._free


class Pace:
    """The schedule of one body, which is sent at a given rate.

    Args:
        rate: Bytes a second; None: as fast as the socket takes them.
        clock: Returns seconds, monotonic.
        sleep: Waits that many seconds.
        link: The link that the body shares with others; None: without limit.
    """

    def __init__(
        self,
        rate: float | None,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
        link: SharedLink | None = None,
    ) -> None:
        self._rate = rate
        self._link = link
        self._clock = clock
        self.sleep = sleep
        self._sent = 0
        self._due = clock()

    @property
    def slice(self) -> int:
        """The most bytes that the next write should hold.

        It starts small and doubles, so that the first byte does not wait for a whole slice.
        """
        if self._rate is None and self._link is None:
            return UNPACED_SLICE
        largest = UNPACED_SLICE if self._link is None else min(UNPACED_SLICE, self._link.slice)
        if self._rate is not None:
            largest = min(largest, max(SMALLEST_SLICE, int(self._rate * SLICE_SECONDS)))
        return min(largest, max(SMALLEST_SLICE, self._sent))

    async def wait(self, size: int) -> None:
        """Wait until ``size`` more bytes would have arrived at the client."""
        self._sent += size
        if self._rate is None and self._link is None:
            return
        now = self._clock()
        start = max(self._due, now - SLACK_SECONDS)
        passed = start if self._link is None else self._link.reserve(start, size)
        self._due = max(passed, start if self._rate is None else start + size / self._rate)
        if self._due > now:
            await self.sleep(self._due - now)
