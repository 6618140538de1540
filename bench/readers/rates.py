"""Measures the rate of a store, and its first bytes, by one of several tools.

It prints a JSON line: the bytes of the rate and the seconds they took, and the median first byte.
"""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import aclosing
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import aiohttp
import numpy as np
from yarl import URL

from bench.readers.download import drop, fetch
from streamrec.flow.bridge import new_event_loop
from streamrec.measure.benchmark import measure_first_byte
from streamrec.measure.budget import Budget
from streamrec.measure.figures import Limits
from streamrec.measure.sweep import measure_cell
from streamrec.stores.base.protocol import ObjectInfo
from streamrec.stores.http.http_store import HttpStore

if TYPE_CHECKING:
    from collections.abc import Iterator

TIMES = 200
"""Requests for the median of the first byte."""
SMALL = 4 << 10


class Load(NamedTuple):
    """What is requested."""

    urls: list[str]
    size: int
    """Bytes of each object."""
    range_bytes: int
    concurrency: int
    seconds: float
    """The time that the rate is measured for, about."""
    megabytes: int
    """What tools that are not told a time receive instead."""

    def ranges(self) -> Iterator[tuple[str, str]]:
        """Yield URLs and ranges without end, at random places."""
        random = Random(0)
        while True:
            start = random.randrange(self.size // self.range_bytes) * self.range_bytes
            yield random.choice(self.urls), f"{start}-{start + self.range_bytes - 1}"

    @property
    def requests(self) -> int:
        """The number of ranges in all megabytes, the same for each connection."""
        rounds = round(self.megabytes * 1e6 / self.range_bytes / self.concurrency)
        return max(1, rounds) * self.concurrency


async def streamrec(load: Load) -> dict[str, Any]:
    """Measure with what ``streamrec bench`` measures with."""
    shards = [ObjectInfo(url, load.size) for url in load.urls]
    budget = Budget(Limits(seconds=60.0, bytes=1 << 40, requests=TIMES))
    memory = np.empty(load.range_bytes * load.concurrency, np.uint8)
    async with aclosing(HttpStore(before_request=budget.before_request)) as store:
        times = await measure_first_byte(store, shards, budget)
    async with aclosing(HttpStore()) as store:
        measured = await measure_cell(
            store, shards, load.range_bytes, load.concurrency, load.seconds, memory
        )
    cell = measured.cell
    return {"nbytes": cell.bytes, "seconds": cell.seconds, "first_byte_seconds": times.p50}


async def plain_aiohttp(load: Load) -> dict[str, Any]:
    """Measure with aiohttp alone: bytes are dropped as they arrive."""
    ranges = load.ranges()
    waiting = iter(
        [(URL(url), f"bytes={part}") for url, part in (next(ranges) for _ in range(load.requests))]
    )
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:
        started = time.perf_counter()
        lines = [fetch(session, waiting, drop) for _ in range(load.concurrency)]
        nbytes = sum(await asyncio.gather(*lines))
        seconds = time.perf_counter() - started
        times = [await _first_byte(session, load.urls[n % len(load.urls)]) for n in range(TIMES)]
    return {
        "nbytes": nbytes,
        "seconds": seconds,
        "first_byte_seconds": statistics.median(times),
    }


async def _first_byte(session: aiohttp.ClientSession, url: str) -> float:
    started = time.perf_counter()
    async with session.get(url, headers={"Range": f"bytes=0-{SMALL - 1}"}) as response:
        await response.content.readany()
        first = time.perf_counter() - started
        await response.read()
    return first


async def curl(load: Load) -> dict[str, Any]:
    """Measure with one process of curl: ranges in parallel, and small ones one after the other."""
    ranges = load.ranges()
    started = time.perf_counter()
    limit = f"{load.concurrency}"
    sizes = await asyncio.to_thread(
        _curl,
        [next(ranges) for _ in range(load.requests)],
        "%{size_download}",
        ["--parallel", "--parallel-immediate", "--parallel-max", limit],
    )
    seconds = time.perf_counter() - started
    small = [(load.urls[n % len(load.urls)], f"0-{SMALL - 1}") for n in range(TIMES)]
    times = await asyncio.to_thread(_curl, small, "%{time_pretransfer} %{time_starttransfer}", [])
    return {
        "nbytes": sum(int(size) for (size,) in sizes),
        "seconds": seconds,
        "first_byte_seconds": statistics.median(float(b) - float(a) for a, b in times),
    }


def _curl(requests: list[tuple[str, str]], told: str, options: list[str]) -> list[list[str]]:
    """Have curl send requests, and return what it tells of each."""
    parts = [
        f'url = "{url}"\nrange = "{part}"\noutput = "/dev/null"\nwrite-out = "{told}\\n"\n'
        "silent\nfail\n"
        for url, part in requests
    ]
    with tempfile.NamedTemporaryFile("w", suffix=".curl") as config:
        config.write("next\n".join(parts))
        config.flush()
        command = ["curl", *options, "--config", config.name]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [line.split() for line in done.stdout.splitlines()]


async def wrk(load: Load) -> dict[str, Any]:
    """Measure with one thread of wrk, which requests one range again and again."""
    command = ["wrk", "--threads", "1", "--connections", f"{load.concurrency}"]
    command += ["--duration", f"{max(1, round(load.seconds))}s", "--timeout", "30s"]
    command += ["--header", f"Range: bytes=0-{load.range_bytes - 1}", load.urls[0]]
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, check=True
    )
    found = re.search(r"requests in ([\d.]+)(ms|s), ([\d.]+)([KMG]?B) read", done.stdout)
    if found is None:
        raise SystemExit(f"wrk said nothing of bytes: {done.stdout}")
    unit = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}[found[4]]
    seconds = float(found[1]) / (1000 if found[2] == "ms" else 1)
    return {"nbytes": float(found[3]) * unit, "seconds": seconds, "first_byte_seconds": None}


TOOLS = {"streamrec": streamrec, "aiohttp": plain_aiohttp, "curl": curl, "wrk": wrk}


def main() -> None:
    """Measure as the arguments say, and print the report."""
    arguments = json.loads(sys.argv[1])
    tool = TOOLS[arguments.pop("tool")]
    del arguments["companions"]
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        print(json.dumps(runner.run(tool(Load(**arguments)))))


if __name__ == "__main__":
    main()
