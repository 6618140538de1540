"""Reads MDS shards with MosaicML Streaming, the cache cold; needs it and torch, and not streamrec.

With ``"write"`` in its arguments it makes the shards: there is no other writer.
"""

from __future__ import annotations

import json
import sys
import tempfile
from random import Random
from typing import Any

import torch
from streaming import MDSWriter, StreamingDataset
from streaming.base.util import clean_stale_shared_memory

from bench.stopwatch import Stopwatch
from bench.warming import warm_memory

Sample = dict[str, Any]


def write(directory: str, records: int, image_bytes: int, labels: int) -> None:
    """Write the images of :func:`bench.datasets.images`, in shards of the default size."""
    with MDSWriter(out=directory, columns={"image": "bytes", "label": "int"}) as writer:
        for number in range(records):
            image = Random(number).randbytes(image_bytes)
            writer.write({"image": image, "label": number % labels})


def columns(samples: list[Sample]) -> tuple[list[bytes], torch.Tensor]:
    """Return a batch of samples."""
    labels = torch.tensor([sample["label"] for sample in samples])
    return [sample["image"] for sample in samples], labels


def read(arguments: dict[str, Any], directory: str, watch: Stopwatch) -> None:
    """Read through an empty directory, which keeps the downloaded shards."""
    warm_memory()
    watch.start()
    size, workers = arguments["batch_size"], arguments["workers"]
    dataset = StreamingDataset(
        remote=arguments["remote"], local=directory, shuffle=False, batch_size=size
    )
    batches = torch.utils.data.DataLoader(
        dataset,
        batch_size=size,
        collate_fn=columns,
        num_workers=workers,
        persistent_workers=workers > 0,
    )
    for _, labels in batches:
        watch.take(len(labels), int(labels.sum()))
    watch.stop()


def main() -> None:
    """Read or write as the arguments say, and print the report of the reading."""
    arguments = json.loads(sys.argv[1])
    if "write" in arguments:
        write(**arguments["write"])
        return
    clean_stale_shared_memory()  # a run that was broken off leaves some
    watch = Stopwatch(arguments["companions"])
    with tempfile.TemporaryDirectory() as directory:
        read(arguments, directory, watch)
        watch.print()


if __name__ == "__main__":
    main()
