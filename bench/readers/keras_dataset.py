"""Reads a stream as Keras's ``fit`` does; needs Keras, and the backend of ``KERAS_BACKEND``."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import keras
import numpy as np

from bench.readers.stream import import_all, opened, ready
from bench.readers.timing import Arguments, time_way
from streamrec.adapters import keras as adapter


def dataset(arguments: Arguments) -> adapter.KerasDataset:
    """Return the adapter's dataset of all features, the label being the target."""
    inputs = [name for name in arguments["features"] if name != "label"]
    return adapter.as_dataset(opened(arguments), inputs, "label")


def pairs(arguments: Arguments) -> list[Any]:
    """Return the inputs and targets of all batches, in memory."""
    return [
        ({name: column for name, column in batch.items() if name != "label"}, batch["label"])
        for batch in ready(arguments)
    ]


def tensorflow_alone(arguments: Arguments) -> Any:
    """Read tensors from memory."""
    return import_module("bench.readers.tf_dataset").of_memory(pairs(arguments))


def torch_alone(arguments: Arguments) -> Any:
    """Take the memory of arrays as tensors, in a DataLoader without workers."""
    torch: Any = import_module("torch")
    data: Any = import_module("torch.utils.data")
    tensors = keras.tree.map_structure(torch.from_numpy, pairs(arguments))
    return data.DataLoader(tensors, batch_size=None)


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
ALONE = {"jax_alone": pairs, "tensorflow_alone": tensorflow_alone, "torch_alone": torch_alone}
"""The same, of arrays that are in memory."""

if __name__ == "__main__":
    keras.ops.convert_to_tensor(0)  # the backend's own start
    import_all()
    time_way(WAYS, count, ALONE)
