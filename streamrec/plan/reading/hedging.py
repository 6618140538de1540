"""Hedged requests: a second request for the rest of a slow one.

Pure: its user reports the times of requests; it decides after how long a request counts as slow,
and whether a hedge may be sent. A request is slow if it takes longer than others of its size, or is
silent for longer than they were. Silence tells sooner: requests that share a link all take long,
but each of them receives bytes now and then.

After Jeffrey Dean and Luiz André Barroso, "The Tail at Scale" (Communications of the ACM, 2013).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict, deque
from dataclasses import dataclass, field

KEPT = 256
"""Requests of one size class whose times are kept."""
FEWEST = 16
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
        if len(self._ordered) >= FEWEST:
            self.patience = _patience(self._ordered)


def _patience(ordered: list[float]) -> float:
    """Return the larger of the 99th percentile, capped, and three medians of sorted times."""
    slowest = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    median = ordered[len(ordered) // 2]
    return max(SHORTEST, min(slowest, MOST_MEDIANS * median), MEDIANS * median)
