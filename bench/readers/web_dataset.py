"""Reads tar shards with WebDataset over curl; needs webdataset and torch, and not streamrec."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import webdataset

from bench.stopwatch import Stopwatch
from bench.warming import warm_memory


def parsed(sample: tuple[bytes, bytes]) -> tuple[bytes, int]:
    """The image stays bytes, as everywhere in this benchmark; the label becomes a number."""
    image, label = sample
    return image, int(label)


def columns(samples: list[tuple[bytes, int]]) -> tuple[list[bytes], torch.Tensor]:
    """A batch."""
    images, labels = zip(*samples, strict=True)
    return list(images), torch.tensor(labels)


def loader(order: dict[str, Any]) -> torch.utils.data.DataLoader[Any]:
    """Batches, made by the workers; each worker reads shards of its own."""
    dataset = (
        webdataset.WebDataset(order["urls"], shardshuffle=False, empty_check=False)
        .to_tuple("img", "cls")
        .map(parsed)
        .batched(order["batch_size"], collation_fn=columns)
    )
    workers = order["workers"]
    return torch.utils.data.DataLoader(
        dataset, batch_size=None, num_workers=workers, persistent_workers=workers > 0
    )


def main() -> None:
    """Carry out the order."""
    order = json.loads(sys.argv[1])
    watch = Stopwatch(order["companions"])
    warm_memory()
    watch.start()
    batches = loader(order)  # kept, so that its workers still run when they are measured
    for _, labels in batches:
        watch.take(len(labels), int(labels.sum()))
    watch.stop()
    watch.print()


if __name__ == "__main__":
    main()
