"""Measures what a store sends: whole downloads by aiohttp, and its rate by one of several tools."""

from __future__ import annotations

import asyncio
import re
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing
from random import Random
from typing import Any, NamedTuple

import aiohttp
import numpy as np
from botocore.config import Config
from botocore.session import get_session
from yarl import URL

from bench.stopwatch import Arguments, Stopwatch, main
from streamrec.flow.bridge import new_event_loop
from streamrec.measure.benchmark import measure_first_byte
from streamrec.measure.budget import Budget
from streamrec.measure.figures import Limits
from streamrec.measure.sweep import measure_cell
from streamrec.stores.base.protocol import ObjectInfo
from streamrec.stores.http.http_store import HttpStore

RANGE_BYTES = 8 << 20
TIMES = 200
"""Requests for the median of the first byte."""
SMALL = 4 << 10
Count = Callable[[aiohttp.ClientResponse], Awaitable[int]]
"""A function that receives a range and counts its bytes."""


# -- downloads -------------------------------------------------------------------------------------


def objects_of(arguments: dict[str, Any]) -> list[tuple[URL, int]]:
    """Return each object's URL, presigned where it is S3's, and its size in bytes.

    Objects that are ``alike`` have a pattern of URLs with their number, a count, and one size.
    """
    if "alike" in arguments:
        pattern, count, size = arguments["alike"]
        return [(URL(pattern.format(number)), size) for number in range(count)]
    if "urls" in arguments:
        return [(URL(url), size) for url, size in arguments["urls"]]
    options = arguments["storage_options"]
    client = get_session().create_client(
        "s3",
        region_name="us-east-1",
        endpoint_url=options["endpoint_url"],
        aws_access_key_id=options["key"],
        aws_secret_access_key=options["secret"],
        config=Config(signature_version="s3v4", s3={"addressing_style": "path"}),
    )

    def sign(bucket: str, key: str) -> URL:
        place = {"Bucket": bucket, "Key": key}
        return URL(client.generate_presigned_url("get_object", place), encoded=True)

    return [(sign(bucket, key), size) for bucket, key, size in arguments["objects"]]


def ranges(objects: list[tuple[URL, int]]) -> Iterator[tuple[URL, str]]:
    for url, size in objects:
        for start in range(0, size, RANGE_BYTES):
            yield url, f"bytes={start}-{min(start + RANGE_BYTES, size) - 1}"


async def keep(response: aiohttp.ClientResponse) -> int:
    """Receive the whole range into memory, as a reader that uses it must."""
    return len(await response.read())


async def drop(response: aiohttp.ClientResponse) -> int:
    """Drop each piece as it arrives, which is the most that aiohttp can receive."""
    return sum([len(piece) async for piece in response.content.iter_any()])


async def fetch(
    session: aiohttp.ClientSession, waiting: Iterator[tuple[URL, str]], count: Count
) -> int:
    """Send one request after the other until none is left; return the bytes received."""
    received = 0
    for url, span in waiting:
        async with session.get(url, headers={"Range": span}) as response:
            response.raise_for_status()
            received += await count(response)
    return received


async def download_all(arguments: Arguments, watch: Stopwatch) -> None:
    """Keep so many requests in flight until all bytes are received."""
    waiting = ranges(objects_of(arguments))
    count = keep if arguments["keep"] else drop
    watch.start()
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:
        lines = [fetch(session, waiting, count) for _ in range(arguments["in_flight"])]
        watch.nbytes = sum(await asyncio.gather(*lines))
        watch.stop()


def download(arguments: Arguments) -> dict[str, Any]:
    """Download objects with presigned URLs and ranged GETs, and decode nothing."""
    watch = Stopwatch(arguments["companions"])
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(download_all(arguments, watch))
    return watch.report()


# -- the rate, and the first bytes -----------------------------------------------------------------


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
    return {"nbytes": nbytes, "seconds": seconds, "first_byte_seconds": statistics.median(times)}


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
    requests = [next(ranges) for _ in range(load.requests)]
    options = ["--parallel", "--parallel-immediate", "--parallel-max", f"{load.concurrency}"]
    sizes = await asyncio.to_thread(_curl, requests, "%{size_download}", options)
    seconds = time.perf_counter() - started
    small = [(load.urls[n % len(load.urls)], f"0-{SMALL - 1}") for n in range(TIMES)]
    times = await asyncio.to_thread(_curl, small, "%{time_pretransfer} %{time_starttransfer}", [])
    nbytes = sum(int(size) for (size,) in sizes)
    first = statistics.median(float(b) - float(a) for a, b in times)
    return {"nbytes": nbytes, "seconds": seconds, "first_byte_seconds": first}


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


def measure_rate(arguments: Arguments) -> dict[str, Any]:
    """Measure the bytes of a rate, their seconds, and the median first byte, with one tool."""
    tool = TOOLS[arguments.pop("tool")]
    del arguments["companions"]
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(tool(Load(**arguments)))


if __name__ == "__main__":
    main({"download": download, "rates": measure_rate})
