"""Charts as plain data: values over time, histograms, rows with bars, and tables. No I/O."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from streamrec.report.words import memory, percent, quantity, seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    Point = tuple[float, float]

WIDTH, HEIGHT = 600, 100
POINTS = 120
"""The points of a line that has the whole width."""
STEP = WIDTH / (POINTS - 1)
"""The distance of two points."""

ROUND = (1, 1.5, 2, 3, 4, 5, 6, 8, 10, 20)
"""The last is for what rounding makes of the logarithm of a power of ten."""
TINY = 1e-12
"""A rate or a time below this is nothing: the least floats are not multiples of a power of ten."""


@dataclass(frozen=True)
class Line:
    """Values over time, the oldest first."""

    title: str
    values: list[float | None]
    """``None``: there was nothing to measure."""
    texts: list[str]
    """The values as text, and when they were."""
    summary: str
    """The value that stands beside the title: the present one, or the mean."""
    text: Callable[[float], str]
    """Gives a value as text."""
    end: str = ""
    """The end of the time, where it is not the present."""


@dataclass(frozen=True)
class Chart:
    """The paths of one line, in a box of ``WIDTH`` and ``HEIGHT``."""

    top: float
    """The value at the upper edge; 0 is at the lower one."""
    line: str
    area: str
    """The area below the line."""
    places: list[float]
    """The middle of each point, from the left."""
    step: float = STEP
    """The distance of two points."""


def chart_of(values: Sequence[float | None], step: float = STEP) -> Chart:
    """Return the chart of values, ``step`` apart, the last of which is at the right edge."""
    # The axis begins at 0, so that the height of a line can be compared with another's.
    top = round_above(max((value for value in values if value is not None), default=0.0))
    places = [WIDTH - step * (len(values) - 1 - index) for index in range(len(values))]
    pieces = list(_pieces(values, places, top))
    line = " ".join(_path(piece) for piece in pieces)
    area = " ".join(f"{_path(piece)} V{HEIGHT} H{piece[0][0]:.1f} Z" for piece in pieces)
    return Chart(top=top, line=line, area=area, places=places, step=step)


def round_above(value: float) -> float:
    """Return the least number of one digit, or 1.5, times a power of ten that is not below."""
    if value < TINY:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * digit for digit in ROUND if power * digit >= value)


def _pieces(
    values: Sequence[float | None], places: Sequence[float], top: float
) -> Iterator[list[Point]]:
    """Yield the points of each stretch without a gap."""
    piece: list[Point] = []
    for value, place in zip(values, places, strict=True):
        if value is not None:
            piece.append((place, HEIGHT * (1 - value / top)))
        elif piece:
            yield piece
            piece = []
    if piece:
        yield piece


def _path(piece: list[Point]) -> str:
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in piece)
    # A single point is shown as a short line.
    return f"M{points}" if len(piece) > 1 else f"M{points} h-{STEP / 2:.1f}"


# -- times over a logarithmic axis -----------------------------------------------------------------

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
    import numpy as np  # not at the top: `streamrec top` draws lines alone, and is quick

    # Marks lie within the axis, even where no time is as long.
    logs = np.log10(np.maximum([*times, *marks.values()], LEAST))
    low, high = (logs.min() - 0.05, logs.max() + 0.05) if len(logs) else (0.0, 1.0)
    places = (logs - low) / (high - low)
    counts, edges = np.histogram(places[: len(times)], COLUMNS, (0, 1))
    bounds = 10.0 ** (low + edges * (high - low))
    # Labels stand at round times and not at the edges of columns.
    ticks = _round_times(10.0**low, 10.0**high)
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
            left=edges[index],
            width=edges[index + 1] - edges[index],
            part=count / most,
            detail=f"{seconds(bounds[index])} to {seconds(bounds[index + 1])}: "
            f"{quantity(count, 'request', 'requests')}, {percent(count / total)}",
        )
        for index, count in enumerate(counts)
        if count
    ]


def _round_times(low: float, high: float) -> list[float]:
    """Return the round times between two, fewer where there are many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    digits = TICKS if len(powers) <= 4 else TICKS[:1]
    times = (digit * 10.0**power for power in powers for digit in digits)
    return [time for time in times if low <= time <= high]


# -- rows with bars, and the table of a sweep ------------------------------------------------------

Place: TypeAlias = tuple[int, int]
"""The size of a range, and the number of requests at a time."""


@dataclass(frozen=True)
class BarRow:
    """A named amount, with a bar for its part of the whole."""

    name: str
    text: str
    part: float
    """0 to 1."""
    detail: str = ""
    is_most: bool = False
    """True: the row to look at."""
    is_cut: bool = False
    """True: the bar would be longer than there is room for."""


@dataclass(frozen=True)
class Square:
    """A cell of the table."""

    text: str
    shade: str
    """``h0`` (slowest) to ``h8``; of a ratio, ``better``, ``worse`` or ``noise``."""
    detail: str
    is_plateau: bool = False


@dataclass(frozen=True)
class Grid:
    """Sizes of ranges down, requests at a time across; ``None``: nothing was measured there."""

    columns: list[str]
    rows: list[tuple[str, list[Square | None]]]

    @property
    def has_plateau(self) -> bool:
        """True: the rate of the sweep stopped growing."""
        return any(square and square.is_plateau for _, squares in self.rows for square in squares)

    @property
    def gap(self) -> str:
        """The legend of empty squares; empty: there are none."""
        if all(square for _, squares in self.rows for square in squares):
            return ""
        return "· was not measured: its row had ended, or the row's part of the budget was spent"


def arrange(squares: Mapping[Place, Square]) -> Grid:
    """Return the table of squares."""
    sizes = sorted({size for size, _ in squares})
    many = sorted({count for _, count in squares})
    return Grid(
        columns=[f"{count:,}" for count in many],
        rows=[
            (size_of_range(size), [squares.get((size, count)) for count in many]) for size in sizes
        ],
    )


def size_of_range(count: int) -> str:
    """Return the bytes of a range, without a digit after the point that says nothing."""
    return memory(count).replace(".0 ", " ")
