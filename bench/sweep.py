"""Compares what ``streamrec bench`` measures of a store with what other tools measure of it.

::

    python -m bench.sweep --output bench/results

The other tools are curl, aiohttp alone, and wrk; those that are not installed are left out. The
store runs on this machine: with 20 ms to the first byte and 60 MB/s a connection, and without both.
All tools run in turns.
"""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from bench.aims import Target, targets_as_markdown
from bench.console import case_options, print_failures, run, selected
from bench.markdown import MISSING, number, table
from bench.measure import Case, Comparison, Failure, ratio
from bench.results import facts, rows, write
from bench.services import store

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from bench.measure import Result

OWN = "streamrec bench"
TOOLS = {OWN: "streamrec", "curl": "curl", "aiohttp alone": "aiohttp", "wrk": "wrk"}
"""The names of the tools in the tables, and in bench/readers/rates.py."""
CAPPED = "20 ms and 60 MB/s a connection"
OF_AIOHTTP = "of aiohttp alone"
PLACES: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    CAPPED: ({"latency": 0.02, "bandwidth": 60e6}, (1, 4)),
    "no latency, no cap": ({"latency": 0.0, "bandwidth": None}, (1, 4)),
}
"""The stores, and the numbers of requests at a time."""
OBJECTS, OBJECT_BYTES = 16, 64 << 20
RANGE_BYTES = 8 << 20
FIRST_BYTE = "first_byte_milliseconds"
RATE = "megabytes_per_second"
NEAR = 0.05
"""The part by which figures may differ."""


@click.command()
@case_options(5)
@click.option("--seconds", default=3.0, show_default=True, help="Seconds of each measurement.")
def main(
    *, output: Path | None, data: Path, repeat: int, only: tuple[str, ...], seconds: float
) -> None:
    """Measure, print tables, and write JSON and Markdown."""
    recipes = {"bucket": {"templates": [str(template(data))], "objects": OBJECTS}}
    results: list[Result] = []
    for place, (options, counts) in PLACES.items():
        with store(recipes=recipes, **options) as served:
            cases = cases_of(place, served.endpoint, options, counts, seconds)
            results += run([case for case in cases if selected(case, only)], judge, repeat)
    aims = targets(results)
    report = f"{as_markdown(results)}\n### aims\n\n{targets_as_markdown(aims)}"
    click.echo(report)
    for name in (name for name in TOOLS if not is_there(name)):
        click.echo(f"Skipped: {name} is not installed.")
    print_failures(results)
    if output is not None:
        settings = {"rounds": repeat, "seconds": seconds, "range_bytes": RANGE_BYTES}
        found = {"settings": settings, "aims": [aim.facts() for aim in aims]}
        write(output, "sweep", facts("sweep", **found, rows=rows(results)), report)
    sys.exit(any(result.failures for result in results))


def template(data: Path) -> Path:
    """Return a file of random bytes, which is written once."""
    path = data.absolute() / "random-64"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(np.random.default_rng(0).bytes(OBJECT_BYTES))
    return path


def cases_of(
    place: str, endpoint: str, options: Mapping[str, Any], counts: Sequence[int], seconds: float
) -> list[Case]:
    """Return a case for each tool that is installed and each number of requests at a time."""
    urls = [f"{endpoint}/bucket/shard-{number:05}" for number in range(OBJECTS)]
    load = {"urls": urls, "size": OBJECT_BYTES, "range_bytes": RANGE_BYTES, "seconds": seconds}
    cases = []
    for count in counts:
        group = f"{place}, {count} at a time"
        rate = min(count * (options["bandwidth"] or 400e6), 800e6)
        others = tuple(
            Comparison(f"of {name}", (f"{group}: {name}",)) for name in TOOLS if name != OWN
        )
        for name in filter(is_there, TOOLS):
            more = {"concurrency": count, "megabytes": round(seconds * rate / 1e6)}
            arguments = {"tool": TOOLS[name], **load, **more}
            compared = others if name == OWN else ()
            cases.append(Case(group, name, "bench.readers.rates", arguments, comparisons=compared))
    return cases


def is_there(name: str) -> bool:
    """Return whether a tool is installed."""
    return TOOLS[name] in ("streamrec", "aiohttp") or shutil.which(TOOLS[name]) is not None


def judge(_: Case, report: Mapping[str, Any]) -> dict[str, float]:
    """Return the report as quantities."""
    if not report["nbytes"]:
        raise Failure("no bytes were received")
    found = {RATE: report["nbytes"] / 1e6 / report["seconds"]}
    if report["first_byte_seconds"] is not None:
        found[FIRST_BYTE] = report["first_byte_seconds"] * 1e3
    return found


def targets(results: Sequence[Result]) -> list[Target]:
    """Return how near the figures are to those of the other tools.

    Without a cap a tool measures what its own client can receive, so that only the rate of aiohttp
    alone is compared, which should not be higher.
    """
    found: list[Target] = []
    for result in results:
        group = result.case.group
        for comparison in result.case.comparisons:
            if group.startswith(CAPPED):
                found += _off(result, comparison, results)
            elif comparison.label == OF_AIOHTTP:
                rate = ratio(result, comparison, results)
                assert rate is not None
                found.append(Target(f"{group}: rate, {OF_AIOHTTP}", "times", 1.0, rate))
    return found


def _off(result: Result, comparison: Comparison, results: Sequence[Result]) -> Iterator[Target]:
    for quantity, what in ((RATE, "rate"), (FIRST_BYTE, "first byte")):
        there = ratio(result, comparison, results, quantity)
        if there is not None:
            name = f"{result.case.group}: {what}, off that {comparison.label}"
            yield Target(name, "times", NEAR, abs(there - 1), least=False)


def as_markdown(results: Sequence[Result]) -> str:
    """Return a table of medians, and of the least and the largest rates."""
    found = []
    for result in results:
        rates = result.values(RATE)
        span = f"{min(rates):,.0f}-{max(rates):,.0f}" if rates else MISSING
        medians = [number(result.median(RATE)), span, number(result.median(FIRST_BYTE))]
        found.append([f"{result.case.group}: {result.case.name}", *medians])
    return table(["", "MB/s", "min-max", "first byte, ms"], found) + "\n"


if __name__ == "__main__":
    main()
