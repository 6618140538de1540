"""Reads a stream as a ``tf.data.Dataset``; needs TensorFlow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from bench.readers.stream import import_all, opened, ready
from bench.readers.timing import Arguments, time_way
from streamrec.adapters import tensorflow as adapter
from streamrec.values.columns import array_of

if TYPE_CHECKING:
    from streamrec import Batch


def as_dataset(arguments: Arguments) -> Any:
    """Read with the adapter, which reads the first batch to make the dataset."""
    return adapter.as_dataset(opened(arguments))


def alone(arguments: Arguments) -> Any:
    """Read tensors from memory."""
    return tf.data.experimental.from_list([tensors(batch) for batch in ready(arguments)])


def tensors(batch: Batch) -> dict[str, Any]:
    """Return columns as tensors, which are not made again in each loop."""
    return {name: tf.convert_to_tensor(array_of(column)) for name, column in batch.items()}


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
