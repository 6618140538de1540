"""Tables in Markdown, aligned so that they can be read as plain text, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

MISSING = "-"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table, its first column aligned to the left, the others to the right.

    Args:
        head: Names of the columns.
        rows: Rows of as many cells each.
    """
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    rule = ["-" * widths[0], *("-" * (max(width, 2) - 1) + ":" for width in widths[1:])]
    return "\n".join(_line(cells, widths) for cells in (head, rule, *rows))


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = zip(cells, widths, strict=True)
    padded = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
    return f"| {' | '.join(padded)} |"


def number(value: float | None) -> str:
    """Format a number with at least three digits."""
    if value is None:
        return MISSING
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}"
