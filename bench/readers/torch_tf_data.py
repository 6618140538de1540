"""Reads with tf.data in a DataLoader; needs torch and TensorFlow, and not streamrec."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf
from torch.utils.data import DataLoader, IterableDataset

from bench.readers import tf_data
from bench.readers.timing import Arguments, time_way

if TYPE_CHECKING:
    from collections.abc import Iterator


class Records(IterableDataset[Any]):
    """tf.data's batches as NumPy arrays, of which a DataLoader makes tensors."""

    def __init__(self, arguments: Arguments) -> None:
        self._dataset = tf_data.dataset(arguments)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._dataset.as_numpy_iterator())


def loader(arguments: Arguments) -> Any:
    """Return the DataLoader, without workers: tf.data has threads of its own."""
    return DataLoader(Records(arguments), batch_size=None)


def count(batch: Any) -> tuple[int, int]:
    """Count the labels, a tensor."""
    return len(batch["label"]), int(batch["label"].sum())


WAYS = {"torch_tf_data": loader}

if __name__ == "__main__":
    tf.constant(0) + 1  # TensorFlow's own start
    time_way(WAYS, count)
