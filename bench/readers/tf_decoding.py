"""TensorFlow on records: raw, and parsed; needs TensorFlow, and not streamrec."""

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
"""Bytes of a frame besides its payload."""


def one_by_one(order: dict[str, Any]) -> Iterator[Done]:
    """One file, each record to NumPy."""
    records = tf.data.TFRecordDataset(order["paths"][0], buffer_size=order["read_bytes"])
    while True:
        sizes = [len(record.numpy()) for record in records]
        yield Done(len(sizes), nbytes=sum(sizes) + FRAME * len(sizes))


def batched(order: dict[str, Any]) -> Iterator[Done]:
    """All files side by side; the records stay tensors."""
    pipeline = batches(order).prefetch(tf.data.AUTOTUNE)
    while True:
        yield Done(sum(int(records.shape[0]) for records in pipeline))


def parse_example(order: dict[str, Any]) -> Iterator[Done]:
    """``tf.io.parse_example`` on tensors that are there already."""
    records = tf.data.TFRecordDataset(order["paths"][0], buffer_size=order["read_bytes"])
    tensors = list(records.batch(order["batch_size"]))
    parse = parser(order["features"])
    if order["graph"]:
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
    """Carry out the order."""
    order: dict[str, Any] = json.loads(sys.argv[1])
    repeat(partial(WAYS[order["way"]], order), order["seconds"])


if __name__ == "__main__":
    main()
