"""The sweep as a table: sizes of ranges down, requests at a time across. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from streamrec.report.words import counted, memory, percent, rate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streamrec.measure.figures import Cell, Sweep

Place: TypeAlias = tuple[int, int]
"""The size of a range, and the number of requests at a time."""

LEVELS = 9
"""The shades of a heat map."""


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
    """The table; ``None`` stands where nothing was measured."""

    columns: list[str]
    rows: list[tuple[str, list[Square | None]]]


def grid_of(sweep: Sweep) -> Grid:
    """Return the table of a sweep."""
    best = max((cell.bytes_per_second for cell in sweep.cells), default=0.0)
    squares = {
        place_of(cell): Square(
            _megabytes(cell.bytes_per_second),
            _shade(cell.bytes_per_second, best),
            _detail(cell),
            index == sweep.plateau,
        )
        for index, cell in enumerate(sweep.cells)
    }
    return arranged(squares)


def place_of(cell: Cell) -> Place:
    """Return where a cell stands."""
    return cell.range_bytes, cell.concurrency


def arranged(squares: Mapping[Place, Square]) -> Grid:
    """Return the table of squares."""
    sizes = sorted({size for size, _ in squares})
    many = sorted({count for _, count in squares})
    return Grid(
        columns=[f"{count:,}" for count in many],
        rows=[(_size(size), [squares.get((size, count)) for count in many]) for size in sizes],
    )


def _megabytes(bytes_per_second: float) -> str:
    amount = bytes_per_second / 1e6
    return f"{amount:,.0f}" if amount >= 10 else f"{amount:.1f}"


def _size(count: int) -> str:
    return memory(count).replace(".0 ", " ")


def _shade(bytes_per_second: float, best: float) -> str:
    return f"h{min(int(LEVELS * bytes_per_second / best), LEVELS - 1) if best > 0 else 0}"


def _detail(cell: Cell) -> str:
    at_a_time = counted(cell.concurrency, "request", "requests")
    parts = [
        f"{at_a_time} of {_size(cell.range_bytes)} at a time",
        rate(cell.bytes_per_second),
        f"{counted(cell.requests, 'request', 'requests')} in {cell.seconds:.1f} s",
        f"event loop {percent(cell.loop_busy)} of a core",
    ]
    throttled = [f"{cell.throttled:,} told to slow down"] if cell.throttled else []
    return ", ".join(parts + throttled)
