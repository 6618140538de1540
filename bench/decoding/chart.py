"""Draws the results: a row of panels for each level, a column for each kind of data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.chart import CEILING, OTHER, OWN, bars, new_figure, save
from bench.decoding.cases import FRAMES, PARSING, WHOLE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bench.measure import Result

WIDTH, HEIGHT = 4.6, 2.9
"""Size of a panel in inches."""


def draw(results: Sequence[Result], kinds: Sequence[str], title: str, target: Path) -> None:
    """Draw bars of records a second, on a logarithmic scale.

    Args:
        results: Results of the run.
        kinds: Kinds of data, from left to right.
        title: Text above the panels.
        target: SVG file, replaced if it exists.

    Raises:
        ImportError: matplotlib is not installed.
    """
    levels = (FRAMES, PARSING, WHOLE)
    figure = new_figure(WIDTH * len(kinds), HEIGHT * len(levels))
    panels = figure.subplots(len(levels), len(kinds), squeeze=False)
    for level, row in zip(levels, panels, strict=True):
        for kind, panel in zip(kinds, row, strict=True):
            group = f"{level}, {kind}"
            _draw_panel(panel, group, [one for one in results if one.case.group == group])
    save(figure, title, target)


def _draw_panel(panel: Any, group: str, members: Sequence[Result]) -> None:
    measured = [
        (one.case.name, rate)
        for one in members
        if (rate := one.median("records_per_second")) is not None
    ]
    if not measured:
        panel.set_axis_off()
        return
    names, rates = zip(*measured, strict=True)
    bars(panel, names, rates, list(map(_color, names)), list(map(_short, rates)))
    panel.set_xscale("log")
    panel.set_xlim(min(rates) / 3, max(rates) * 12)
    panel.set_title(group, fontsize=9, loc="right")


def _color(name: str) -> str:
    if name.startswith(("streamrec", "sr.open")):
        return OWN
    return CEILING if "no frames" in name else OTHER


def _short(rate: float) -> str:
    for unit, scale in (("M", 1e6), ("k", 1e3)):
        if rate >= scale:
            return f"{rate / scale:.3g} {unit}"
    return f"{rate:.3g}"
