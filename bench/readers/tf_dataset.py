"""Reads a stream as a ``tf.data.Dataset``; needs TensorFlow."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from bench.readers.stream import import_all, opened, ready
from bench.readers.timing import Arguments, time_way
from streamrec.adapters import tensorflow as adapter
from streamrec.values.columns import array_of


def as_dataset(arguments: Arguments) -> Any:
    """Read with the adapter, which reads the first batch to make the dataset."""
    return adapter.as_dataset(opened(arguments))


def alone(arguments: Arguments) -> Any:
    """Read tensors from memory."""
    return of_memory(
        [{name: array_of(column) for name, column in batch.items()} for batch in ready(arguments)]
    )


def of_memory(elements: list[Any]) -> Any:
    """Return a dataset of nested arrays that are tensors already before it is read."""
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False  # copies every tensor
    options.autotune.enabled = False
    tensors = tf.nest.map_structure(tf.convert_to_tensor, elements)
    return tf.data.experimental.from_list(tensors).with_options(options)


def count(batch: Any) -> tuple[int, int]:
    """Count the labels with NumPy, which sees them without a copy."""
    labels = np.asarray(batch["label"])
    return len(labels), int(labels.sum())


WAYS = {"stream": opened, "as_dataset": as_dataset}
ALONE = {"alone": alone}

if __name__ == "__main__":
    tf.constant(0) + 1  # TensorFlow's own start
    import_all()
    time_way(WAYS, count, ALONE)
