"""Reads a stream as a ``tf.data.Dataset``; needs TensorFlow."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from bench.readers.stream import import_all, opened
from bench.readers.timing import Arguments, time_way
from streamrec.adapters import tensorflow as adapter


def as_dataset(arguments: Arguments) -> Any:
    """Read with the adapter, which reads the first batch to make the dataset."""
    return adapter.as_dataset(opened(arguments))


def count(batch: Any) -> tuple[int, int]:
    """Count the labels with NumPy, which sees them without a copy."""
    labels = np.asarray(batch["label"])
    return len(labels), int(labels.sum())


WAYS = {"stream": opened, "as_dataset": as_dataset}

if __name__ == "__main__":
    tf.constant(0) + 1  # TensorFlow's own start
    import_all()
    time_way(WAYS, count)
