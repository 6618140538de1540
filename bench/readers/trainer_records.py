"""Reads single records of a stream, also as ``transformers.Trainer`` takes them; needs torch.

The Trainer collates as many records as a batch has, and so does the reader of the adapter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from bench.readers.stream import import_all, opened
from bench.readers.timing import Arguments, time_way
from streamrec.adapters import huggingface

if TYPE_CHECKING:
    from collections.abc import Iterator

TOGETHER = 64


def as_dataset(arguments: Arguments) -> Iterator[Any]:
    """Read with the adapter for Hugging Face, and collate with its own collator."""
    records = []
    for record in huggingface.as_dataset(opened(arguments)):
        records.append(record)
        if len(records) == TOGETHER:
            yield huggingface.collate(records)
            records = []
    if records:
        yield huggingface.collate(records)


def count(item: Any) -> tuple[int, int]:
    """Count the labels of a batch, or the one of a record."""
    label = item["label"]
    return (len(label), int(label.sum())) if torch.is_tensor(label) else (1, int(label))


WAYS = {"stream": opened, "as_dataset": as_dataset}

if __name__ == "__main__":
    torch.zeros(1)
    import_all()
    time_way(WAYS, count)
