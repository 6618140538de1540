"""Draws what a feeder holds, over the time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.chart import OTHER, OWN, new_figure, save

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

PANELS = {
    "memory (PSS) and lent budget, MB": ("pss_mb", "budget_mb"),
    "descriptors": ("descriptors",),
    "threads": ("threads",),
    "tasks": ("tasks",),
    "clients": ("connections",),
    "sent, MB/s": ("sent_mb_s",),
}
WIDTH, HEIGHT = 7.5, 6.5


def draw(rows: Sequence[Mapping[str, float]], title: str, target: Path) -> None:
    """Draw a panel for each quantity.

    Args:
        rows: Samples; each has its ``seconds``.
        title: Text above the panels.
        target: SVG file, replaced if it exists.

    Raises:
        ImportError: matplotlib is not installed.
    """
    figure = new_figure(WIDTH, HEIGHT)
    axes = figure.subplots(3, 2, sharex=True)
    minutes = [row["seconds"] / 60 for row in rows]
    for panel, (label, names) in zip(axes.flat, PANELS.items(), strict=True):
        for name, color in zip(names, (OWN, OTHER), strict=False):
            panel.plot(minutes, [row[name] for row in rows], color=color, linewidth=0.8)
        panel.set_title(label, fontsize=9, loc="left")
        panel.set_ylim(bottom=0)
        panel.spines[["top", "right"]].set_visible(False)
    for panel in axes[-1]:
        panel.set_xlabel("minutes")
    save(figure, title, target)
