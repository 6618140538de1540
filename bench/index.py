"""Measures what an index costs to write and to load.

Local files, in the page cache: 1,000 shards of a MB each by default.
"""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys
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
from streamrec.formats.shards.index import Index, ShardEntry
from streamrec.formats.shards.index_names import SUFFIX, index_url


@benchmark("index")
@click.option("--shards", default=1000, show_default=True, help="Number of shards.")
@click.option("--records", default=256, show_default=True, help="Records of 4 KiB in a shard.")
def main(_: Run, *, shards: int, records: int) -> Report:
    payloads = [np.random.default_rng(number).bytes(4096) for number in range(records)]
    with tempfile.TemporaryDirectory() as directory:
        say(f"writing {shards:,} shards")
        source = write_shards(Path(directory), shards, payloads)
        cases = [write_index(source), which()]
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


def which(shards: int = 100_000, chunks: int = 10, records: int = 1000) -> dict[str, Any]:
    """Ask ``streamrec which`` for a step of 10^9 records in 10^5 shards, of which there is no byte.

    Args:
        shards: The number of shards.
        chunks: The chunks of each, of a MiB.
        records: The records of each chunk.
    """
    say("a step of an index without shards")
    begins, firsts = (np.arange(chunks, dtype=np.int64) * unit for unit in (1 << 20, records))
    size = chunks << 20
    entries = (
        ShardEntry(f"part-{i:06}", size, chunks * records, begins, firsts, firsts + 1)
        for i in range(shards)
    )
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory, f"part{SUFFIX}")
        place.write_bytes(Index(tuple(entries)).encode())
        settings = ("index=true", "shuffle=true", "batch_size=256")
        changes = [word for setting in settings for word in ("--set", setting)]
        command = [sys.executable, "-m", "streamrec", "which", str(place), "--step", "1200000"]
        _, seconds = time_call(
            lambda: subprocess.run([*command, *changes], check=True, stdout=subprocess.DEVNULL)
        )
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "case": f"a step of {shards * chunks * records:,} records",
        "seconds": seconds,
        "CPU seconds": used.ru_utime + used.ru_stime,
        "peak MB": used.ru_maxrss / 1000,
    }


def time_call(function: Callable[[], Any]) -> tuple[Any, float]:
    """Call a function; return its result, and the seconds that it took."""
    began = time.perf_counter()
    result = function()
    return result, time.perf_counter() - began


if __name__ == "__main__":
    main()
