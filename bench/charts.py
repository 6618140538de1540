"""Charts of results, as SVG files: bars and lines. They need matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OWN, CEILING, OTHER = "#1b7f5c", "#b8b8b8", "#c9722e"
"""Colors of streamrec, of what no reader can exceed, and of the other readers."""


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of so many inches.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    # The same results give the same file.
    mpl.rcParams.update({"svg.hashsalt": "streamrec", "svg.fonttype": "none", "font.size": 8})
    return Figure(figsize=(width, height), layout="constrained")


def draw_bars(panel: Any, bars: Sequence[tuple[str, float, str, str]]) -> None:
    """Draw horizontal bars, the first on top: of each the name, value, color and text."""
    names, values, colors, texts = zip(*bars, strict=True)
    places = range(len(names))
    panel.barh(places, values, color=colors, height=0.7)
    panel.set_yticks(places, names)
    panel.invert_yaxis()
    panel.spines[["top", "right"]].set_visible(False)
    for place, value, text in zip(places, values, texts, strict=True):
        panel.annotate(f" {text}", (value, place), va="center", fontsize=7)


def draw_lines(
    panels: Mapping[str, Sequence[tuple[Any, Any, dict[str, Any]]]],
    x_label: str,
    title: str,
    target: Path,
) -> None:
    """Draw panels of lines, two beside each other: of each line x, y and how it is drawn.

    Raises:
        ImportError: matplotlib is not installed.
    """
    rows = -(-len(panels) // 2)
    figure = new_figure(7.5, 1.5 + 2 * rows)
    axes = figure.subplots(rows, 2, sharex=True)
    for panel, (label, lines) in zip(axes.flat, panels.items(), strict=True):
        for x, y, how in lines:
            panel.plot(x, y, **{"linewidth": 1, **how})
        panel.set_title(label, fontsize=9, loc="left")
        panel.set_ylim(bottom=0)
        panel.yaxis.get_major_locator().set_params(integer=True)
        panel.spines[["top", "right"]].set_visible(False)
    for panel in axes[-1]:
        panel.set_xlabel(x_label)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    save_figure(figure, title, target)


def save_figure(figure: Figure, title: str, target: Path) -> None:
    """Write the figure as an SVG file; a file that exists is replaced."""
    figure.suptitle(title)
    figure.savefig(target, format="svg", metadata={"Date": None})
