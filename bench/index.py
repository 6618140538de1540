"""Measures what an index costs to write, load and start from, and the rate of reading by record.

Local files, in the page cache: 1,000 shards of a MB each by default.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

from bench.datasets import write_shards
from bench.harness import Report, Run, benchmark, say
from streamrec.config import DatasetSettings, validate
from streamrec.datasets.verify import check, index_of
from streamrec.flow.channel import EndOfStream
from streamrec.formats.shards.index import Index, ShardEntry
from streamrec.formats.shards.index_names import index_url
from streamrec.pipeline.dataset import Dataset
from streamrec.plan.order.record_order import ChunkWindows, RecordOrder
from streamrec.plan.order.window import Windows

LANES = 48
WINDOW = 256 << 20


@benchmark("index")
@click.option("--shards", default=1000, show_default=True, help="Number of shards.")
@click.option("--records", default=256, show_default=True, help="Records of 4 KiB in a shard.")
@click.option("--chunks", default=10_000_000, show_default=True, help="Chunks of the large index.")
def main(_: Run, *, shards: int, records: int, chunks: int) -> Report:
    payloads = [np.random.default_rng(number).bytes(4096) for number in range(records)]
    with tempfile.TemporaryDirectory() as directory:
        say(f"writing {shards:,} shards")
        source = write_shards(Path(directory), shards, payloads)
        cases = [write_index(source), *epochs(source)]
    cases.append(large_index(chunks))
    settings = {"shards": shards, "records": records, "chunks": chunks}
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


def epochs(source: str) -> list[dict[str, Any]]:
    """Read an epoch of raw batches, shuffled, in both orders."""
    cases = []
    for index in (None, True):
        values = {"source": source, "index": index, "shuffle": True, "batch_size": 256}
        order = "by record" if index else "by shard"
        say(f"an epoch {order}")
        settings = validate(DatasetSettings, {**values, "memory_budget": "1GiB"})
        (first, records), seconds = time_call(partial(asyncio.run, epoch(settings)))
        cases.append(
            {
                "case": f"an epoch {order}",
                "seconds to the first batch": first,
                "seconds": seconds,
                "MB/s": records * 4096 / seconds / 1e6,
            }
        )
    return cases


async def epoch(settings: DatasetSettings) -> tuple[float, int]:
    """Return the seconds from opening to the first batch, and the number of records."""
    began, first, records = time.perf_counter(), 0.0, 0
    dataset = await Dataset.open(settings)
    try:
        async with dataset.run(rank=0, world_size=1, batch_size=256, position=None) as run:
            while True:
                records += len(await run.receive())
                first = first or time.perf_counter() - began
    except EndOfStream:
        return first, records
    finally:
        await dataset.aclose()


def large_index(count: int) -> dict[str, Any]:
    """Make and load an index as large as that of 10 TB in chunks of a MiB, without any shards."""
    say("an index without shards")
    shards = 10_000
    each = count // shards
    begins = np.arange(each, dtype=np.int64) << 20
    firsts = np.arange(each, dtype=np.int64) * 256
    entry = {"size": each << 20, "records": each * 256, "crcs": firsts + 1}
    index = Index(
        tuple(
            ShardEntry(f"part-{i:05}", begins=begins, first_records=firsts, **entry)  # type: ignore[arg-type]
            for i in range(shards)
        )
    )
    data = index.encode()
    parsed, parsing = time_call(lambda: Index.parse(data, url="index"))
    _, digesting = time_call(parsed.digest)
    order = RecordOrder(parsed.chunks(), LANES, shuffle=True)
    _, first = time_call(lambda: order.start(0, 0, None))
    windows = ChunkWindows(order, Windows(WINDOW, LANES, 0))
    middle = [order.records // LANES // 2] * LANES
    _, seeking = time_call(lambda: [order.start(lane, n, windows) for lane, n in enumerate(middle)])
    return {
        "case": f"an index of {each * shards:,} chunks",
        "index bytes": len(data),
        "seconds to parse": parsing,
        "seconds for its digest": digesting,
        "seconds to permute an epoch": first,
        "seconds to find the middle of an epoch in every lane": seeking,
    }


def time_call(function: Callable[[], Any]) -> tuple[Any, float]:
    """Call a function; return its result, and the seconds that it took."""
    began = time.perf_counter()
    result = function()
    return result, time.perf_counter() - began


if __name__ == "__main__":
    main()
