"""The tables of DLIO's runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.dlio.workloads import WORKLOADS
from bench.markdown import MISSING, number, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.measure import Result

HEAD = (
    "reader",
    "AU, %",
    "least to most",
    "samples/s",
    "least to most",
    "first batch, s",
    "CPU, s",
    "requests",
    "MB from the store",
)


def as_markdown(results: Sequence[Result]) -> str:
    """Return a table for each workload and place."""
    groups = list(dict.fromkeys(result.case.group for result in results))
    return "\n\n".join(f"### {_title(group)}\n\n{_table(group, results)}" for group in groups)


def _title(group: str) -> str:
    name, _, place = group.partition(", ")
    workload = next(one for one in WORKLOADS if one.name == name)
    return (
        f"{name}, {place}: {workload.steps} steps of {workload.batch_size} x"
        f" {workload.record_bytes / 1e6:.2f} MB, {workload.step_seconds * 1e3:g} ms each;"
        f" {workload.needed:,.0f} samples/s and {workload.passing:g} % are MLPerf's aims"
    )


def _table(group: str, results: Sequence[Result]) -> str:
    return table(HEAD, [_row(result) for result in results if result.case.group == group])


def _row(result: Result) -> tuple[str, ...]:
    return (
        result.case.name,
        number(result.median("utilisation")),
        spread(result.values("utilisation")),
        number(result.median("samples_per_second")),
        spread(result.values("samples_per_second")),
        number(result.median("first_batch_seconds")),
        number(result.median("cpu_seconds")),
        number(result.median("store_requests")),
        number(result.median("store_megabytes")),
    )


def spread(values: Sequence[float]) -> str:
    """Return the least and the largest value."""
    return f"{number(min(values))} to {number(max(values))}" if values else MISSING
