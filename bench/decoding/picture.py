"""Results as one picture: a row of panels for each level, a column for each kind of data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.decoding.cases import FRAMES, PARSING, WHOLE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bench.measure import Result

__all__ = ["draw"]

OWN, CEILING, OTHER = "#1b7f5c", "#b8b8b8", "#c9722e"
PANEL = (4.6, 2.9)
"""Inches."""


def draw(results: Sequence[Result], kinds: Sequence[str], title: str, target: Path) -> None:
    """Draw bars of records a second, on a logarithmic scale.

    Args:
        results: Of the run.
        kinds: Of data, in order.
        title: Above everything.
        target: An SVG file, replaced if it exists.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    # The same results give the same file.
    mpl.rcParams.update({"svg.hashsalt": "streamrec", "svg.fonttype": "none", "font.size": 8})
    levels = (FRAMES, PARSING, WHOLE)
    size = (PANEL[0] * len(kinds), PANEL[1] * len(levels))
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(len(levels), len(kinds), squeeze=False)
    for level, row in zip(levels, panels, strict=True):
        for kind, panel in zip(kinds, row, strict=True):
            group = f"{level}, {kind}"
            _bars(panel, group, [one for one in results if one.case.group == group])
    figure.suptitle(title)
    figure.savefig(target, format="svg", metadata={"Date": None})


def _bars(panel: Any, group: str, members: Sequence[Result]) -> None:
    measured = [
        (one.case.name, rate)
        for one in members
        if (rate := one.median("records_per_second")) is not None
    ]
    if not measured:
        panel.set_axis_off()
        return
    names, rates = zip(*measured, strict=True)
    places = range(len(names))
    panel.barh(places, rates, color=[_color(name) for name in names], height=0.7)
    panel.set_yticks(places, names)
    panel.invert_yaxis()
    panel.set_xscale("log")
    panel.set_xlim(min(rates) / 3, max(rates) * 12)
    panel.set_title(group, fontsize=9, loc="right")
    panel.spines[["top", "right"]].set_visible(False)
    for place, rate in zip(places, rates, strict=True):
        panel.annotate(f" {_short(rate)}", (rate, place), va="center", fontsize=7)


def _color(name: str) -> str:
    if name.startswith(("streamrec", "sr.open")):
        return OWN
    return CEILING if "no frames" in name else OTHER


def _short(rate: float) -> str:
    for unit, scale in (("M", 1e6), ("k", 1e3)):
        if rate >= scale:
            return f"{rate / scale:.3g} {unit}"
    return f"{rate:.3g}"
