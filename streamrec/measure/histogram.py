"""A distribution of times over a logarithmic axis. No I/O."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from streamrec.report.words import counted, percent, seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

COLUMNS = 48
TICKS = (1, 2, 5)
"""The digits of round times."""
LEAST = 1e-6
"""Seconds; a time below it counts as this one, since a logarithm has no zero."""


@dataclass(frozen=True)
class Column:
    """The times between two places of the axis."""

    left: float
    width: float
    part: float
    """0 to 1; 1 is the fullest column."""
    detail: str


@dataclass(frozen=True)
class AxisMark:
    """A place on the axis, which goes from 0 to 1."""

    place: float
    text: str


@dataclass(frozen=True)
class HistogramChart:
    """The columns that hold any times, round times of the axis, and marked ones."""

    columns: list[Column]
    ticks: list[AxisMark]
    marks: list[AxisMark]


def histogram_of(times: Sequence[float], marks: dict[str, float]) -> HistogramChart:
    """Return the histogram of times.

    Args:
        times: The times in seconds.
        marks: Times to mark, by name.
    """
    logs = np.log10(np.maximum([*times, *marks.values()], LEAST))
    low, high = (logs.min() - 0.05, logs.max() + 0.05) if len(logs) else (0.0, 1.0)
    places = (logs - low) / (high - low)
    counts, edges = np.histogram(places[: len(times)], COLUMNS, (0, 1))
    bounds = 10.0 ** (low + edges * (high - low))
    ticks = _round(10.0**low, 10.0**high)
    on_axis = (np.log10(ticks) - low) / (high - low)
    named = zip(places[len(times) :].tolist(), marks.items(), strict=True)
    return HistogramChart(
        columns=_columns(counts.tolist(), edges.tolist(), bounds.tolist(), len(times)),
        ticks=[AxisMark(*tick) for tick in zip(on_axis.tolist(), map(seconds, ticks), strict=True)],
        marks=[AxisMark(place, f"{name} {seconds(time)}") for place, (name, time) in named],
    )


def _columns(
    counts: list[int], edges: list[float], bounds: list[float], total: int
) -> list[Column]:
    most = max(counts)
    return [
        Column(
            edges[index],
            edges[index + 1] - edges[index],
            count / most,
            f"{seconds(bounds[index])} to {seconds(bounds[index + 1])}: "
            f"{counted(count, 'request', 'requests')}, {percent(count / total)}",
        )
        for index, count in enumerate(counts)
        if count
    ]


def _round(low: float, high: float) -> list[float]:
    """Return the round times between two, fewer where there are many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    digits = TICKS if len(powers) <= 4 else TICKS[:1]
    times = (digit * 10.0**power for power in powers for digit in digits)
    return [time for time in times if low <= time <= high]
