"""Compares streamrec's shuffle with tf.data's shuffle buffer and Grain's window shuffle.

::

    python -m bench.shuffle --output bench/results

Every way to shuffle has as much memory: streamrec's default window of 256 MiB. The data are sorted
by class, which is the worst that a shuffle is given.

- *Chi-square*: of the classes in a batch of 256, over its degrees of freedom, mean over an epoch. A
  perfect shuffle has 1.
- *Displacement*: how far a record comes from its place, as a part of the whole. A third is perfect.
- *Neighbours*: the correlation of the places of records that come one after the other, and the
  largest of those that come 1 to 128 apart. 0 is perfect.

``--first-batch`` also measures what the shuffle costs: seconds to the first batch from a store with
50 ms to the first byte, by shard and by record.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from statistics import mean, median
from time import perf_counter
from typing import Any

import click

import streamrec as sr
from bench.console import data_option, output_option, repeat_option
from bench.datasets import images
from bench.markdown import table
from bench.progress import say
from bench.results import facts, write
from bench.services import STORE_KEYS, store
from bench.shuffling.orders import ORDERS, Data
from bench.shuffling.quality import quality
from streamrec.datasets.verify import check, index_of

BATCH_SIZE = 256
WINDOW = 256 << 20
DATA = (
    Data("pictures of 110 KB, 128 shards of 1,024", 128, 1024, 110_000),
    Data("pictures of 110 KB, 1,024 shards of 128", 1024, 128, 110_000),
    Data("texts of 2 KB, 128 shards of 4,096", 128, 4096, 2_000),
    Data("texts of 2 KB, 512 shards of 4,096", 512, 4096, 2_000),
)
FIGURES = ("chi_square", "displacement", "neighbours", "neighbours_most")
HEAD = ("", "chi-square", "displacement", "neighbours", "most of 128")
SHARDS = 128
"""Number of shards that the first batch is read from: more than there are lanes."""
SOURCE = "s3://pictures/*.tfrecord"


@click.command()
@output_option
@click.option("--seeds", default=3, show_default=True, help="Epochs of each order.")
@click.option("--first-batch", is_flag=True, help="Measure the time to the first batch, too.")
@data_option
@click.option(
    "--megabytes", default=1072.0, show_default=True, help="Megabytes of data for --first-batch."
)
@repeat_option(5, "Number of rounds of --first-batch.")
def main(
    *,
    output: Path | None,
    seeds: int,
    first_batch: bool,
    data: Path,
    megabytes: float,
    repeat: int,
) -> None:
    """Compute, print tables, and write JSON and Markdown."""
    results: dict[str, Any] = {one.name: mean_figures(one, seeds) for one in DATA}
    seconds = first_batches(data.absolute(), megabytes, repeat) if first_batch else None
    text = as_markdown(results, seconds)
    click.echo(text)
    if output is None:
        return
    settings = {
        "batch_size": BATCH_SIZE,
        "window": WINDOW,
        "seeds": seeds,
        "first_batch_megabytes": megabytes,
        "first_batch_rounds": repeat,
    }
    found = facts("shuffle", settings=settings, orders=results, first_batch_seconds=seconds)
    write(output, "shuffle", found, text)


def mean_figures(data: Data, seeds: int) -> dict[str, dict[str, float]]:
    """Return the mean figures of each order over several seeds."""
    found = {}
    for title, order in ORDERS.items():
        say(f"{data.name}: {title}")
        epochs = [
            quality(order(data, WINDOW, seed), data.classes_of, BATCH_SIZE) for seed in range(seeds)
        ]
        found[title] = {name: mean(epoch[name] for epoch in epochs) for name in FIGURES}
    return found


def first_batches(root: Path, megabytes: float, repeat: int) -> dict[str, list[float]]:
    """Return the seconds to the first batch of each round, shuffled and not, in both orders."""
    paths = [str(path) for path in images(root, megabytes).paths]
    recipe = {"templates": paths, "name": "shard-{:05}.tfrecord", "objects": SHARDS}
    with (
        store(recipes={"pictures": recipe}, latency=0.05, bandwidth=60e6) as served,
        tempfile.TemporaryDirectory() as directory,
    ):
        options = {"endpoint_url": served.endpoint, **STORE_KEYS}
        index = Path(directory, "index")
        index.write_bytes(index_of(asyncio.run(check([SOURCE], options))).encode())
        ways: dict[str, dict[str, Any]] = {
            "by shard, in order": {},
            "by shard, shuffled": {"shuffle": True},
            "by record, in order": {"index": str(index)},
            "by record, shuffled": {"index": str(index), "shuffle": True},
        }
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(repeat):
            for name, settings in ways.items():
                say(f"first batch {name}")
                seconds[name].append(asyncio.run(_first(options, settings)))
    return seconds


async def _first(options: dict[str, Any], settings: dict[str, Any]) -> float:
    began = perf_counter()
    stream = sr.open(SOURCE, batch_size=BATCH_SIZE, storage_options=options, **settings)
    async with stream:
        await anext(stream)
        return perf_counter() - began


def as_markdown(results: dict[str, Any], seconds: dict[str, list[float]] | None) -> str:
    """Return a table for each dataset."""
    parts = []
    for name, orders in results.items():
        rows = [
            (title, *(f"{figures[figure]:.3f}" for figure in FIGURES))
            for title, figures in orders.items()
        ]
        parts.append(f"{name}\n\n{table(HEAD, rows)}")
    if seconds is not None:
        rows = [(name, f"{median(times):.2f}") for name, times in seconds.items()]
        parts.append(f"First batch of {BATCH_SIZE}\n\n{table(('', 'seconds'), rows)}")
    return "\n\n".join(parts)


if __name__ == "__main__":
    main()
