"""Rates as one picture: a panel for each group of whole readings."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from bench.fetching.growth import GROWTH, MEMORY
from bench.fetching.targets import FIRST

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bench.measure import Result

__all__ = ["draw"]

OWN, CEILING, OTHER = "#1b7f5c", "#b8b8b8", "#c9722e"
WIDTH, ROW, HEAD = 7.5, 0.24, 0.55
"""Inches: of the picture, of a bar, and of what a panel has besides its bars."""


def draw(results: Sequence[Result], title: str, target: Path) -> None:
    """Draw bars of MB/s; with the first batch's seconds where there are any.

    Args:
        results: Of the run.
        title: Above everything.
        target: An SVG file, replaced if it exists.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    # The same results give the same file.
    mpl.rcParams.update({"svg.hashsalt": "streamrec", "svg.fonttype": "none", "font.size": 8})
    panels = _panels(results)
    if not panels:
        return
    heights = [len(members) * ROW + HEAD for _, members in panels]
    figure = Figure(figsize=(WIDTH, sum(heights) + HEAD), layout="constrained")
    axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)
    for (group, members), panel in zip(panels, axes[:, 0], strict=True):
        _bars(panel, group, members)
    figure.suptitle(title)
    figure.savefig(target, format="svg", metadata={"Date": None})


def _panels(results: Sequence[Result]) -> list[tuple[str, list[Result]]]:
    others = (FIRST, GROWTH, MEMORY)
    read = [one for one in results if not one.case.group.startswith(others)]
    measured = [one for one in read if one.measurements]
    grouped = groupby(measured, lambda result: result.case.group)
    return [(group, list(members)) for group, members in grouped]


def _bars(panel: Any, group: str, members: Sequence[Result]) -> None:
    rates = [one.median("megabytes_per_second") or 0.0 for one in members]
    places = range(len(members))
    panel.barh(places, rates, color=[_color(one) for one in members], height=0.7)
    panel.set_yticks(places, [one.case.name for one in members])
    panel.invert_yaxis()
    panel.set_xlim(0, max(rates) * 1.3)
    panel.set_title(f"{group}, MB/s", fontsize=9, loc="left")
    panel.spines[["top", "right"]].set_visible(False)
    for place, rate, one in zip(places, rates, members, strict=True):
        first = one.median("first_batch_seconds")
        text = f" {rate:,.0f}" + ("" if first is None else f"; first batch {first:.2f} s")
        panel.annotate(text, (rate, place), va="center", fontsize=7)


def _color(result: Result) -> str:
    if result.case.module == "bench.readers.stream":
        return OWN
    return CEILING if "download" in result.case.module else OTHER
