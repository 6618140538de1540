"""Lines over the last minutes as the paths of an SVG."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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
    top = round_above(max((value for value in values if value is not None), default=0.0))
    places = [WIDTH - step * (len(values) - 1 - index) for index in range(len(values))]
    pieces = list(_pieces(values, places, top))
    line = " ".join(_path(piece) for piece in pieces)
    area = " ".join(f"{_path(piece)} V{HEIGHT} H{piece[0][0]:.1f} Z" for piece in pieces)
    return Chart(top, line, area, places, step)


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
