"""Writes the results as tables in Markdown."""

from __future__ import annotations

from itertools import groupby
from statistics import median
from typing import TYPE_CHECKING

from bench.decoding.cases import BATCH_SIZES, BY_SIZE, BY_SIZE_WAY, MEMORY, PIPELINES, by_size
from bench.markdown import MISSING, number, table
from bench.measure import Result, ratio

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    """Return a table for each group, of medians, and of the least and the largest rate."""
    decoded = [result for result in results if not result.case.group.startswith(MEMORY)]
    parts = [
        f"### {group}\n\n{_table(group, list(members), results)}\n"
        for group, members in groupby(decoded, lambda result: result.case.group)
    ]
    return "\n".join([*parts, _memory_table(results)])


def _table(group: str, members: Sequence[Result], results: Sequence[Result]) -> str:
    if group.startswith(BY_SIZE):
        return _size_table(members, results)
    streams = any(result.median("first_batch_seconds") is not None for result in members)
    columns = COLUMNS + (STREAM_COLUMNS if streams else ())
    comparisons = members[0].case.comparisons
    head = ["", "krec/s, min-max", *(name for name, _, _ in columns)]
    rows = []
    for result in members:
        rates = [rate / 1e3 for rate in result.values("records_per_second")]
        span = f"{number(min(rates))}-{number(max(rates))}" if rates else MISSING
        cells = [_scaled(result, name, scale) for _, name, scale in columns]
        compared = [number(ratio(result, one, results)) for one in comparisons]
        rows.append([_name(result), span, *cells, *compared])
    return table([*head, *(one.label for one in comparisons)], rows)


def _name(result: Result) -> str:
    return f"{result.case.name} (failed)" if result.failures else result.case.name


def _scaled(result: Result, quantity: str, scale: float) -> str:
    value = result.median(quantity)
    return MISSING if value is None else number(value / scale)


def _size_table(members: Sequence[Result], results: Sequence[Result]) -> str:
    """Return a table with the rates and their ratios for each batch size."""
    named = {result.case.name: result for result in members}
    readers = [f"sr.open, {BY_SIZE_WAY}", *PIPELINES.values()]
    labels = [comparison.label for comparison in members[0].case.comparisons]
    rows = []
    for size in BATCH_SIZES:
        row = [named.get(by_size(name, size)) for name in readers]
        if any(row):
            compared = _ratios(row[0], results) or [None] * len(labels)
            rows.append([f"{size:,}", *map(_rate, row), *map(number, compared)])
    return table(["batch size", *(f"{name}, krec/s" for name in readers), *labels], rows)


def _ratios(result: Result | None, results: Sequence[Result]) -> list[float | None]:
    return [ratio(result, one, results) for one in result.case.comparisons] if result else []


def _rate(result: Result | None) -> str:
    """Return the median, and the least and the largest rate."""
    if result is None:
        return MISSING
    rates = [rate / 1e3 for rate in result.values("records_per_second")]
    span = f"{number(median(rates))} ({number(min(rates))}-{number(max(rates))})" if rates else ""
    return f"{span} (failed)".lstrip() if result.failures else span


def _memory_table(results: Sequence[Result]) -> str:
    members = [result for result in results if result.case.group.startswith(MEMORY)]
    if not any(result.measurements for result in members):
        return ""
    epochs = sorted(name for name in members[0].summary() if name.startswith("resident_megabytes_"))
    head = ["resident MB after epoch", *(name.rpartition("_")[2] for name in epochs)]
    rows = [
        [result.case.group, *(number(result.median(name)) for name in epochs)] for result in members
    ]
    return f"### {MEMORY}\n\n{table(head, rows)}\n"
