"""The limit of requests in flight, and hedged requests: a second one for the rest of a slow one.

Pure: their user reports what happened, and the times of requests. The limit is adjusted to the rate
that each limit brought, and kept with its reason. Hedging decides after how long a request counts
as slow, and whether a hedge may be sent. A request is slow if it takes longer than others of its
size, or is silent for longer than they were. Silence tells sooner: requests that share a link all
take long, but each of them receives bytes now and then.

After Jeffrey Dean and Luiz André Barroso, "The Tail at Scale" (Communications of the ACM, 2013).
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import defaultdict, deque
from dataclasses import dataclass, field
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


KEPT = 256
"""Requests of one size class whose times are kept."""
FEWEST_TIMES = 16
"""Requests from which their times are used to judge others."""
MEDIANS = 3.0
"""Medians after which a request is slow, at least."""
MOST_MEDIANS = 5.0
"""Medians up to which the 99th percentile counts: if one request in fifty stalls, the stalls
must not raise the patience."""
SHORTEST = 0.1
"""Seconds that a busy event loop may lose, which do not make a request slow."""
UNKNOWN = 0.5
"""Seconds of silence while too few requests have ended. At a store that always takes longer,
``SHARE`` bounds the hedges that this causes."""
UNKNOWN_WHOLE = 2.0
"""Seconds for a whole request while too few have ended and the link's rate is unknown."""
SHARE = 0.05
"""The part of all requests that may be hedges; one may always be sent."""
MOST_AT_ONCE = 4
"""Hedges in flight. Requests that are slow all at once share a reason, a busy machine or store,
which would slow hedges too. A tail of 1 % of 340 requests a second, each ended by a hedge after a
quarter of a second, takes one."""
QUIET = 5.0
"""Seconds without hedges after the store has asked to slow down."""


class Hedging:
    """The decision when to send a hedge."""

    def __init__(self) -> None:
        self._wholes: defaultdict[int, _Times] = defaultdict(_Times)
        self._silences: defaultdict[int, _Times] = defaultdict(_Times)
        self._quiet_until = float("-inf")

    def finished(self, nbytes: int, seconds: float, silence: float) -> None:
        """Record a request that ended without being overtaken by a hedge.

        Args:
            nbytes: Bytes that it brought.
            seconds: Its whole time.
            silence: Its longest time without a byte, in seconds, the one before the first included.
        """
        # By powers of two, as times are compared with those of about the same size.
        self._wholes[nbytes.bit_length()].add(seconds)
        self._silences[nbytes.bit_length()].add(silence)

    def throttled(self, now: float) -> None:
        """Record that the store asked to slow down; ``now`` in seconds."""
        self._quiet_until = now + QUIET

    def patience(self, nbytes: int) -> float:
        """Return the seconds after which a request for ``nbytes`` bytes is slow."""
        return self._wholes[nbytes.bit_length()].patience or UNKNOWN_WHOLE

    def silence(self, nbytes: int) -> float:
        """Return the seconds without a byte after which a request for ``nbytes`` bytes is slow."""
        return self._silences[nbytes.bit_length()].patience or UNKNOWN

    def allows(self, now: float, *, hedges: int, requests: int, under_way: int) -> bool:
        """Return ``True`` if one more hedge may be sent.

        Args:
            now: Seconds, of the clock of :meth:`throttled`.
            hedges: The number of hedges so far.
            requests: The number of requests so far, hedges included.
            under_way: The number of hedges in flight.
        """
        has_share = hedges < max(1.0, SHARE * requests)
        return now >= self._quiet_until and has_share and under_way < MOST_AT_ONCE


@dataclass(slots=True)
class _Times:
    """The times of the latest requests of one size class."""

    patience: float | None = None
    """Seconds after which a request is slow; ``None``: too few times are known."""
    _latest: deque[float] = field(default_factory=deque)
    _ordered: list[float] = field(default_factory=list)

    def add(self, seconds: float) -> None:
        if len(self._latest) == KEPT:
            # The oldest time, which stands somewhere among the sorted ones.
            del self._ordered[bisect_left(self._ordered, self._latest.popleft())]
        self._latest.append(seconds)
        insort(self._ordered, seconds)
        if len(self._ordered) >= FEWEST_TIMES:
            self.patience = _patience(self._ordered)


def _patience(ordered: list[float]) -> float:
    """Return the larger of the 99th percentile, capped, and three medians of sorted times."""
    slowest = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    median = ordered[len(ordered) // 2]
    return max(SHORTEST, min(slowest, MOST_MEDIANS * median), MEDIANS * median)
