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
    """Make the label a number; the image stays bytes, as in all readers."""
    image, label = sample
    return image, int(label)


def columns(samples: list[tuple[bytes, int]]) -> tuple[list[bytes], torch.Tensor]:
    """Return a batch of samples."""
    images, labels = zip(*samples, strict=True)
    return list(images), torch.tensor(labels)


def loader(arguments: dict[str, Any]) -> torch.utils.data.DataLoader[Any]:
    """Return a loader whose workers make batches, each of its own shards."""
    dataset = (
        webdataset.WebDataset(arguments["urls"], shardshuffle=False, empty_check=False)
        .to_tuple("img", "cls")
        .map(parsed)
        .batched(arguments["batch_size"], collation_fn=columns)
    )
    workers = arguments["workers"]
    return torch.utils.data.DataLoader(
        dataset, batch_size=None, num_workers=workers, persistent_workers=workers > 0
    )


def main() -> None:
    """Read as the arguments say, and print the report."""
    arguments = json.loads(sys.argv[1])
    watch = Stopwatch(arguments["companions"])
    warm_memory()
    watch.start()
    batches = loader(arguments)  # kept, so that its workers still run when they are measured
    for _, labels in batches:
        watch.take(len(labels), int(labels.sum()))
    watch.stop()
    watch.print()


if __name__ == "__main__":
    main()
