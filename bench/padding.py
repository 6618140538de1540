"""Measures the padding that buckets of records of similar length save.

Sequences of lognormal lengths are written into shards and streamed; the result is the part
of dense batches, each as wide as its longest row, that would be padding. The streams are shuffled,
and a window holds a part of the data, so that lanes close their windows at different records.
"""

from __future__ import annotations

import asyncio
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import streamrec as sr
from bench import datasets
from bench.cases import say
from bench.harness import Column, Report, Run, benchmark, table_of
from streamrec.datasets.verify import check, index_of
from streamrec.formats.shards.index_names import index_url

SHARDS, RECORDS, LANES = 112, 430, 48
"""Numbers of shards, of records in each, and of lanes: 16 of them have three shards, others two."""
MEAN, SPREAD = 6.0, 0.7
"""Mean and deviation of the logarithms of lengths: half are below 403, one of 20 above 1,275."""
BUCKETS = (None, 4, 16, 64)
BATCHES = (64,)
WINDOWS = ("2MiB", "16MiB")
"""Shuffle windows that hold a twelfth of the data, and two thirds."""
ENDS: dict[str, dict[str, Any]] = {
    "by record": {"index": True},
    "by shard, with steps_per_epoch": {"steps_per_epoch": 0},
    "by shard, one epoch": {},
}

COLUMNS = (
    Column("padding, per cent", "name", str),
    *(
        Column(f"{n or 'no'} buckets", str(n or "none"), lambda part: f"{100 * part:.1f}")
        for n in BUCKETS
    ),
)


@benchmark("padding", only=True)
def main(run: Run) -> Report:
    with tempfile.TemporaryDirectory() as directory:
        source = write_shards(Path(directory))
        results = {}
        for ends, size, window in product(ENDS, BATCHES, WINDOWS):
            title = f"{ends}, batches of {size}, windows of {window}"
            if not run.selects(title):
                continue
            say(title)
            results[title] = {
                str(buckets or "none"): padding(source, size, window, buckets, ENDS[ends])
                for buckets in BUCKETS
            }
    rows = [{"name": name, **parts} for name, parts in results.items()]
    return Report(table_of(COLUMNS, rows), {"padding": results})


def write_shards(directory: Path) -> str:
    """Write shards of records with random lengths, and their index; return the glob."""
    say("writing the shards")
    random = np.random.default_rng(0)

    def records(_: int) -> list[bytes]:
        return [bytes(length) for length in random.lognormal(MEAN, SPREAD, RECORDS).astype(int)]

    source = datasets.write_shards(directory, SHARDS, records)
    reports = asyncio.run(check([source], chunk_bytes=16 << 10))
    Path(index_url([report.url for report in reports])).write_bytes(index_of(reports).encode())
    return source


def padding(
    source: str, size: int, window: str, buckets: int | None, ends: dict[str, Any]
) -> float:
    """Return the part of an epoch's dense batches that would be padding."""
    if "steps_per_epoch" in ends:
        ends = {"steps_per_epoch": SHARDS * RECORDS // size}
    stream = sr.open(
        source,
        batch_size=size,
        lanes=LANES,
        shuffle=True,
        shuffle_window=window,
        length_buckets=buckets,
        engine="thread",
        **ends,
    )
    there = dense = 0
    with stream:
        for batch in stream:
            lengths = np.diff(batch.records.offsets)
            there += int(lengths.sum())
            dense += len(lengths) * int(lengths.max())
    return 1 - there / dense


if __name__ == "__main__":
    main()
