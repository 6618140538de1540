"""Intervals in which the figures of one run can be trusted. No I/O."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamrec.measure.figures import Job, Sample

ONCE = 0.05
"""A figure that was measured once is taken to be true to this part of it."""
LEAST = 0.025
"""No figure is taken to be truer than this: two runs on one machine differ by as much."""
BLOCKS = 10
STUDENT = 2.262
"""Student's t of ``BLOCKS - 1`` degrees of freedom, 95 %, two-sided."""
NORMAL = 1.96


@dataclass(frozen=True)
class Estimate:
    """A figure, and the interval in which the true one is."""

    value: float
    low: float
    high: float

    def overlaps(self, other: Estimate) -> bool:
        """Return whether the difference of the two may be noise."""
        return self.low <= other.high and other.low <= self.high


def measured_once(value: float) -> Estimate:
    """Return a figure without repetitions."""
    return _within(value, value, value, ONCE)


def job_rate(job: Job, name: str) -> Estimate:
    """Return a job's ``"bytes"`` or ``"records"`` a second.

    The interval follows from the rates of ten parts of the job's time: neighbouring samples depend
    on each other, parts of seconds hardly do.
    """
    value = getattr(job, name) / job.seconds if job.seconds > 0 else 0.0
    if len(job.samples) < BLOCKS:
        return measured_once(value)
    places = np.array_split(np.arange(len(job.samples)), BLOCKS)
    rates = [_rate([job.samples[place] for place in part], name) for part in places]
    margin = STUDENT * float(np.std(rates, ddof=1)) / math.sqrt(BLOCKS)
    return _within(value, value - margin, value + margin)


def _rate(samples: Sequence[Sample], name: str) -> float:
    whole = sum(sample.seconds for sample in samples)
    return float(sum(getattr(sample, name) for sample in samples) / whole) if whole > 0 else 0.0


def quantile(ordered: Sequence[float], part: float, value: float) -> Estimate:
    """Return a quantile of sorted times; its interval is that of the order statistics.

    Too few times say nothing about a high quantile: the interval has no end then.
    """
    count = len(ordered)
    middle, margin = count * part, NORMAL * math.sqrt(count * part * (1 - part))
    first, last = math.floor(middle - margin), math.ceil(middle + margin)
    low = ordered[first] if 0 <= first < count else 0.0
    high = ordered[last] if last < count else math.inf
    return _within(value, low, high)


def _within(value: float, low: float, high: float, least: float = LEAST) -> Estimate:
    return Estimate(value, min(low, value * (1 - least)), max(high, value * (1 + least)))
