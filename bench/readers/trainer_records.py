"""Reads single records of a stream, also as ``transformers.Trainer`` takes them; needs torch."""

from __future__ import annotations

from typing import Any

import torch

from bench.readers.stream import import_all, opened
from bench.readers.timing import Arguments, time_way
from streamrec.adapters import huggingface


def as_dataset(arguments: Arguments) -> Any:
    """Read with the adapter for Hugging Face."""
    return huggingface.as_dataset(opened(arguments))


def count(record: Any) -> tuple[int, int]:
    """Count the label, a number or a tensor of one."""
    return 1, int(record["label"])


WAYS = {"stream": opened, "as_dataset": as_dataset}

if __name__ == "__main__":
    torch.zeros(1)
    import_all()
    time_way(WAYS, count)
