"""Draws what a feeder holds, over the clients that came and went."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.chart import new_figure, save

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

PANELS = {
    "megabytes": "resident memory, MB",
    "descriptors": "descriptors",
    "tasks": "tasks",
    "threads": "threads",
}
COLORS = ("#1b7f5c", "#c9722e", "#3b6fb6")
WIDTH, HEIGHT = 7.5, 6.0


def draw(soaks: Mapping[str, Sequence[Mapping[str, Any]]], title: str, target: Path) -> None:
    """Draw a panel for each quantity; the lines of shuffled streams are dashed.

    Args:
        soaks: Points of each kind of clients, by name.
        title: Text above the panels.
        target: SVG file, replaced if it exists.

    Raises:
        ImportError: matplotlib is not installed.
    """
    figure = new_figure(WIDTH, HEIGHT)
    axes = figure.subplots(2, 2, sharex=True)
    for panel, (quantity, label) in zip(axes.flat, PANELS.items(), strict=True):
        _lines(panel, soaks, quantity)
        panel.set_title(label, fontsize=9, loc="left")
        panel.set_ylim(bottom=0)
        panel.yaxis.get_major_locator().set_params(integer=True)
        panel.spines[["top", "right"]].set_visible(False)
    for panel in axes[-1]:
        panel.set_xlabel("clients that came and went")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    save(figure, title, target)


def _lines(panel: Any, soaks: Mapping[str, Sequence[Mapping[str, Any]]], quantity: str) -> None:
    for number, (name, points) in enumerate(soaks.items()):
        style = "-" if number < len(COLORS) else "--"
        color = COLORS[number % len(COLORS)]
        clients = [point["clients"] for point in points]
        values = [point[quantity] for point in points]
        panel.plot(clients, values, style, color=color, label=name, linewidth=1)
