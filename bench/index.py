"""Measures what an index costs to write and to load.

Local files, in the page cache: 1,000 shards of a MB each by default.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np

from bench.cases import say
from bench.datasets import write_shards
from bench.harness import Report, Run, benchmark
from streamrec.datasets.verify import check, index_of
from streamrec.formats.shards.index import Index
from streamrec.formats.shards.index_names import index_url


@benchmark("index")
@click.option("--shards", default=1000, show_default=True, help="Number of shards.")
@click.option("--records", default=256, show_default=True, help="Records of 4 KiB in a shard.")
def main(_: Run, *, shards: int, records: int) -> Report:
    payloads = [np.random.default_rng(number).bytes(4096) for number in range(records)]
    with tempfile.TemporaryDirectory() as directory:
        say(f"writing {shards:,} shards")
        source = write_shards(Path(directory), shards, payloads)
        cases = [write_index(source)]
    settings = {"shards": shards, "records": records}
    return Report("", {"settings": settings, "cases": cases}, shown=json.dumps(cases, indent=2))


def write_index(source: str) -> dict[str, Any]:
    """Check every byte of the shards, and write their index."""
    say("checking every byte")
    reports, checking = time_call(lambda: asyncio.run(check([source])))
    index = index_of(reports)
    size = sum(report.size for report in reports)
    data, encoding = time_call(index.encode)
    Path(index_url([report.url for report in reports])).write_bytes(data)
    _, parsing = time_call(lambda: Index.parse(data, url="index"))
    return {
        "case": f"index of {len(reports)} shards",
        "shard bytes": size,
        "index bytes": len(data),
        "seconds to check every byte": checking,
        "MB/s": size / checking / 1e6,
        "seconds to encode": encoding,
        "seconds to parse": parsing,
    }


def time_call(function: Callable[[], Any]) -> tuple[Any, float]:
    """Call a function; return its result, and the seconds that it took."""
    began = time.perf_counter()
    result = function()
    return result, time.perf_counter() - began


if __name__ == "__main__":
    main()
