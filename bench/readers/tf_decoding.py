"""Reads and parses records with TensorFlow; needs TensorFlow, and not streamrec."""

from __future__ import annotations

import itertools
import json
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from bench.readers.tf_data import batches, parser
from bench.stopwatch import Done, repeat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FRAME = 16
"""Number of bytes of a frame without its payload."""


def one_by_one(arguments: dict[str, Any]) -> Iterator[Done]:
    """Read one file, each record as NumPy's."""
    records = tf.data.TFRecordDataset(arguments["paths"][0], buffer_size=arguments["read_bytes"])
    while True:
        sizes = [len(record.numpy()) for record in records]
        yield Done(len(sizes), nbytes=sum(sizes) + FRAME * len(sizes))


def batched(arguments: dict[str, Any]) -> Iterator[Done]:
    """Read all files side by side; the records stay tensors."""
    pipeline = batches(arguments).prefetch(tf.data.AUTOTUNE)
    while True:
        yield Done(sum(int(records.shape[0]) for records in pipeline))


def parse_example(arguments: dict[str, Any]) -> Iterator[Done]:
    """Parse tensors that are in memory with ``tf.io.parse_example``."""
    records = tf.data.TFRecordDataset(arguments["paths"][0], buffer_size=arguments["read_bytes"])
    tensors = list(records.batch(arguments["batch_size"]))
    parse = parser(arguments["features"])
    if arguments["graph"]:
        parse = tf.function(parse, input_signature=[tf.TensorSpec([None], tf.string)])
    for serialized in itertools.cycle(tensors):
        labels = parse(serialized)["label"].numpy()
        yield Done(len(labels), int(labels.sum()))


WAYS: dict[str, Callable[[dict[str, Any]], Iterator[Done]]] = {
    "one by one": one_by_one,
    "batched": batched,
    "parse_example": parse_example,
}


def main() -> None:
    """Read as the arguments say, and print the report."""
    arguments: dict[str, Any] = json.loads(sys.argv[1])
    repeat(partial(WAYS[arguments["way"]], arguments), arguments["seconds"])


if __name__ == "__main__":
    main()
