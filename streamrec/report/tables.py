"""Rows with bars, and the table of a sweep: sizes of ranges down, requests at a time across."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from streamrec.report.words import memory

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    """The table; ``None`` stands where nothing was measured."""

    columns: list[str]
    rows: list[tuple[str, list[Square | None]]]


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
    """Return the bytes of a range, without a digit behind the point that says nothing."""
    return memory(count).replace(".0 ", " ")
