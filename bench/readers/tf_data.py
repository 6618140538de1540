"""Reads local files with tf.data, parsed after batching; needs TensorFlow, and not streamrec."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from bench.stopwatch import Stopwatch
from bench.warming import warm_memory

READ_BYTES = 8 << 20
"""Default size of a reader's buffer; TensorFlow's default of 256 KiB is slower."""
Parse = Callable[[Any], dict[str, Any]]


def parser(features: dict[str, Any]) -> Parse:
    """Return a parser that decodes strings, too, where they hold the bytes of arrays.

    Args:
        features: Features in the plain form of :mod:`bench.datasets`.
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


def batches(arguments: dict[str, Any]) -> Any:
    """Interleave the files, in batches of serialized records.

    With ``within_files`` the files are batched before they are interleaved: a batch is of one file,
    and tf.data handles batches instead of records.
    """
    within = arguments.get("within_files", False)

    def read(path: Any) -> Any:
        size = arguments.get("read_bytes", READ_BYTES)
        records = tf.data.TFRecordDataset(path, buffer_size=size)
        return records.batch(arguments["batch_size"]) if within else records

    interleaved = (
        tf.data.Dataset.from_tensor_slices(arguments["paths"])
        .repeat(arguments.get("epochs", 1))
        .interleave(
            read,
            cycle_length=len(arguments["paths"]),
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=arguments["deterministic"],
        )
    )
    return interleaved if within else interleaved.batch(arguments["batch_size"])


def dataset(arguments: dict[str, Any]) -> Any:
    """Parse the batches with ``parse_example``; all settings are AUTOTUNE."""
    return (
        batches(arguments)
        .map(
            parser(arguments["features"]),
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=arguments["deterministic"],
        )
        .prefetch(tf.data.AUTOTUNE)
    )


def main() -> None:
    """Read as the arguments say; only labels become NumPy's, since that copies them."""
    arguments = json.loads(sys.argv[1])
    tf.constant(0) + 1  # TensorFlow's own start
    watch = Stopwatch(arguments["companions"])
    warm_memory()
    watch.start()
    for batch in dataset(arguments):
        labels = batch["label"].numpy()
        watch.take(len(labels), int(labels.sum()))
    watch.stop()
    watch.print()


if __name__ == "__main__":
    main()
