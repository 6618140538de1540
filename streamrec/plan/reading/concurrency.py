"""The limit of requests in flight, adjusted to the rate that each limit brought.

Pure: its user reports what happened; it keeps the limit and the reason for it.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

START = 64
"""Requests at the start. From a store with 50 ms to the first byte and 60 MB/s a connection, a
plain downloader on two cores reached its best rate with 32 to 64; a ramp from one would take
seconds."""
MOST = 256
"""Requests beyond which connections cost more than they bring."""
FEWEST = 4
GROWTH = 1.25
# Less than 1 / GROWTH, so that a growth after it stays below the limit that was too much.
SHRINKAGE = 0.7
GAIN = 1.05
"""More requests must bring a twentieth more bytes, or the limit goes back."""
SETTLING = 2
"""Intervals until a change shows: the requests from before it must have ended."""
HOLD = 8
"""Intervals without a change after one that brought nothing; doubled each time."""
LONGEST_HOLD = 128


class Limit(StrEnum):
    """The cause for which no more requests are in flight."""

    BEGINNING = "beginning"
    SATISFIED = "satisfied"
    BUFFERS = "buffers"
    EXHAUSTED = "exhausted"
    THROTTLED = "throttled"
    GROWING = "growing"
    SATURATED = "saturated"
    MAXIMUM = "maximum"

    @property
    def text(self) -> str:
        """The cause in words."""
        return _TEXTS[self]


_TEXTS = {
    Limit.BEGINNING: "the start",
    Limit.SATISFIED: "the consumer has what it needs",
    Limit.BUFFERS: "the buffers are full",
    Limit.EXHAUSTED: "everything is requested already",
    Limit.THROTTLED: "the store asked to slow down",
    Limit.GROWING: "more requests bring more bytes",
    Limit.SATURATED: "more requests brought no more bytes",
    Limit.MAXIMUM: "max_concurrency",
}


def main_limit(seconds: Mapping[str, float]) -> tuple[Limit, float] | None:
    """Return the cause that kept the engine from more requests for longest, and its part of 1.

    Time in which the consumer had what it needs does not count.

    Args:
        seconds: The seconds of each cause, as :attr:`Concurrency.seconds`.

    Returns:
        The cause; ``None``: the consumer never had to wait.
    """
    waited = {cause: seconds.get(cause, 0.0) for cause in Limit if cause != Limit.SATISFIED}
    total = sum(waited.values())
    longest = max(waited, key=lambda cause: waited[cause])
    return (longest, waited[longest] / total) if total else None


class Concurrency:
    """The limit of requests in flight.

    Args:
        start: The limit at the start.
        most: The largest limit.
    """

    def __init__(self, start: int, most: int) -> None:
        self.limit = max(1, min(start, most))
        """The most requests that may be in flight now."""
        self.cause = Limit.BEGINNING
        """The cause for which there are no more."""
        self.seconds: dict[Limit, float] = {}
        """The seconds for which each cause held."""
        self._most = most
        self._fewest = min(FEWEST, self.limit)
        self._quiet = 0  # intervals left without a try of more requests
        self._hold = HOLD
        self._before: tuple[int, float] | None = None  # limit and rate before the last growth

    def __repr__(self) -> str:
        return f"<Concurrency {self.limit} of {self._most}: {self.cause.text}>"

    def observe(
        self,
        seconds: float,
        nbytes: int,
        throttled: int = 0,
        *,
        limited: bool = True,
        starved: bool = True,
        full: bool = False,
    ) -> None:
        """Change the limit, or leave it, after an interval.

        Args:
            seconds: The interval's length.
            nbytes: Bytes that arrived.
            throttled: Answers in which the store asked to slow down.
            limited: Whether only the limit held another request back.
            starved: Whether the consumer had to wait for bytes.
            full: Whether a request was kept back for want of memory.
        """
        if throttled:
            self._shrink()
        # Whoever has enough learns nothing of the limit, and more would only fill memory.
        elif not starved:
            self._leave(Limit.SATISFIED)
        elif not limited:
            self._leave(Limit.BUFFERS if full else Limit.EXHAUSTED)
        elif self._quiet:
            self._quiet -= 1
        else:
            self._judge(nbytes / seconds)
        self.seconds[self.cause] = self.seconds.get(self.cause, 0.0) + seconds

    def _shrink(self) -> None:
        self.limit = max(self._fewest, int(self.limit * SHRINKAGE))
        self.cause = Limit.THROTTLED
        # The rate from before the store slowed down judges nothing any more.
        self._before, self._quiet = None, HOLD

    def _leave(self, cause: Limit) -> None:
        self.cause = cause
        # A rate that something else held down is no measure of the limit.
        self._before = None
        self._quiet = max(0, self._quiet - 1)

    def _judge(self, rate: float) -> None:
        if self._before is not None and rate < GAIN * self._before[1]:
            self.limit, self._before = self._before[0], None
            self.cause = Limit.SATURATED
            self._quiet, self._hold = self._hold, min(2 * self._hold, LONGEST_HOLD)
        elif self.limit == self._most:
            self.cause, self._before = Limit.MAXIMUM, None
        else:
            self._grow(rate)

    def _grow(self, rate: float) -> None:
        # The growth before brought bytes, so that tries are worth their time again.
        if self._before is not None:
            self._hold = HOLD
        self._before = self.limit, rate
        self.limit = min(self._most, math.ceil(self.limit * GROWTH))
        self.cause = Limit.GROWING
        self._quiet = SETTLING
