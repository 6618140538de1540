"""Reads a stream as tensors, in PyTorch's ways; needs torch."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader

from bench.readers.stream import import_all, opened
from bench.readers.timing import Arguments, time_way
from streamrec.adapters import torch as adapter


def as_loader(arguments: Arguments) -> Any:
    """Read with the adapter alone."""
    return adapter.as_loader(opened(arguments))


def in_worker(arguments: Arguments) -> Any:
    """Read with the adapter in a DataLoader's worker."""
    return DataLoader(as_loader(arguments), batch_size=None, num_workers=1)


def count(batch: Any) -> tuple[int, int]:
    """Count the labels, an array or a tensor."""
    labels = batch["label"]
    return len(labels), int(labels.sum())


WAYS = {"stream": opened, "as_loader": as_loader, "in_worker": in_worker}

if __name__ == "__main__":
    torch.nested.nested_tensor_from_jagged(torch.zeros(1), torch.tensor([0, 1]))  # imports more
    import_all()
    time_way(WAYS, count)
