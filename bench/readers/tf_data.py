"""Reads local files with tf.data, parsed after batching; needs TensorFlow, and not streamrec."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from bench.stopwatch import Stopwatch

__all__ = ["batches", "dataset", "parser"]

READ_BYTES = 8 << 20
"""A reader's buffer, where the order does not say; TensorFlow's default of 256 KiB is slower."""
Parse = Callable[[Any], dict[str, Any]]


def parser(features: dict[str, Any]) -> Parse:
    """``parse_example``, and ``decode_raw`` where a string holds an array's bytes.

    Args:
        features: In the plain form of :mod:`bench.datasets`.
    """
    specs = {name: _spec(plain) for name, plain in features.items()}
    raw = {name: plain for name, plain in features.items() if plain.get("raw")}

    def parse(serialized: Any) -> dict[str, Any]:
        columns: dict[str, Any] = tf.io.parse_example(serialized, specs)
        for name, plain in raw.items():
            flat = tf.io.decode_raw(columns[name], plain["dtype"])
            columns[name] = tf.reshape(flat, [-1, *plain["shape"]])
        return columns

    return parse


def _spec(plain: dict[str, Any]) -> Any:
    if plain.get("raw") or plain["dtype"] == "bytes":
        return tf.io.FixedLenFeature((), tf.string)
    return tf.io.FixedLenFeature(plain["shape"], plain["dtype"])


def batches(order: dict[str, Any]) -> Any:
    """Interleaved files, in batches of serialized records.

    ``within_files`` batches before it interleaves: a batch is of one file, and tf.data handles
    batches instead of records.
    """
    within = order.get("within_files", False)

    def read(path: Any) -> Any:
        size = order.get("read_bytes", READ_BYTES)
        records = tf.data.TFRecordDataset(path, buffer_size=size)
        return records.batch(order["batch_size"]) if within else records

    interleaved = (
        tf.data.Dataset.from_tensor_slices(order["paths"])
        .repeat(order.get("epochs", 1))
        .interleave(
            read,
            cycle_length=len(order["paths"]),
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=order["deterministic"],
        )
    )
    return interleaved if within else interleaved.batch(order["batch_size"])


def dataset(order: dict[str, Any]) -> Any:
    """The batches through ``parse_example``, everything AUTOTUNE."""
    return (
        batches(order)
        .map(
            parser(order["features"]),
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=order["deterministic"],
        )
        .prefetch(tf.data.AUTOTUNE)
    )


def main() -> None:
    """Carry out the order. Only labels become NumPy's: the rest would be copied once more."""
    order = json.loads(sys.argv[1])
    tf.constant(0) + 1  # TensorFlow's own start
    watch = Stopwatch(order["companions"])
    watch.start()
    for batch in dataset(order):
        labels = batch["label"].numpy()
        watch.take(len(labels), int(labels.sum()))
    watch.stop()
    watch.print()


if __name__ == "__main__":
    main()
