"""Results as tables in Markdown."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from bench.decoding.cases import MEMORY
from bench.markdown import table
from bench.measure import Result, ratio

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.decoding.targets import Target

__all__ = ["as_markdown", "targets_as_markdown"]

MISSING = "-"
COLUMNS = (
    ("krec/s", "records_per_second", 1e3),
    ("MB/s", "megabytes_per_second", 1.0),
    ("krec per CPU s", "records_per_cpu_second", 1e3),
    ("peak MB", "client_peak_megabytes", 1.0),
)
STREAM_COLUMNS = (
    ("engine's MB", "engine_peak_megabytes", 1.0),
    ("first batch, s", "first_batch_seconds", 1.0),
    ("krec/s after it", "records_per_second_after_first_batch", 1e3),
)


def as_markdown(results: Sequence[Result]) -> str:
    """A table for each group; medians, and the least and largest rate."""
    decoded = [result for result in results if not result.case.group.startswith(MEMORY)]
    parts = [
        f"### {group}\n\n{_table(list(members), results)}\n"
        for group, members in groupby(decoded, lambda result: result.case.group)
    ]
    return "\n".join([*parts, _memory_table(results)])


def _table(members: Sequence[Result], results: Sequence[Result]) -> str:
    streams = any(result.median("first_batch_seconds") is not None for result in members)
    columns = COLUMNS + (STREAM_COLUMNS if streams else ())
    comparisons = members[0].case.comparisons
    head = ["", "krec/s, min-max", *(name for name, _, _ in columns)]
    rows = []
    for result in members:
        rates = [rate / 1e3 for rate in result.values("records_per_second")]
        span = f"{_number(min(rates))}-{_number(max(rates))}" if rates else MISSING
        cells = [_scaled(result, name, scale) for _, name, scale in columns]
        compared = [_number(ratio(result, one, results)) for one in comparisons]
        rows.append([_name(result), span, *cells, *compared])
    return table([*head, *(one.label for one in comparisons)], rows)


def _name(result: Result) -> str:
    return f"{result.case.name} (failed)" if result.failures else result.case.name


def _scaled(result: Result, quantity: str, scale: float) -> str:
    value = result.median(quantity)
    return MISSING if value is None else _number(value / scale)


def _number(value: float | None) -> str:
    """Three digits at least."""
    if value is None:
        return MISSING
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}"


def _memory_table(results: Sequence[Result]) -> str:
    members = [result for result in results if result.case.group.startswith(MEMORY)]
    if not any(result.measurements for result in members):
        return ""
    epochs = sorted(name for name in members[0].summary() if name.startswith("resident_megabytes_"))
    head = ["resident MB after epoch", *(name.rpartition("_")[2] for name in epochs)]
    rows = [
        [result.case.group, *(_number(result.median(name)) for name in epochs)]
        for result in members
    ]
    return f"### {MEMORY}\n\n{table(head, rows)}\n"


def targets_as_markdown(found: Sequence[Target]) -> str:
    """Each aim beside what was measured."""
    rows = [
        [
            target.name,
            f"{'at least' if target.least else 'at most'} {target.aim:g} {target.unit}",
            _number(target.measured),
            "yes" if target.met else "no",
        ]
        for target in found
    ]
    return table(["", "aim", "measured", "met"], rows)
