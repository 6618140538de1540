"""The parts of views in a terminal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich import box
from rich.bar import Bar
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from streamrec.report.charts import POINTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console, ConsoleOptions, RenderResult

BLOCKS = "▁▂▃▄▅▆▇█"
BAR = 24
"""The characters of a bar."""
LINE = POINTS
"""The most characters of a line: one for each point."""


def sparkline(values: Sequence[float | None], width: int = LINE) -> str:
    """Return the last values as a line of blocks; a gap where there is none."""
    some = values[-width:]
    top = max((value for value in some if value is not None), default=0.0)
    blocks = (" " if value is None else _block(value, top) for value in some)
    return "".join(blocks).rjust(width)


def _block(value: float, top: float) -> str:
    return BLOCKS[min(int(len(BLOCKS) * value / top), len(BLOCKS) - 1)] if top > 0 else BLOCKS[0]


@dataclass(frozen=True)
class Sparkline:
    """A line of blocks that is as wide as there is room."""

    values: Sequence[float | None]

    def __rich_measure__(self, _: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(min(10, options.max_width), min(LINE, options.max_width))

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(sparkline(self.values, min(LINE, options.max_width)), "blue", no_wrap=True)


def bar_of(part: float, color: str = "blue", width: int = BAR) -> Bar:
    """Return a bar of ``width`` characters, of which a part (0 to 1) is filled."""
    return Bar(1, 0, part, width=width, color=color)


def table_of(*columns: tuple[str, str]) -> Table:
    """Return a table without frame; each column has a name, and ``left`` or ``right``."""
    table = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        header_style="dim",
        padding=(0, 2, 0, 0),
    )
    for name, justify in columns:
        right = justify == "right"
        # Numbers that wrap cannot be compared; text may.
        table.add_column(name, justify="right" if right else "left", no_wrap=right)
    return table
