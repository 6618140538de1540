"""Two shards of small Examples with an index, for the tests of the loader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import streamrec as sr
from tests.pipeline.small_datasets import write_index

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["ELASTIC", "FEATURES", "FEW", "RATE", "write_examples"]

FEATURES = {
    "id": sr.FixedLenFeature((), "int64"),
    "x": sr.FixedLenFeature((2,), "float32"),
    "name": sr.FixedLenFeature((), bytes),
    "tokens": sr.RaggedFeature("int64"),
    "hot": sr.SparseFeature("at", "hot", "float32", 9),
}
FEW: dict[str, Any] = {"memory_budget": "32MiB", "max_concurrency": 8, "prefetch": 2}
"""Little that an endless stream reads ahead: of shards this small it is all over and over again."""
ELASTIC: dict[str, Any] = {
    "features": {name: FEATURES[name] for name in ("id", "x")},
    "batch_size": 12,  # of one rank; several have a part each
    "lanes": 12,
    "index": True,
    "shuffle": True,
    "shuffle_window": 3000,
    "epochs": None,
    "engine": "thread",
    **FEW,
}
"""The stream of trainings whose number of ranks changes."""
RATE = 2.0**-10
"""The rate at which they learn."""


def write_examples(directory: Path, records: int) -> str:
    """Write the shards; return their glob."""
    for shard in range(2):
        with sr.TFRecordWriter(f"{directory}/part-{shard}.tfrecord") as writer:
            for i in range(records // 2):
                number = shard * records // 2 + i
                row = {"id": number, "x": [number / 2, 1.0], "name": f"n{number}"}
                lists = {"tokens": [*range(i % 4)], "at": [*range(i % 3)], "hot": [0.5] * (i % 3)}
                writer.write({**row, **lists})
    write_index(f"{directory}/part-*.tfrecord", 200)
    return f"{directory}/part-*.tfrecord"
