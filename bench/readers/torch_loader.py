"""Reads a stream as tensors, or tf.data's batches, in PyTorch's ways; needs torch."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from bench.stopwatch import Stopwatch
from bench.warming import warm_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


class Records(IterableDataset[Any]):
    """tf.data's batches as NumPy arrays, of which a DataLoader makes tensors."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        from bench.readers import tf_data

        self._dataset = tf_data.dataset(dict(arguments))

    def __iter__(self) -> Iterator[Any]:
        return iter(self._dataset.as_numpy_iterator())


def stream(arguments: Mapping[str, Any]) -> Any:
    """Read the stream itself, in a process that has torch as well."""
    from bench.readers.stream import import_all, opened

    import_all()
    return opened(dict(arguments))


def as_loader(arguments: Mapping[str, Any]) -> Any:
    """Read with the adapter alone."""
    from streamrec.adapters import torch as adapter

    return adapter.as_loader(stream(arguments))


def in_worker(arguments: Mapping[str, Any]) -> Any:
    """Read with the adapter in a DataLoader's worker."""
    return DataLoader(as_loader(arguments), batch_size=None, num_workers=1)


def tf_data(arguments: Mapping[str, Any]) -> Any:
    """Read with tf.data in a DataLoader."""
    return DataLoader(Records(arguments), batch_size=None)


WAYS: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "stream": stream,
    "as_loader": as_loader,
    "in_worker": in_worker,
    "tf_data": tf_data,
}


def main() -> None:
    """Read as the arguments say, and print the report."""
    arguments = json.loads(sys.argv[1])
    torch.nested.nested_tensor_from_jagged(torch.zeros(1), torch.tensor([0, 1]))  # imports more
    loader = WAYS[arguments["way"]](arguments)
    watch = Stopwatch(arguments["companions"])
    warm_memory()
    watch.start()
    for batch in loader:
        labels = batch["label"]
        watch.take(len(labels), int(labels.sum()))
    watch.stop()
    watch.print()


if __name__ == "__main__":
    main()
