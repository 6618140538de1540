"""The parts that the benchmarks' charts share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

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


def bars(
    panel: Any,
    names: Sequence[str],
    values: Sequence[float],
    colors: Sequence[str],
    texts: Sequence[str],
) -> None:
    """Draw a horizontal bar for each value, the first on top, each with a text at its end."""
    places = range(len(names))
    panel.barh(places, values, color=colors, height=0.7)
    panel.set_yticks(places, names)
    panel.invert_yaxis()
    panel.spines[["top", "right"]].set_visible(False)
    for place, value, text in zip(places, values, texts, strict=True):
        panel.annotate(f" {text}", (value, place), va="center", fontsize=7)


def save(figure: Figure, title: str, target: Path) -> None:
    """Write the figure as an SVG file; a file that exists is replaced."""
    figure.suptitle(title)
    figure.savefig(target, format="svg", metadata={"Date": None})
