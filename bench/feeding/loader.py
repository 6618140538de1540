"""A process with a torch DataLoader, whose workers read shards with streamrec.

torch reads no TFRecords. Each worker reads its part of them in a thread of its own, checked and
parsed by streamrec's kernel, and torch brings the tensors over in shared memory.
"""

from __future__ import annotations

import itertools
import multiprocessing
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from bench.feeding import KEPT
from bench.feeding.clients import Kind, answer_commands, arrays, open_shards


class Shards(IterableDataset[dict[str, Any]]):
    """The batches of a worker."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        self._arguments = arguments

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = get_worker_info()
        assert worker is not None
        part = {"rank": worker.id, "world_size": worker.num_workers}
        found: Iterator[Any] = map(arrays, open_shards(self._arguments, engine="thread", **part))
        if self._arguments["repeats"]:
            found = itertools.cycle(list(itertools.islice(found, KEPT)))
        return map(tensors, found)


def tensors(batch: dict[str, Any]) -> dict[str, Any]:
    """Return arrays as new tensors of the same memory; torch copies them to memory that it shares.

    It does so once for each tensor, so a tensor that were repeated would cost nothing.
    """
    return {name: torch.from_numpy(array) for name, array in batch.items()}


def connect(arguments: dict[str, Any]) -> Iterator[Any]:
    """Start a DataLoader."""
    loader = DataLoader(
        Shards(arguments),
        batch_size=None,
        num_workers=arguments["workers"],
        multiprocessing_context="forkserver",
    )
    yield from loader


def count(batch: dict[str, Any]) -> int:
    return len(batch["label"]) if "label" in batch else len(batch["records.offsets"]) - 1


def nbytes(batch: dict[str, Any]) -> int:
    return sum(tensor.nbytes for tensor in batch.values())


if __name__ == "__main__":
    # The threads of earlier clients make forking this process unsafe, and a new one imports anew.
    multiprocessing.set_forkserver_preload(["torch", "streamrec", "bench.feeding.loader"])
    answer_commands(Kind(connect, count, nbytes))
