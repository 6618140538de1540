"""Four hosts become two, then eight, in the middle of an epoch: the global batches stay the same.

This holds by shard, by record, and where a filter leaves records out. Run it with
``python examples/elastic.py``; it works in a temporary directory. Here the hosts are streams of one
process, which read as hosts do: each reads its own rank, and none talks to another.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from itertools import chain
from pathlib import Path
from typing import Any

import streamrec as sr

LANES = 8
GLOBAL_BATCH = 24
STEPS = 12
PLAN = [(4, 4), (2, 3), (8, 5)]  # hosts, and the steps that they train

ORDERS: dict[str, dict[str, Any]] = {
    "by shard": {},
    "by record": {"index": True},
    "by record, filtered": {"index": True, "filter": lambda columns: columns["id"] % 3 > 0},
}

Records = list[tuple[int, int]]
"""The records of a batch: the shard of each, and its number in the shard."""


def write_shards(directory: Path) -> None:
    """Write ten shards of 10 to 55 records, and their index."""
    for shard in range(10):
        with sr.TFRecordWriter(directory / f"train-{shard:05}-of-00010.tfrecord") as writer:
            writer.write_many({"id": 100 * shard + i} for i in range(10 + 5 * shard))
    index = [sys.executable, "-m", "streamrec", "index", "--chunk-size=256", f"{directory}/train-*"]
    subprocess.run(index, check=True, stdout=subprocess.DEVNULL)


def open_rank(directory: Path, order: str, rank: int, world_size: int) -> sr.Stream:
    """Open the stream of a host, whose batch is its share of the global batch."""
    return sr.open(
        f"{directory}/train-*",
        {"id": sr.FixedLenFeature((), "int64")},
        batch_size=GLOBAL_BATCH // world_size,
        shuffle=True,
        seed=7,
        shuffle_window="4KiB",
        lanes=LANES,
        epochs=None,
        rank=rank,
        world_size=world_size,
        engine="thread",
        **ORDERS[order],
    )


def train(
    directory: Path, order: str, world_size: int, steps: int, saved: str
) -> tuple[list[Records], str]:
    """Train some steps on some hosts; return the global batches and the checkpoint after them."""
    ranks, states = [], []
    for rank in range(world_size):
        stream = open_rank(directory, order, rank, world_size)
        stream.load_state_dict(json.loads(saved))
        with stream:
            ranks.append([records(batch) for batch in sr.take(stream, steps)])
            states.append(stream.state_dict())
    return [sorted(chain(*step)) for step in zip(*ranks, strict=True)], json.dumps(states)


def records(batch: Any) -> Records:
    return list(zip(batch.origin.shards.tolist(), batch.origin.records.tolist(), strict=True))


def resize(directory: Path, order: str) -> None:
    """Print each global batch, and whether it is the same as on one host alone."""
    beginning = json.dumps([{"version": 3}])
    whole, _ = train(directory, order, 1, STEPS, beginning)
    resized: list[Records] = []
    saved = beginning
    for hosts, steps in PLAN:
        some, saved = train(directory, order, hosts, steps, saved)
        for batch in some:
            same = batch == whole[len(resized)]
            resized.append(batch)
            first = " ".join(f"{shard}/{number}" for shard, number in batch[:6])
            word = "the same" if same else "DIFFERENT"
            print(f"step {len(resized):2}, {hosts} hosts: {first} ... {word}")
    assert resized == whole, "every global batch holds the records that one host alone reads"
    print(f"{STEPS} global batches of {GLOBAL_BATCH} records, the same on 1, 4, 2 and 8 hosts")


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        write_shards(Path(name))
        for order in ORDERS:
            print(order)
            resize(Path(name), order)


if __name__ == "__main__":
    main()
