"""Reads local files with tf.data, parsed after batching; needs TensorFlow, and not streamrec."""

from __future__ import annotations

import json
import sys
from typing import Any

import tensorflow as tf

from bench.stopwatch import Stopwatch

READ_BYTES = 8 << 20
"""A reader's buffer; TensorFlow's default of 256 KiB is slower."""


def dataset(order: dict[str, Any]) -> Any:
    """Interleaved files, batches, ``parse_example``, everything AUTOTUNE."""
    features = {
        "image": tf.io.FixedLenFeature((), tf.string),
        "label": tf.io.FixedLenFeature((), tf.int64),
    }
    records = tf.data.Dataset.from_tensor_slices(order["paths"]).interleave(
        lambda path: tf.data.TFRecordDataset(path, buffer_size=READ_BYTES),
        cycle_length=len(order["paths"]),
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=order["deterministic"],
    )
    return (
        records.batch(order["batch_size"])
        .map(
            lambda serialized: tf.io.parse_example(serialized, features),
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=order["deterministic"],
        )
        .prefetch(tf.data.AUTOTUNE)
    )


def main() -> None:
    """Carry out the order. The images stay tensors: to NumPy they would be copied once more."""
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
