"""The shards that are read: written once, and kept for the next run."""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from streamrec.formats.example import encode_example
from streamrec.formats.tfrecord import frame
from streamrec.writer import TFRecordWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

__all__ = ["Dataset", "images"]

FEWEST_SHARDS = 8
SHARD_BYTES = 134_000_000
IMAGE_BYTES = 110_000
LABELS = 1000


@dataclass(frozen=True)
class Dataset:
    """Shards in one directory, which is a bucket for a store that serves its parent.

    Args:
        root: The directory above.
        name: Of the directory; says everything that determines its contents.
        shards: How many.
        records: In all shards.
        nbytes: Of all shards, frames included.
        label_sum: Of all records: what shows that each was read once.
    """

    root: Path
    name: str
    shards: int
    records: int
    nbytes: int
    label_sum: int

    @property
    def pattern(self) -> str:
        """The glob of the local files."""
        return f"{self.root}/{self.name}/*.tfrecord"

    @property
    def url(self) -> str:
        """The glob of the objects."""
        return f"s3://{self.name}/*.tfrecord"

    @property
    def paths(self) -> list[Path]:
        """The local files, sorted."""
        return sorted((self.root / self.name).glob("*.tfrecord"))

    def facts(self) -> dict[str, Any]:
        """Plain values for the results: where it lies is nobody's concern."""
        return {name: value for name, value in asdict(self).items() if name != "root"}


def images(root: Path, megabytes: float) -> Dataset:
    """*Images*: 110 KB of bytes that do not compress, and an int64 label.

    Shards hold 134 MB, or an eighth of the whole where that is less.

    Args:
        root: Where datasets are kept.
        megabytes: The size of the whole, in 10^6 bytes.
    """
    size = len(frame(encode_example(_image(0))))
    shards = max(FEWEST_SHARDS, round(megabytes * 1e6 / SHARD_BYTES))
    per_shard = max(1, round(megabytes * 1e6 / shards / size))
    return _kept(root, f"images-{shards}x{per_shard}", shards, per_shard, _image)


def _image(number: int) -> dict[str, Any]:
    return {"image": Random(number).randbytes(IMAGE_BYTES), "label": number % LABELS}


def _kept(
    root: Path,
    name: str,
    shards: int,
    per_shard: int,
    record: Callable[[int], Mapping[str, Any]],
) -> Dataset:
    """The dataset from an earlier run, or written now; one that was broken off is not kept."""
    directory = root / name
    if not directory.is_dir():
        unfinished = root / f".{name}.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        for shard in range(shards):
            path = unfinished / f"{name}-{shard:05}-of-{shards:05}.tfrecord"
            with TFRecordWriter(path) as writer:
                numbers = range(shard * per_shard, (shard + 1) * per_shard)
                writer.write_many(record(number) for number in numbers)
        unfinished.rename(directory)
    records = shards * per_shard
    nbytes = sum(path.stat().st_size for path in directory.glob("*.tfrecord"))
    return Dataset(root, name, shards, records, nbytes, sum(n % LABELS for n in range(records)))
