"""Writes the results as tables in Markdown."""

from __future__ import annotations

from itertools import groupby, pairwise
from statistics import quantiles
from typing import TYPE_CHECKING

from bench.fetching.growth import GROWTH, MEMORY
from bench.fetching.targets import FIRST
from bench.markdown import MISSING, number, table
from bench.measure import ratio

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.measure import Result

READ = (
    ("GB", "gigabytes"),
    ("first batch, s", "first_batch_seconds"),
    ("MB/s", "megabytes_per_second"),
    ("after first", "megabytes_per_second_after_first_batch"),
    ("longest wait, s", "longest_wait_seconds"),
    ("client CPU s/GB", "client_cpu_seconds_per_gigabyte"),
    ("+ helpers", "engine_cpu_seconds_per_gigabyte"),
    ("feeder CPU s/GB", "feeder_cpu_seconds_per_gigabyte"),
    ("store CPU s/GB", "store_cpu_seconds_per_gigabyte"),
    ("requests", "requests"),
    ("in flight", "peak_in_flight"),
    ("hedges", "hedges"),
    ("read/used", "read_over_used"),
    ("peak MB", "client_peak_megabytes"),
    ("+ helpers'", "engine_peak_megabytes"),
    ("feeder's", "feeder_peak_megabytes"),
)
GROWN = (
    ("first batch, s", "first_batch_seconds"),
    ("peak MB", "client_peak_megabytes"),
    ("largest process, MB", "peak_megabytes"),
    ("requests", "requests"),
)
REMEMBERED = (
    ("largest range, MiB", "largest_range_mebibytes"),
    ("peak MB", "peak_megabytes"),
    ("beyond the budget, MB", "beyond_budget_megabytes"),
    ("s", "seconds"),
)


def as_markdown(results: Sequence[Result]) -> str:
    """Return a table for each group, of medians, and of the least and the largest rate."""
    parts = []
    for group, found in groupby(results, lambda result: result.case.group):
        members = list(found)
        if group.startswith(GROWTH):
            body = _plain(members, GROWN, "shards") + _slopes(members)
        elif group == MEMORY:
            body = _plain(members, REMEMBERED, "budget, lanes, shards")
        elif group.startswith(FIRST):
            body = _spread(members, "first_batch_seconds")
        else:
            body = _read(members, results)
        parts.append(f"### {group}\n\n{body}\n")
    return "\n".join(parts)


def _spread(members: Sequence[Result], quantity: str) -> str:
    """Return a table of the quartiles of seconds over the rounds."""
    rows = []
    for result in members:
        values = result.values(quantity)
        quarters = quantiles(values, method="inclusive") if len(values) > 1 else values * 3
        found = [min(values), *quarters, max(values)] if values else [None] * 5
        rows.append([_name(result), str(len(values)), *map(number, found)])
    heads = ("least", "first quarter", "median", "third quarter", "most")
    return table(["", "rounds", *(f"{head}, s" for head in heads)], rows)


def _read(members: Sequence[Result], results: Sequence[Result]) -> str:
    columns = [(head, name) for head, name in READ if any(one.values(name) for one in members)]
    compared = [
        {one.label: ratio(result, one, results) for one in result.case.comparisons}
        for result in members
    ]
    labels = list(dict.fromkeys(key for each in compared for key in each if each[key] is not None))
    rows = []
    for result, by_label in zip(members, compared, strict=True):
        cells = [number(result.median(name)) for _, name in columns]
        shares = [number(by_label.get(label)) for label in labels]
        rows.append([_name(result), _span(result), *cells, *shares])
    return table(["", "MB/s, min-max", *(head for head, _ in columns), *labels], rows)


def _span(result: Result) -> str:
    rates = result.values("megabytes_per_second")
    return f"{min(rates):,.0f}-{max(rates):,.0f}" if rates else MISSING


def _plain(members: Sequence[Result], columns: Sequence[tuple[str, str]], head: str) -> str:
    rows = [
        [_name(result), *(number(result.median(name)) for _, name in columns)] for result in members
    ]
    return table([head, *(name for name, _ in columns)], rows)


def _name(result: Result) -> str:
    if not result.failures:
        return result.case.name
    refused = any("ConfigError" in failure for failure in result.failures)
    return f"{result.case.name} ({'refused' if refused else 'failed'})"


def _slopes(members: Sequence[Result]) -> str:
    """Return a line for each two counts: the seconds and bytes that a shard more costs."""
    lines = []
    for few, many in pairwise(members):
        shards = many.case.arguments["shards"] - few.case.arguments["shards"]
        seconds, megabytes = (
            _difference(few, many, name) for name in ("first_batch_seconds", "peak_megabytes")
        )
        if seconds is not None and megabytes is not None:
            lines.append(
                f"From {few.case.name} to {many.case.name}: {seconds / shards * 1e6:,.1f} µs and "
                f"{megabytes / shards * 1e6:,.0f} bytes a shard."
            )
    return "\n\n" + "\n".join(lines) if lines else ""


def _difference(few: Result, many: Result, name: str) -> float | None:
    before, after = few.median(name), many.median(name)
    return None if before is None or after is None else after - before
