"""The simulated jitter of latencies. Pure: no I/O."""

from __future__ import annotations

import math
import random


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
