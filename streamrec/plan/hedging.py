"""When a request is so slow that another one is sent for what it still owes.

Pure: it is told how long requests took, and says how long to wait and whether one more may be sent.
Two things make a request slow: it takes longer than others of its size, or it is silent for longer
than they were. Silence tells sooner: requests that share a link all take long, but every one of
them is heard of now and then.

After Jeffrey Dean and Luiz André Barroso, "The Tail at Scale" (Communications of the ACM, 2013).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict, deque
from dataclasses import dataclass, field

__all__ = ["Hedging"]

KEPT = 256
"""Requests of one size whose times are remembered."""
FEWEST = 16
"""Requests that say something about the others."""
MEDIANS = 3.0
MOST_MEDIANS = 5.0
"""The 99th percentile counts up to here: a store where one request in fifty stalls must not teach
patience with those that do."""
SHORTEST = 0.1
"""Seconds: what a busy event loop can lose is no sign of a slow request."""
UNKNOWN = 0.5
"""Seconds of silence where too few requests have ended: a store that always takes longer costs no
more than the share of requests that hedges may be."""
UNKNOWN_WHOLE = 2.0
"""Seconds for a whole request, likewise. More: what a link gives each of many is not known yet."""
SHARE = 0.05
MOST_AT_ONCE = 4
"""Hedges under way. Requests that are slow all at once are so for one reason, and others sent then
would be too: the machine is busy, or the store. A tail of 1 % of 340 requests a second, each of
which a hedge ends after a quarter of a second, takes one."""
QUIET = 5.0
"""Seconds without hedges after the store has asked to slow down."""


class Hedging:
    """Decides about hedges.

    Args:
        share: Hedges may be this part of all requests; one may always be sent.
    """

    def __init__(self, share: float = SHARE) -> None:
        self._share = share
        self._wholes: defaultdict[int, _Times] = defaultdict(_Times)
        self._silences: defaultdict[int, _Times] = defaultdict(_Times)
        self._quiet_until = float("-inf")

    def finished(self, nbytes: int, seconds: float, silence: float) -> None:
        """A request brought so many bytes; it was not overtaken.

        Args:
            nbytes: Bytes.
            seconds: It took so long.
            silence: The longest time of it without a byte, that before the first one included.
        """
        self._wholes[nbytes.bit_length()].add(seconds)
        self._silences[nbytes.bit_length()].add(silence)

    def throttled(self, now: float) -> None:
        """The store asked to slow down."""
        self._quiet_until = now + QUIET

    def patience(self, nbytes: int) -> float:
        """Seconds after which a request for so many bytes is slow."""
        return self._wholes[nbytes.bit_length()].patience or UNKNOWN_WHOLE

    def silence(self, nbytes: int) -> float:
        """Seconds without a byte after which a request for so many bytes is slow."""
        return self._silences[nbytes.bit_length()].patience or UNKNOWN

    def allows(self, now: float, *, hedges: int, requests: int, under_way: int) -> bool:
        """Whether one more may be sent.

        Args:
            now: Seconds, of the clock of :meth:`throttled`.
            hedges: How many there were.
            requests: How many requests there were, hedges and all.
            under_way: How many hedges there are now.
        """
        has_share = hedges < max(1.0, self._share * requests)
        return now >= self._quiet_until and has_share and under_way < MOST_AT_ONCE


@dataclass(slots=True)
class _Times:
    """Of requests of one size."""

    patience: float | None = None
    """The seconds after which one is slow; ``None``: too few are known."""
    _latest: deque[float] = field(default_factory=deque)
    _ordered: list[float] = field(default_factory=list)

    def add(self, seconds: float) -> None:
        if len(self._latest) == KEPT:
            del self._ordered[bisect_left(self._ordered, self._latest.popleft())]
        self._latest.append(seconds)
        insort(self._ordered, seconds)
        if len(self._ordered) >= FEWEST:
            self.patience = _patience(self._ordered)


def _patience(ordered: list[float]) -> float:
    """The larger of the 99th percentile and three medians; of times that rise."""
    slowest = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    median = ordered[len(ordered) // 2]
    return max(SHORTEST, min(slowest, MOST_MEDIANS * median), MEDIANS * median)
