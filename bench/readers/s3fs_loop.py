"""A file of s3fs and a loop over its frames: what most people write first. No shuffling."""

from __future__ import annotations

import json
import struct
import sys
from typing import TYPE_CHECKING, Any

import crc32c
import s3fs

from bench.stopwatch import Stopwatch
from bench.warming import warm_memory
from streamrec.formats.examples.example import Example

if TYPE_CHECKING:
    from collections.abc import Iterator

HEADER = struct.Struct("<QI")
FOOTER = struct.Struct("<I")
MASK_DELTA = 0xA282EAD8


def records(filesystem: s3fs.S3FileSystem, name: str) -> Iterator[bytes]:
    """The records of one shard, checked."""
    with filesystem.open(name, "rb") as file:
        while header := file.read(HEADER.size):
            length, length_crc = HEADER.unpack(header)
            payload: bytes = file.read(length)
            (data_crc,) = FOOTER.unpack(file.read(FOOTER.size))
            if masked(header[:8]) != length_crc or masked(payload) != data_crc:
                raise ValueError(f"a corrupt record in {name}")
            yield payload


def masked(data: bytes) -> int:
    """The CRC as TFRecord stores it."""
    crc = crc32c.crc32c(data)
    return ((crc >> 15 | crc << 17) + MASK_DELTA) & 0xFFFFFFFF


def rows(order: dict[str, Any]) -> Iterator[tuple[bytes, int]]:
    """Image and label of each record, with protobuf's messages."""
    filesystem = s3fs.S3FileSystem(**order["storage_options"])
    for name in sorted(filesystem.ls(order["bucket"]))[: order["shards"]]:
        for payload in records(filesystem, name):
            features = Example.FromString(payload).features.feature
            yield features["image"].bytes_list.value[0], features["label"].int64_list.value[0]


def read(order: dict[str, Any], watch: Stopwatch) -> None:
    """Batches of lists."""
    pictures: list[bytes] = []
    labels: list[int] = []
    for image, label in rows(order):
        pictures.append(image)
        labels.append(label)
        if len(labels) == order["batch_size"]:
            watch.take(len(labels), sum(labels))
            pictures, labels = [], []
    if labels:
        watch.take(len(labels), sum(labels))


def main() -> None:
    """Carry out the order."""
    order: dict[str, Any] = json.loads(sys.argv[1])
    watch = Stopwatch(order["companions"])
    warm_memory()
    watch.start()
    read(order, watch)
    watch.stop()
    watch.print()


if __name__ == "__main__":
    main()
