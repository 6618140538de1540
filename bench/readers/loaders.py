"""Reads images with other loaders: WebDataset, MosaicML Streaming, and a loop over s3fs.

Each needs its own packages; but for s3fs none needs streamrec. The first two have torch's loader.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from importlib import import_module
from random import Random
from typing import Any

from bench.stopwatch import Arguments, Stopwatch, main


def read_web_dataset(arguments: Arguments) -> dict[str, Any]:
    """Read tar shards with WebDataset over curl; workers make batches, each of its own shards."""
    torch, webdataset = import_module("torch"), import_module("webdataset")

    def parse(sample: tuple[bytes, bytes]) -> tuple[bytes, int]:
        """Make the label a number; the image stays bytes, as in all readers."""
        return sample[0], int(sample[1])

    def collate(samples: list[tuple[bytes, int]]) -> tuple[list[bytes], Any]:
        images, labels = zip(*samples, strict=True)
        return list(images), torch.tensor(labels)

    watch, workers = Stopwatch(arguments["companions"]), arguments["workers"]
    watch.start()
    dataset = webdataset.WebDataset(arguments["urls"], shardshuffle=False, empty_check=False)
    dataset = dataset.to_tuple("img", "cls").map(parse)
    dataset = dataset.batched(arguments["batch_size"], collation_fn=collate)
    # The loader is kept, so that its workers still run when they are measured.
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=None, num_workers=workers, persistent_workers=workers > 0
    )
    for _, labels in loader:
        watch.take(len(labels), int(labels.sum()))
    watch.stop()
    return watch.report()


def write_mosaic(arguments: Arguments) -> dict[str, Any]:
    """Write the images of :func:`bench.datasets.images` as MDS: there is no other writer."""
    columns = {"image": "bytes", "label": "int"}
    streaming = import_module("streaming")
    with streaming.MDSWriter(out=arguments["directory"], columns=columns) as writer:
        for number in range(arguments["records"]):
            image = Random(number).randbytes(arguments["image_bytes"])
            writer.write({"image": image, "label": number % arguments["labels"]})
    return {}


def read_mosaic(arguments: Arguments) -> dict[str, Any]:
    """Read MDS shards through an empty directory, which keeps the downloaded shards."""
    torch, streaming = import_module("torch"), import_module("streaming")
    # A run that was broken off leaves some.
    import_module("streaming.base.util").clean_stale_shared_memory()

    def collate(samples: list[dict[str, Any]]) -> tuple[list[bytes], Any]:
        labels = torch.tensor([sample["label"] for sample in samples])
        return [sample["image"] for sample in samples], labels

    watch, size = Stopwatch(arguments["companions"]), arguments["batch_size"]
    workers = arguments["workers"]
    with tempfile.TemporaryDirectory() as directory:
        watch.start()
        dataset = streaming.StreamingDataset(
            remote=arguments["remote"], local=directory, shuffle=False, batch_size=size
        )
        loader = torch.utils.data.DataLoader(
            dataset,
            batch_size=size,
            collate_fn=collate,
            num_workers=workers,
            persistent_workers=workers > 0,
        )
        for _, labels in loader:
            watch.take(len(labels), int(labels.sum()))
        watch.stop()
        return watch.report()


def read_with_s3fs(arguments: Arguments) -> dict[str, Any]:
    """Read files of s3fs in a loop over their frames, as most people write first, unshuffled.

    Batches are lists.
    """
    rows = s3fs_rows(arguments)
    watch, size = Stopwatch(arguments["companions"]), arguments["batch_size"]
    import_module("s3fs")
    watch.start()
    images: list[bytes] = []
    labels: list[int] = []
    for image, label in rows:
        images.append(image)
        labels.append(label)
        if len(labels) == size:
            watch.take(len(labels), sum(labels))
            images, labels = [], []
    if labels:
        watch.take(len(labels), sum(labels))
    watch.stop()
    return watch.report()


def s3fs_rows(arguments: Arguments) -> Iterator[tuple[bytes, int]]:
    """Yield the image and the label of each record, parsed with protobuf's messages."""
    from bench.readers.decoding import FOOTER, HEADER, masked_crc32c
    from streamrec import Example

    def records(file: Any) -> Iterator[bytes]:
        while header := file.read(HEADER.size):
            length, length_crc = HEADER.unpack(header)
            payload: bytes = file.read(length)
            (data_crc,) = FOOTER.unpack(file.read(FOOTER.size))
            if (masked_crc32c(header[:8]), masked_crc32c(payload)) != (length_crc, data_crc):
                raise ValueError("a corrupt record")
            yield payload

    def rows() -> Iterator[tuple[bytes, int]]:
        filesystem = import_module("s3fs").S3FileSystem(**arguments["storage_options"])
        for name in sorted(filesystem.ls(arguments["bucket"]))[: arguments["shards"]]:
            with filesystem.open(name, "rb") as file:
                for payload in records(file):
                    found = Example.FromString(payload).features.feature
                    yield found["image"].bytes_list.value[0], found["label"].int64_list.value[0]

    return rows()


if __name__ == "__main__":
    main(
        {
            "web_dataset": read_web_dataset,
            "mosaic": read_mosaic,
            "write_mosaic": write_mosaic,
            "s3fs": read_with_s3fs,
        }
    )
