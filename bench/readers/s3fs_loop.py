"""Reads files of s3fs in a loop over their frames, as most people write first, unshuffled."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import s3fs

from bench.readers.frames import FOOTER, HEADER, masked
from bench.stopwatch import Stopwatch
from bench.warming import warm_memory
from streamrec.formats.examples.example import Example

if TYPE_CHECKING:
    from collections.abc import Iterator


def records(filesystem: s3fs.S3FileSystem, name: str) -> Iterator[bytes]:
    """Yield the records of one shard, checked."""
    with filesystem.open(name, "rb") as file:
        while header := file.read(HEADER.size):
            length, length_crc = HEADER.unpack(header)
            payload: bytes = file.read(length)
            (data_crc,) = FOOTER.unpack(file.read(FOOTER.size))
            if masked(header[:8]) != length_crc or masked(payload) != data_crc:
                raise ValueError(f"a corrupt record in {name}")
            yield payload


def rows(arguments: dict[str, Any]) -> Iterator[tuple[bytes, int]]:
    """Yield the image and the label of each record, parsed with protobuf's messages."""
    filesystem = s3fs.S3FileSystem(**arguments["storage_options"])
    for name in sorted(filesystem.ls(arguments["bucket"]))[: arguments["shards"]]:
        for payload in records(filesystem, name):
            features = Example.FromString(payload).features.feature
            yield features["image"].bytes_list.value[0], features["label"].int64_list.value[0]


def read(arguments: dict[str, Any], watch: Stopwatch) -> None:
    """Read batches, which are lists."""
    images: list[bytes] = []
    labels: list[int] = []
    for image, label in rows(arguments):
        images.append(image)
        labels.append(label)
        if len(labels) == arguments["batch_size"]:
            watch.take(len(labels), sum(labels))
            images, labels = [], []
    if labels:
        watch.take(len(labels), sum(labels))


def main() -> None:
    """Read as the arguments say, and print the report."""
    arguments: dict[str, Any] = json.loads(sys.argv[1])
    watch = Stopwatch(arguments["companions"])
    warm_memory()
    watch.start()
    read(arguments, watch)
    watch.stop()
    watch.print()


if __name__ == "__main__":
    main()
