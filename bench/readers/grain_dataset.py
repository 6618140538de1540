"""Reads with Grain, whose records are parsed one by one with protobuf; needs Grain.

This is how its documentation reads formats without random access: an iterator for each file, which
are interleaved, in this process or divided between workers. Grain checks no CRC.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from bench.readers.timing import Arguments, time_way
from streamrec import Example

grain: Any = import_module("grain")
flags: Any = import_module("absl.flags")
LISTS = {"bytes": "bytes_list", "float32": "float_list", "int64": "int64_list"}


def dataset(arguments: Arguments) -> Any:
    """Return the batches as arrays by name, in lists where they are bytes."""
    files = grain.MapDataset.source(arguments["paths"]).map(grain.experimental.TFRecordIterDataset)
    records = grain.experimental.InterleaveIterDataset(files, cycle_length=len(files))
    parsed = records.map(partial(parse, arguments["features"]))
    batches = parsed.batch(arguments["batch_size"], drop_remainder=False, batch_fn=stacked)
    workers = arguments["workers"]
    if not workers:
        return batches
    flags.FLAGS.mark_as_parsed()  # else its workers cannot begin: it has options of its own
    return batches.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))


def parse(features: dict[str, Any], serialized: bytes) -> dict[str, Any]:
    """Return a record's features, in the plain form of :mod:`bench.datasets`, as arrays."""
    found = Example.FromString(serialized).features.feature
    return {name: _value(plain, found[name]) for name, plain in features.items()}


def _value(plain: dict[str, Any], feature: Any) -> Any:
    if plain.get("raw"):
        (content,) = feature.bytes_list.value
        return np.frombuffer(content, plain["dtype"]).reshape(plain["shape"])
    values = getattr(feature, LISTS[plain["dtype"]]).value
    if plain["dtype"] == "bytes":
        return values[0]
    return np.array(values, plain["dtype"]).reshape(plain["shape"])


def stacked(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Return records as a batch; NumPy's arrays of bytes would lose zeros at their ends."""
    columns = {name: [record[name] for record in records] for name in records[0]}
    return {
        name: values if isinstance(values[0], bytes) else np.stack(values)
        for name, values in columns.items()
    }


def count(batch: dict[str, Any]) -> tuple[int, int]:
    """Count the labels."""
    return len(batch["label"]), int(batch["label"].sum())


WAYS = {"grain_dataset": dataset}

if __name__ == "__main__":
    time_way(WAYS, count)
