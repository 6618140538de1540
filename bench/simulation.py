"""Measures how near the engine comes to the numbers that a simulated store was given.

The time that the tool or a stream measures stands beside the one that the numbers predict: a first
byte or a listing takes its latency, and what it takes without one; requests share out their
latencies and their bytes at the rate of a connection; and all bytes pass the link.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import streamrec as sr
from bench.cases import say
from bench.harness import Column, Report, Run, benchmark, run_async, table_of
from streamrec.config import DatasetSettings
from streamrec.measure.benchmark import measure_first_byte, measure_listing
from streamrec.measure.budget import Budget, stores_of
from streamrec.measure.figures import Limits
from streamrec.measure.simulation import SimulatedStore, parse_simulation, simulated

MB = 1_000_000
PAGE = 1000
"""Names on a page of a listing; of several, the engine reads many at a time."""
LIMITS = Limits(seconds=60.0, bytes=1000 * MB, requests=200)
COLUMNS = (
    Column(
        "simulation, and what is measured", lambda row: f"`{row['simulation']}`: {row['what']}", str
    ),
    Column("predicted, s", "predicted"),
    Column("measured, s", "measured"),
    Column("ratio", "ratio"),
)


def first_byte(text: str) -> tuple[float, float]:
    """Return the mean time to the first byte, predicted and measured, in seconds."""
    alone, measured = (probe_store(simulation)[1] for simulation in ("", text))
    return parse_simulation(text).latency + alone, measured


def listing(text: str) -> tuple[float, float]:
    """Return the time of a page, predicted and measured, in seconds."""
    alone, measured = (probe_store(simulation)[0] for simulation in ("", text))
    return (parse_simulation(text).listing or 0.0) + alone, measured


def probe_store(text: str) -> tuple[float, float]:
    """Return the seconds that the tool measures for a page of a listing, and for a first byte."""

    async def probe(store: SimulatedStore) -> tuple[float, float]:
        settings = DatasetSettings(source=store.source, storage_options=store.storage_options)
        budget = Budget(LIMITS)
        await measure_listing(settings, budget)  # which also imports what S3 needs
        listed, shards = await measure_listing(settings, budget)
        async with stores_of(settings, budget) as stores:
            times = await measure_first_byte(stores.store_for(shards[0].url), shards, budget)
        return listed.seconds, statistics.fmean(times.seconds)

    with simulated(text, PAGE, MB) as store:
        return run_async(probe(store))


def requests(text: str, concurrency: int, nbytes: int) -> tuple[float, float]:
    """Return the time of a stream with so many requests at a time, predicted and measured."""
    counters, seconds = read_stream(text, nbytes, max_concurrency=concurrency)
    given = parse_simulation(text)
    assert given.bandwidth is not None
    latencies = counters["requests"] * given.latency
    return (latencies + counters["bytes_read"] / given.bandwidth) / concurrency, seconds


def link(text: str, nbytes: int) -> tuple[float, float]:
    """Return the time of a stream over a slow link, predicted and measured."""
    counters, seconds = read_stream(text, nbytes)
    given = parse_simulation(text)
    assert given.link is not None
    return given.latency + counters["bytes_read"] / given.link, seconds


def read_stream(text: str, nbytes: int, **settings: Any) -> tuple[dict[str, Any], float]:
    """Read raw records of a simulated store; return the stream's counters, and the seconds."""
    shards = 32
    with simulated(text, shards, nbytes // shards) as store:
        names = f"{{00000..{shards - 1:05}}}-of-{shards:05}.tfrecord"  # which needs no listing
        options = {"storage_options": store.storage_options, **settings}
        began = time.perf_counter()
        with sr.open(
            store.source.replace("*", names), None, batch_size=8, engine="thread", **options
        ) as stream:
            for _ in stream:
                pass
            return stream.statistics(), time.perf_counter() - began


def cases() -> Iterator[tuple[str, str, Callable[[], tuple[float, float]]]]:
    """Yield simulations, the names of the times, and functions that predict and measure these.

    The rates cost little CPU time, so that it is not the machine that is measured.
    """
    for text in ("latency=50ms", "latency=100ms,jitter=30%"):
        yield text, "first byte", partial(first_byte, text)
    text = "latency=20ms,listing=2s"
    yield text, "a page of the listing", partial(listing, text)
    text = "latency=50ms,bandwidth=10MB/s"
    for concurrency in (1, 4):
        what = f"a stream with {concurrency} at a time"
        yield text, what, partial(requests, text, concurrency, concurrency * 20 * MB)
    for text in ("latency=20ms,link=200Mbit", "latency=20ms,bandwidth=10MB/s,link=200Mbit"):
        yield text, "a stream", partial(link, text, 100 * MB)


@benchmark("simulation", repeat=3)
def main(run: Run) -> Report:
    results = []
    for text, what, go in cases():
        say(f"{text}: {what}")
        pairs = [go() for _ in range(run.repeat)]
        predicted, measured = map(statistics.median, zip(*pairs, strict=True))
        times = {"predicted": predicted, "measured": measured, "ratio": measured / predicted}
        results.append({"simulation": text, "what": what, **times})
    return Report(table_of(COLUMNS, results), {"results": results})


if __name__ == "__main__":
    main()
