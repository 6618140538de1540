"""Measures how near the engine comes to the numbers that a simulated store was given.

::

    python -m bench.simulation --output bench/results

A stream reads raw records of a simulated store, and the time of a case is set beside the one that
its numbers predict: of a request its latency and its bytes at the rate of a connection, of all of
them their bytes at the rate of the link, of a listing its pages.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

import streamrec as sr
from bench.console import output_option, repeat_option
from bench.markdown import number, table
from bench.results import facts, write
from streamrec.measure.simulation import Simulation, parse_simulation, simulated

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MB = 1_000_000
PAGE = 1000
"""Names on a page of a listing. Of several, the engine reads many at a time."""


@dataclass(frozen=True)
class Run:
    """One run of a case."""

    requests: int
    nbytes: int
    seconds: float
    """Seconds to the last batch."""
    first_batch: float
    first_byte: float
    """Mean seconds to the first byte of a range."""


@dataclass(frozen=True)
class Case:
    """A simulation, and the time that it is held by."""

    text: str
    shards: int
    shard_bytes: int
    what: str
    measured: Callable[[Run], float]
    predicted: Callable[[Simulation, Run], float]
    settings: dict[str, Any]


def first_byte(text: str) -> Case:
    """Return a case of small ranges, one at a time."""
    return Case(
        text, 200, MB // 4, "first byte", lambda run: run.first_byte,
        lambda given, _: given.latency, {"max_concurrency": 1},
    )  # fmt: skip


def requests(text: str, concurrency: int, nbytes: int) -> Case:
    """Return a case of large ranges, so many at a time, that share out the time of all requests."""

    def predicted(given: Simulation, run: Run) -> float:
        assert given.bandwidth is not None
        return (run.requests * given.latency + run.nbytes / given.bandwidth) / concurrency

    what = f"{concurrency} requests at a time"
    settings = {"max_concurrency": concurrency}
    return Case(text, 16, nbytes // 16, what, lambda run: run.seconds, predicted, settings)


def link(text: str, nbytes: int) -> Case:
    """Return a case of as many requests as the engine likes, over a slow link."""

    def predicted(given: Simulation, run: Run) -> float:
        assert given.link is not None
        return given.latency + run.nbytes / given.link

    return Case(text, 32, nbytes // 32, "the link", lambda run: run.seconds, predicted, {})


def listing(text: str) -> Case:
    """Return a case of one page before the first batch."""

    def predicted(given: Simulation, _: Run) -> float:
        assert given.listing is not None
        return given.listing + given.latency

    return Case(text, PAGE, MB, "first batch", lambda run: run.first_batch, predicted, {})


CASES = (
    first_byte("latency=50ms"),
    first_byte("latency=100ms,jitter=30%"),
    requests("latency=50ms,bandwidth=10MB/s", 1, 50 * MB),
    requests("latency=50ms,bandwidth=10MB/s", 4, 200 * MB),
    link("latency=20ms,link=200Mbit", 200 * MB),
    link("latency=20ms,bandwidth=10MB/s,link=200Mbit", 200 * MB),
    listing("latency=20ms,listing=5s"),
)
"""Rates that cost little CPU time, so that it is not the machine that is measured."""


@click.command()
@repeat_option(3)
@output_option
def main(*, repeat: int, output: Path | None) -> None:
    """Run all cases, print a table, and write JSON and Markdown."""
    measure(first_byte(""))  # so that no case has to import what S3 needs
    results = []
    for case in CASES:
        runs = [measure(case) for _ in range(repeat)]
        given = parse_simulation(case.text)
        measured = statistics.median(case.measured(run) for run in runs)
        predicted = statistics.median(case.predicted(given, run) for run in runs)
        row = {"simulation": case.text, "what": case.what, "ratio": measured / predicted}
        results.append(row | {"predicted": predicted, "measured": measured})
        click.echo(f"{case.text}: {case.what}: {measured:.3g} s, predicted {predicted:.3g} s")
    text = as_markdown(results)
    click.echo(text)
    if output is not None:
        write(output, "simulation", facts("simulation", results=results), text)


def measure(case: Case) -> Run:
    """Read all shards of a case; of a listing, as far as the first batch."""
    with simulated(case.text, case.shards, case.shard_bytes) as store:
        began = time.perf_counter()
        stream = sr.open(
            store.source if "listing" in case.text else names(store.source, case.shards),
            None,
            batch_size=8,
            engine="thread",
            storage_options=store.storage_options,
            **case.settings,
        )
        with stream:
            next(iter(stream))
            first = time.perf_counter() - began
            if "listing" not in case.text:
                for _ in stream:
                    pass
            return run_of(stream.statistics(), time.perf_counter() - began, first)


def names(source: str, shards: int) -> str:
    """Return a source of the same shards that needs no listing."""
    return source.replace("*", f"{{00000..{shards - 1:05}}}-of-{shards:05}.tfrecord")


def run_of(counters: dict[str, Any], seconds: float, first_batch: float) -> Run:
    """Return the figures of a run from the stream's counters."""
    first_bytes = counters["timings"]["s3"]["read"]["first_byte"]
    return Run(
        requests=counters["requests"],
        nbytes=counters["bytes_read"],
        seconds=seconds,
        first_batch=first_batch,
        first_byte=first_bytes["sum"] / sum(first_bytes["counts"]),
    )


def as_markdown(results: list[dict[str, Any]]) -> str:
    """Return a table with a row for each case."""
    head = ("simulation", "time of", "predicted, s", "measured, s", "ratio")
    return table(
        head,
        [
            (
                f"`{row['simulation']}`",
                row["what"],
                number(row["predicted"]),
                number(row["measured"]),
                number(row["ratio"]),
            )
            for row in results
        ],
    )


if __name__ == "__main__":
    main()
