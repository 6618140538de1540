"""Parses the records of one shard again and again on one core."""

from __future__ import annotations

import itertools
import json
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

import streamrec as sr
from bench.readers.specs import specs
from bench.stopwatch import Done, repeat
from streamrec import kernel
from streamrec.formats.examples.features import FeatureParser
from streamrec.values.record_rows import RecordBlock, RecordRows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


def batches(path: str, size: int) -> list[RecordRows]:
    """Return the records of a file in batches, as rows of its buffer."""
    data = np.fromfile(path, np.uint8)
    found = kernel.scan_frames(data, 0, len(data), True)
    block = RecordBlock(data, found.offsets, found.lengths, 0, 0, 0)
    starts = range(0, len(block), size)
    return [RecordRows.from_block(block, start, start + size) for start in starts]


def prepared(arguments: Mapping[str, Any]) -> Iterator[Done]:
    """Parse rows in place with a parser that is prepared once, as a stream does."""
    parser = FeatureParser(specs(arguments["features"]))
    for rows in itertools.cycle(batches(arguments["paths"][0], arguments["batch_size"])):
        columns: dict[str, Any] = parser.parse(rows)
        yield Done(len(rows), int(columns["label"].sum()))


def serialized(arguments: Mapping[str, Any]) -> list[list[bytes]]:
    """Return the records of a file in batches, as byte strings."""
    parts = batches(arguments["paths"][0], arguments["batch_size"])
    return [[bytes(payload) for payload in rows.payloads()] for rows in parts]


def parse_example(arguments: Mapping[str, Any]) -> Iterator[Done]:
    """Parse lists of byte strings with the public function."""
    features = specs(arguments["features"])
    for records in itertools.cycle(serialized(arguments)):
        columns: dict[str, Any] = sr.parse_example(records, features)
        yield Done(len(records), int(columns["label"].sum()))


def upb(arguments: Mapping[str, Any]) -> Iterator[Done]:
    """Parse each record with protobuf's messages, into a mapping of arrays."""
    readers = {name: _reader(plain) for name, plain in arguments["features"].items()}
    for records in itertools.cycle(serialized(arguments)):
        labels = 0
        for record in records:
            features = sr.Example.FromString(record).features.feature
            row = {name: read(features[name]) for name, read in readers.items()}
            labels += int(row["label"][0])
        yield Done(len(records), labels)


def _reader(plain: Mapping[str, Any]) -> Callable[[Any], Any]:
    dtype, shape = plain["dtype"], tuple(plain["shape"])
    if plain.get("raw"):
        return lambda feature: np.frombuffer(feature.bytes_list.value[0], dtype).reshape(shape)
    if dtype == "bytes":
        return lambda feature: feature.bytes_list.value[0]
    if dtype == "int64":
        return lambda feature: np.array(feature.int64_list.value, np.int64)
    return lambda feature: np.array(feature.float_list.value, np.float32)


def tfrecord_package(arguments: Mapping[str, Any]) -> Iterator[Done]:
    """Load the file with the ``tfrecord`` package, which also reads it, and checks no CRC."""
    from tfrecord.reader import tfrecord_loader

    types = {"int64": "int", "float32": "float", "bytes": "byte", "uint8": "byte"}
    wanted = {name: types[plain["dtype"]] for name, plain in arguments["features"].items()}
    while True:
        for row in tfrecord_loader(arguments["paths"][0], None, wanted):
            yield Done(1, int(row["label"][0]))


WAYS: dict[str, Callable[[Mapping[str, Any]], Iterator[Done]]] = {
    "prepared": prepared,
    "parse_example": parse_example,
    "upb": upb,
    "tfrecord": tfrecord_package,
}


def main() -> None:
    """Read as the arguments say, and print the report."""
    arguments: dict[str, Any] = json.loads(sys.argv[1])
    repeat(partial(WAYS[arguments["way"]], arguments), arguments["seconds"])


if __name__ == "__main__":
    main()
