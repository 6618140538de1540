"""Draws the rates: a panel for each group of whole readings."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from bench.chart import CEILING, OTHER, OWN, bars, new_figure, save
from bench.fetching.growth import GROWTH, MEMORY
from bench.fetching.targets import FIRST

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bench.measure import Result

WIDTH, ROW, HEAD = 7.5, 0.24, 0.55
"""Inches: width of the chart, height of a bar, and height of a panel without its bars."""


def draw(results: Sequence[Result], title: str, target: Path) -> None:
    """Draw bars of MB/s, each with the seconds to the first batch where they were measured.

    Args:
        results: Results of the run.
        title: Text above the panels.
        target: SVG file, replaced if it exists.

    Raises:
        ImportError: matplotlib is not installed.
    """
    panels = _panels(results)
    if not panels:
        return
    heights = [len(members) * ROW + HEAD for _, members in panels]
    figure = new_figure(WIDTH, sum(heights) + HEAD)
    axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)
    for (group, members), panel in zip(panels, axes[:, 0], strict=True):
        _draw_panel(panel, group, members)
    save(figure, title, target)


def _panels(results: Sequence[Result]) -> list[tuple[str, list[Result]]]:
    others = (FIRST, GROWTH, MEMORY)
    read = [one for one in results if not one.case.group.startswith(others)]
    measured = [one for one in read if one.measurements]
    grouped = groupby(measured, lambda result: result.case.group)
    return [(group, list(members)) for group, members in grouped]


def _draw_panel(panel: Any, group: str, members: Sequence[Result]) -> None:
    names = [one.case.name for one in members]
    rates = [one.median("megabytes_per_second") or 0.0 for one in members]
    bars(panel, names, rates, list(map(_color, members)), list(map(_text, members)))
    panel.set_xlim(0, max(rates) * 1.3)
    panel.set_title(f"{group}, MB/s", fontsize=9, loc="left")


def _text(result: Result) -> str:
    rate, first = result.median("megabytes_per_second"), result.median("first_batch_seconds")
    return f"{rate or 0.0:,.0f}" + ("" if first is None else f"; first batch {first:.2f} s")


def _color(result: Result) -> str:
    if result.case.module == "bench.readers.stream":
        return OWN
    return CEILING if "download" in result.case.module else OTHER
