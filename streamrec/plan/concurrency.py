"""How many requests are in flight: what to change after a look at what the last ones brought.

Pure: it is told what happened, and keeps a number and the reason for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["MOST", "START", "Concurrency", "Interval"]

START = 64
"""From a store with 50 ms to the first byte and 60 MB/s a connection, a plain downloader on two
cores reached its best rate with 32 to 64 requests. A ramp from one would take seconds to get
there."""
MOST = 256
"""Past this, connections cost more than they bring."""
FEWEST = 4
GROWTH = 1.25
SHRINKAGE = 0.7
GAIN = 1.05
"""More requests have to bring a twentieth more bytes, else they are given back."""
SETTLING = 2
"""Intervals until a change can show: the requests of before must have ended."""
HOLD = 8
"""Intervals without a change after one that was of no use; doubles each time."""
LONGEST_HOLD = 128


@dataclass(frozen=True, slots=True)
class Interval:
    """What happened since the last look."""

    seconds: float
    nbytes: int
    """Bytes that landed."""
    throttled: int = 0
    """Answers that asked to slow down."""
    limited: bool = True
    """Whether another request would have been sent, had the number of requests allowed it."""
    starved: bool = True
    """Whether the consumer had to wait for bytes."""


class Concurrency:
    """The number of requests in flight.

    Args:
        start: Where to begin.
        most: Never more than this.
    """

    def __init__(self, start: int, most: int) -> None:
        self.limit = max(1, min(start, most))
        """The most requests that may be in flight now."""
        self.reason = "the start"
        """Why it is not more."""
        self._most = most
        self._fewest = min(FEWEST, self.limit)
        self._quiet = 0  # intervals for which nothing is to be tried
        self._hold = HOLD
        self._before: tuple[int, float] | None = None  # limit and rate before the last growth

    def __repr__(self) -> str:
        return f"<Concurrency {self.limit} of {self._most}: {self.reason}>"

    def observe(self, interval: Interval) -> None:
        """Look at an interval, and change the limit or leave it."""
        if interval.throttled:
            self._shrink()
        elif not interval.starved:
            self._leave("the consumer has what it needs")
        elif not interval.limited:
            self._leave("the buffers are full, or nothing is left to ask for")
        elif self._quiet:
            self._quiet -= 1
        else:
            self._judge(interval.nbytes / interval.seconds)

    def _shrink(self) -> None:
        self.limit = max(self._fewest, int(self.limit * SHRINKAGE))
        self.reason = "the store asked to slow down"
        self._before, self._quiet = None, HOLD

    def _leave(self, reason: str) -> None:
        self.reason = reason
        self._before = None
        self._quiet = max(0, self._quiet - 1)

    def _judge(self, rate: float) -> None:
        if self._before is not None and rate < GAIN * self._before[1]:
            self.limit, self._before = self._before[0], None
            self.reason = "more requests brought no more bytes"
            self._quiet, self._hold = self._hold, min(2 * self._hold, LONGEST_HOLD)
        elif self.limit == self._most:
            self.reason, self._before = "max_concurrency", None
        else:
            self._grow(rate)

    def _grow(self, rate: float) -> None:
        if self._before is not None:
            self._hold = HOLD
        self._before = self.limit, rate
        self.limit = min(self._most, math.ceil(self.limit * GROWTH))
        self.reason = "more requests bring more bytes"
        self._quiet = SETTLING
