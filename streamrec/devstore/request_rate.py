"""The simulated limit of requests a second. Pure: no I/O."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

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
