"""Reads a stream as tensors, in PyTorch's ways; needs torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from bench.readers.stream import import_all, opened, ready
from bench.readers.timing import Arguments, time_way
from streamrec.adapters import torch as adapter

if TYPE_CHECKING:
    from collections.abc import Iterable

    from streamrec import Batch


def as_loader(arguments: Arguments) -> Any:
    """Read with the adapter alone."""
    return adapter.as_loader(opened(arguments))


def in_worker(arguments: Arguments) -> Any:
    """Read with the adapter in a DataLoader's worker."""
    return DataLoader(as_loader(arguments), batch_size=None, num_workers=1)


def alone(arguments: Arguments) -> Iterable[Any]:
    """Take the memory of arrays as tensors."""
    return map(tensors, ready(arguments))


def worker_alone(arguments: Arguments) -> DataLoader[Any]:
    """Take the memory of arrays as tensors in a DataLoader's worker."""
    batches: Any = [tensors(batch) for batch in ready(arguments)]
    return DataLoader(batches, batch_size=None, num_workers=1)


def tensors(batch: Batch) -> dict[str, Any]:
    """Return columns as tensors of the same memory, strings as they are."""
    return {
        name: torch.from_numpy(column) if isinstance(column, np.ndarray) else column
        for name, column in batch.items()
    }


def count(batch: Any) -> tuple[int, int]:
    """Count the labels, an array or a tensor."""
    labels = batch["label"]
    return len(labels), int(labels.sum())


WAYS = {"stream": opened, "as_loader": as_loader, "in_worker": in_worker}
ALONE = {"alone": alone, "worker_alone": worker_alone}

if __name__ == "__main__":
    torch.nested.nested_tensor_from_jagged(torch.zeros(1), torch.tensor([0, 1]))  # imports more
    import_all()
    time_way(WAYS, count, ALONE)
