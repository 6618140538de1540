"""The tables of the bench of writers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.markdown import MISSING, number, table
from bench.measure import ratio

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.measure import Result

NOT_INSTALLED = "not installed"
HEAD = ("", "records/s", "MB/s", "min-max", "CPU s/GB", "TensorFlow's, by CPU", "ratio, by MB/s")
BY_CPU = "records_per_cpu_second"


def as_markdown(results: Sequence[Result]) -> str:
    """Return a table for each group."""
    groups = dict.fromkeys(result.case.group for result in results)
    return "\n\n".join(
        f"### {group}\n\n"
        + table(HEAD, [_row(one, results) for one in results if one.case.group == group])
        for group in groups
    )


def _row(result: Result, results: Sequence[Result]) -> list[str]:
    name, rates = result.case.name, result.values("megabytes_per_second")
    if not rates:
        why = "failed" if result.failures else NOT_INSTALLED
        return [f"{name}: {why}", *[MISSING] * (len(HEAD) - 1)]
    found = [(one.label, ratio(result, one, results)) for one in result.case.comparisons]
    return [
        name,
        number(result.median("records_per_second")),
        number(result.median("megabytes_per_second")),
        f"{number(min(rates))}-{number(max(rates))}",
        number(result.median("cpu_seconds_per_gigabyte")),
        number(times(results, result.case.group, name, "TensorFlow", BY_CPU)),
        ", ".join(f"{value:.2f} {label}" for label, value in found if value) or MISSING,
    ]


def times(
    results: Sequence[Result], group: str, way: str, other: str, quantity: str
) -> float | None:
    """Return the median of one way over that of another one, if both were measured."""
    ours, theirs = (_median(results, f"{group}: {name}", quantity) for name in (way, other))
    return None if ours is None or theirs is None else ours / theirs


def _median(results: Sequence[Result], title: str, quantity: str) -> float | None:
    found = (one.median(quantity) for one in results if one.case.title == title)
    return next(found, None)
