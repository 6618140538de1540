"""Reads local files, and parses records, with TensorFlow; needs it, and not streamrec."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import tensorflow as tf

from bench.stopwatch import Arguments, Done, Stopwatch, main, repeat

READ_BYTES = 8 << 20
"""Default size of a reader's buffer; TensorFlow's default of 256 KiB is slower."""


def parser(features: dict[str, Any]) -> Callable[[Any], dict[str, Any]]:
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


def batches(arguments: Arguments) -> Any:
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
    "batched": batched,
    "parse_example": parse_example,
}


def read(arguments: Arguments) -> dict[str, Any]:
    """Read the dataset; only labels become NumPy's, since that copies them."""
    tf.constant(0) + 1  # TensorFlow's own start
    watch = Stopwatch(arguments["companions"])
    watch.start()
    for batch in dataset(arguments):
        labels = batch["label"].numpy()
        watch.take(len(labels), int(labels.sum()))
    watch.stop()
    return watch.report()


def decode(arguments: Arguments) -> dict[str, Any]:
    """Repeat a part of the work alone."""
    return repeat(partial(WAYS[arguments["way"]], arguments), arguments["seconds"])


if __name__ == "__main__":
    main({"dataset": read, "decoding": decode})
