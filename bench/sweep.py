"""Compares what ``streamrec bench`` measures of a store with what other tools measure of it.

The other tools are curl, aiohttp alone, and wrk; those that are not installed are left out. The
store runs on this machine: with 20 ms to the first byte and 60 MB/s a connection, and without both.
All tools run in turns.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from bench.cases import RATE, Case, Comparison, Failure, Result, ratio
from bench.harness import Aim, Column, Report, Run, benchmark, spread, table_of
from bench.services import store

OWN = "streamrec bench"
TOOLS = {OWN: "streamrec", "curl": "curl", "aiohttp alone": "aiohttp", "wrk": "wrk"}
"""The names of the tools in the tables, and in bench/readers/downloads.py."""
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
NEAR = 0.05
"""The part by which figures may differ."""
COLUMNS = (
    Column("", lambda result: result.case.title, str),
    Column("MB/s", RATE),
    Column("min-max", spread(RATE, form=",.0f"), str),
    Column("first byte, ms", FIRST_BYTE),
)


@benchmark("sweep", repeat=5, only=True, data=True)
@click.option("--seconds", default=3.0, show_default=True, help="Seconds of each measurement.")
def main(run: Run, *, seconds: float) -> Report:
    recipes = {"bucket": {"templates": [str(template(run.data))], "objects": OBJECTS}}
    for place, (options, counts) in PLACES.items():
        with store(recipes=recipes, **options) as served:
            run.measure(cases_of(place, served.endpoint, options, counts, seconds), judge)
    run.skipped += [f"{name} is not installed." for name in TOOLS if not is_there(name)]
    settings = {"rounds": run.repeat, "seconds": seconds, "range_bytes": RANGE_BYTES}
    return Report(table_of(COLUMNS, run.results), {"settings": settings}, aims(run.results))


def template(data: Path) -> Path:
    """Return a file of random bytes, which is written once."""
    path = data / "random-64"
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
            cases.append(
                Case(group, name, "readers.downloads rates", arguments, comparisons=compared)
            )
    return cases


def is_there(name: str) -> bool:
    return TOOLS[name] in ("streamrec", "aiohttp") or shutil.which(TOOLS[name]) is not None


def judge(_: Case, report: Mapping[str, Any]) -> dict[str, float]:
    if not report["nbytes"]:
        raise Failure("no bytes were received")
    found = {RATE: report["nbytes"] / 1e6 / report["seconds"]}
    if report["first_byte_seconds"] is not None:
        found[FIRST_BYTE] = report["first_byte_seconds"] * 1e3
    return found


def aims(results: Sequence[Result]) -> list[Aim]:
    """Return how near the figures are to those of the other tools.

    Without a cap a tool measures what its own client can receive, so that only the rate of aiohttp
    alone is compared, which should not be higher.
    """
    found: list[Aim] = []
    for result in results:
        group = result.case.group
        for comparison in result.case.comparisons:
            if group.startswith(CAPPED):
                found += _off(result, comparison, results)
            elif comparison.label == OF_AIOHTTP:
                rate = ratio(result, comparison, results)
                assert rate is not None
                found.append(Aim(f"{group}: rate, {OF_AIOHTTP}", "times", 1.0, rate))
    return found


def _off(result: Result, comparison: Comparison, results: Sequence[Result]) -> Iterator[Aim]:
    for quantity, what in ((RATE, "rate"), (FIRST_BYTE, "first byte")):
        there = ratio(result, comparison, results, quantity)
        if there is not None:
            name = f"{result.case.group}: {what}, off that {comparison.label}"
            yield Aim(name, "times", NEAR, abs(there - 1), least=False)


if __name__ == "__main__":
    main()
