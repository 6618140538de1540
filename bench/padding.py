"""How much padding buckets of records of like length save.

::

    python -m bench.padding --output bench/results

Sequences of lognormal lengths are written into shards and streamed; what is measured is which part
of dense batches, each as wide as its longest row, would be padding. The streams are shuffled, and
windows hold a part of the data, so that lanes close them at different records.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import click
import numpy as np

import streamrec as sr
from bench import machine
from bench.markdown import table
from streamrec.formats.shards.index import index_url
from streamrec.shards.verify import check, index_of

SHARDS, RECORDS, LANES = 112, 430, 48
"""By shard 16 of the lanes have three shards, and the others two."""
MEAN, SPREAD = 6.0, 0.7
"""Of the lengths' logarithms: half of them are below 403 bytes, one of 20 is above 1,275."""
BUCKETS = (None, 4, 8, 16, 32, 64)
BATCHES = (64, 256)
WINDOWS = ("2MiB", "16MiB")
"""A twelfth of the data, and two thirds."""
ENDS: dict[str, dict[str, Any]] = {
    "by record": {"index": True},
    "by shard, with steps_per_epoch": {"steps_per_epoch": 0},
    "by shard, one epoch": {},
}


@click.command()
@click.option("--output", type=click.Path(path_type=Path), help="Directory for JSON and Markdown.")
def main(*, output: Path | None) -> None:
    """Write shards, stream them, print a table, and write JSON and Markdown."""
    with tempfile.TemporaryDirectory() as directory:
        source = written(Path(directory))
        results = {
            f"{ends}, batches of {size}, windows of {window}": {
                str(buckets or "none"): measured(source, size, window, buckets, ENDS[ends])
                for buckets in BUCKETS
            }
            for ends, size, window in product(ENDS, BATCHES, WINDOWS)
        }
    text = as_markdown(results)
    click.echo(text)
    if output is None:
        return
    facts = {
        "benchmark": "padding",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine.describe(),
        "padding": results,
    }
    (output / "padding.json").write_text(json.dumps(facts, indent=2) + "\n")
    (output / "padding.md").write_text(text + "\n")


def written(directory: Path) -> str:
    """The glob of shards with drawn lengths, and an index beside them."""
    random = np.random.default_rng(0)
    for shard in range(SHARDS):
        lengths = random.lognormal(MEAN, SPREAD, RECORDS).astype(int).tolist()
        with sr.TFRecordWriter(str(directory / f"{shard:03}.tfrecord")) as writer:
            writer.write_many(bytes(length) for length in lengths)
    source = f"{directory}/*.tfrecord"
    reports = asyncio.run(check([source], chunk_bytes=16 << 10))
    Path(index_url([report.url for report in reports])).write_bytes(index_of(reports).encode())
    return source


def measured(
    source: str, size: int, window: str, buckets: int | None, ends: dict[str, Any]
) -> float:
    """Which part of an epoch's dense batches would be padding."""
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


def as_markdown(results: dict[str, dict[str, float]]) -> str:
    """A row for each stream, a column for each number of buckets."""
    head = ("padding, per cent", *(f"{buckets or 'no'} buckets" for buckets in BUCKETS))
    rows = [(name, *(f"{100 * part:.1f}" for part in of.values())) for name, of in results.items()]
    return table(head, rows)


if __name__ == "__main__":
    main()
