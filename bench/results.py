"""Writes what a benchmark has measured: JSON for programs, Markdown and a chart for people."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from bench import machine
from bench.measure import ratio

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from bench.measure import Result

__all__ = ["facts", "rows", "write", "write_json"]


def facts(benchmark: str, **more: Any) -> dict[str, Any]:
    """Return the benchmark's name, the date and the machine, and more facts behind them."""
    date = datetime.now(UTC).isoformat(timespec="seconds")
    return {"benchmark": benchmark, "date": date, "machine": machine.describe(), **more}


def rows(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Return everything that was measured, a row for each case."""
    return [
        {
            "case": result.case.name,
            "group": result.case.group,
            "ratios": {
                comparison.label: ratio(result, comparison, results)
                for comparison in result.case.comparisons
            },
            "summary": result.summary(),
            "measurements": result.measurements,
            "failures": result.failures,
        }
        for result in results
    ]


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write plain values, floats with six digits; a file that exists is replaced."""
    rounded = json.loads(json.dumps(content), parse_float=lambda text: float(f"{float(text):.6g}"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rounded, indent=1) + "\n")


def write(
    output: Path,
    name: str,
    content: Mapping[str, Any],
    report: str,
    draw: Callable[[Path], None] | None = None,
) -> None:
    """Write JSON, Markdown, and a chart where matplotlib is installed.

    Args:
        output: Directory of the files, made if it is missing.
        name: Name of the files, without the suffix.
        content: Content of the JSON file.
        report: Content of the Markdown file.
        draw: Draws the chart into an SVG file.
    """
    write_json(output / f"{name}.json", content)
    (output / f"{name}.md").write_text(report + "\n")
    if draw is None:
        return
    try:
        draw(output / f"{name}.svg")
    except ImportError:
        click.echo("No chart: matplotlib is missing; pip install 'streamrec[bench]'.")
