"""Reads a stream as Keras's ``fit`` does; needs Keras, and the backend of ``KERAS_BACKEND``."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from bench.readers.stream import import_all, opened
from bench.readers.timing import Arguments, time_way
from streamrec.adapters import keras as adapter


def dataset(arguments: Arguments) -> adapter.KerasDataset:
    """Return the adapter's dataset of all features, the label being the target."""
    inputs = [name for name in arguments["features"] if name != "label"]
    return adapter.as_dataset(opened(arguments), inputs, "label")


def count(batch: Any) -> tuple[int, int]:
    """Count the targets with NumPy, which sees them without a copy."""
    targets = np.asarray(batch[1])
    return len(targets), int(targets.sum())


WAYS = {
    "jax": lambda arguments: dataset(arguments).get_jax_iterator(),
    "tensorflow": lambda arguments: dataset(arguments).get_tf_dataset(),
    "torch": lambda arguments: dataset(arguments).get_torch_dataloader(),
}
"""What ``fit`` asks for, by backend."""

if __name__ == "__main__":
    keras.ops.convert_to_tensor(0)  # the backend's own start
    import_all()
    time_way(WAYS, count)
