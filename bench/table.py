"""Results as a table for people and as JSON for programs."""

from __future__ import annotations

import json
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

from rich.box import SIMPLE_HEAD
from rich.table import Table

from bench.measure import Result, ratio

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["as_table", "write_json"]

COLUMNS: dict[str, Literal["left", "right"]] = {
    "": "left",
    "first batch\ns": "right",
    "whole\nMB/s": "right",
    "\nmin-max": "right",
    "after first\nMB/s": "right",
    "whole\nrecords/s": "right",
    "client\nCPU s/GB": "right",
    "+ helper\nCPU s/GB": "right",
    "peak RSS\nMB": "right",
    "rate, as part\nof the best": "left",
}
HELPERS = ("engine", "feeder")
"""Other processes of streamrec's; the store's CPU stands in the JSON only."""


def as_table(results: Sequence[Result], title: str) -> Table:
    """Medians; the rate with its least and largest value."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for name, side in COLUMNS.items():
        table.add_column(name, justify=side, no_wrap=side == "right")
    for group, members in groupby(results, lambda result: result.case.group):
        table.add_section()
        table.add_row(f"[bold]{group}[/bold]")
        for result in members:
            table.add_row(f"  {result.case.name}", *_cells(result, results))
    return table


def _cells(result: Result, results: Sequence[Result]) -> list[str]:
    if result.failures:
        return ["[red]failed[/red]"]
    rates = result.values("megabytes_per_second")
    compared = [
        (comparison.label, ratio(result, comparison, results))
        for comparison in result.case.comparisons
    ]
    return [
        _number(result.median("first_batch_seconds"), 2),
        _number(result.median("megabytes_per_second"), 0),
        f"{min(rates):,.0f}-{max(rates):,.0f}",
        _number(result.median("megabytes_per_second_after_first_batch"), 0),
        _number(result.median("records_per_second"), 0),
        _number(result.median("client_cpu_seconds_per_gigabyte"), 2),
        _together(result, "{}_cpu_seconds_per_gigabyte", 2),
        _with_helpers(result),
        ", ".join(f"{value:.2f} {label}" for label, value in compared if value is not None),
    ]


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _together(result: Result, pattern: str, digits: int) -> str:
    found = [result.median(pattern.format(name)) for name in HELPERS]
    return _number(next((value for value in found if value is not None), None), digits)


def _with_helpers(result: Result) -> str:
    own = _number(result.median("client_peak_megabytes"), 0)
    other = _together(result, "{}_peak_megabytes", 0)
    return own if other == "-" else f"{own} + {other}"


def write_json(path: Path, results: Sequence[Result], facts: Mapping[str, Any]) -> None:
    """Everything that was measured.

    Args:
        path: Replaced if it exists.
        results: In the order of the table.
        facts: What else belongs to the run: machine, date, settings.
    """
    rows = [
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
    rounded = json.loads(
        json.dumps({**facts, "rows": rows}), parse_float=lambda n: round(float(n), 4)
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rounded, indent=1) + "\n")
