"""Reads MDS shards with MosaicML Streaming, the cache cold; needs it and torch, and not streamrec.

With ``"write"`` in its order it makes the shards: its own writer is the only one there is.
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
    """The images of :func:`bench.datasets.images`, in shards of the writer's default size."""
    with MDSWriter(out=directory, columns={"image": "bytes", "label": "int"}) as writer:
        for number in range(records):
            image = Random(number).randbytes(image_bytes)
            writer.write({"image": image, "label": number % labels})


def columns(samples: list[Sample]) -> tuple[list[bytes], torch.Tensor]:
    """A batch."""
    labels = torch.tensor([sample["label"] for sample in samples])
    return [sample["image"] for sample in samples], labels


def read(order: dict[str, Any], directory: str, watch: Stopwatch) -> None:
    """Through an empty directory, where it keeps what it downloads."""
    warm_memory()
    watch.start()
    size, workers = order["batch_size"], order["workers"]
    dataset = StreamingDataset(
        remote=order["remote"], local=directory, shuffle=False, batch_size=size
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
    """Carry out the order."""
    order = json.loads(sys.argv[1])
    if "write" in order:
        write(**order["write"])
        return
    clean_stale_shared_memory()  # a run that was broken off leaves some
    watch = Stopwatch(order["companions"])
    with tempfile.TemporaryDirectory() as directory:
        read(order, directory, watch)
        watch.print()


if __name__ == "__main__":
    main()
