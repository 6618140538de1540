"""Writes what a benchmark has measured: JSON for programs, Markdown and a chart for people."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import click

from bench import machine
from bench.measure import ratio

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from bench.measure import Result


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
    path.write_text(_text(rounded))
    seal(path)


def seal(path: Path) -> None:
    """Add to a JSON file the digests of what was measured and of the files beside it.

    A test holds the files against them, so that nobody changes a figure but by measuring.
    """
    content = json.loads(path.read_text())
    path.write_text(_text({**content, "digests": digests(path)}))


def digests(path: Path) -> dict[str, str]:
    """Return the digests of a JSON file's content and of the files of its name beside it."""
    content = json.loads(path.read_text())
    content.pop("digests", None)
    beside = sorted(set(path.parent.glob(f"{path.stem}.*")) - {path})
    files = {other.name: other.read_bytes() for other in beside}
    return {
        name: _digest(data) for name, data in {path.name: _text(content).encode(), **files}.items()
    }


def _text(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=1) + "\n"


def _digest(data: bytes) -> str:
    return blake2b(data, digest_size=8).hexdigest()


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
    if draw is not None:
        try:
            draw(output / f"{name}.svg")
        except ImportError:
            click.echo("No chart: matplotlib is missing; pip install 'streamrec[bench]'.")
    seal(output / f"{name}.json")
