"""Four hosts become two, then eight, in the middle of an epoch: the global batches stay the same.

Run it with ``python examples/elastic.py``; it works in a temporary directory. Here the hosts are
streams of one process; they read as hosts do: each its own rank, without talking to each other.
"""

from __future__ import annotations

import json
import tempfile
from itertools import chain
from pathlib import Path
from typing import Any

import streamrec as sr

LANES = 8
GLOBAL_BATCH = 24
STEPS = 12
PLAN = [(4, 4), (2, 3), (8, 5)]  # so many hosts for so many steps

Records = list[tuple[int, int]]
"""(shard, number in the shard) of each."""


def write_shards(directory: Path) -> None:
    """Ten shards of 10 to 55 records."""
    for shard in range(10):
        with sr.TFRecordWriter(directory / f"train-{shard:05}-of-00010.tfrecord") as writer:
            writer.write_many({"id": 100 * shard + i} for i in range(10 + 5 * shard))


def open_rank(directory: Path, rank: int, world_size: int) -> sr.Stream:
    """What each host opens. Its batch is its share of the global one."""
    return sr.open(
        str(directory / "train-*.tfrecord"),
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
    )


def train(directory: Path, world_size: int, steps: int, saved: str) -> tuple[list[Records], str]:
    """Some steps on so many hosts: the global batches, and the checkpoint behind them."""
    ranks, states = [], []
    for rank in range(world_size):
        stream = open_rank(directory, rank, world_size)
        stream.load_state_dict(json.loads(saved))
        with stream:
            ranks.append([records(batch) for batch in sr.take(stream, steps)])
            states.append(stream.state_dict())
    return [sorted(chain(*step)) for step in zip(*ranks, strict=True)], json.dumps(states)


def records(batch: Any) -> Records:
    return list(zip(batch.origin.shards.tolist(), batch.origin.records.tolist(), strict=True))


def main() -> None:
    beginning = json.dumps([{"version": 1}])
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        write_shards(directory)
        whole, _ = train(directory, 1, STEPS, beginning)
        resized: list[Records] = []
        saved = beginning
        for hosts, steps in PLAN:
            some, saved = train(directory, hosts, steps, saved)
            for batch in some:
                same = batch == whole[len(resized)]
                resized.append(batch)
                first = " ".join(f"{shard}/{number}" for shard, number in batch[:6])
                word = "the same" if same else "DIFFERENT"
                print(f"step {len(resized):2}, {hosts} hosts: {first} ... {word}")
    assert resized == whole, "every global batch holds the records that one host alone reads"
    print(f"{STEPS} global batches of {GLOBAL_BATCH} records, the same on 1, 4, 2 and 8 hosts")


if __name__ == "__main__":
    main()
