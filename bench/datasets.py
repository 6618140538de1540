"""The shards that are read: written once, and kept for the next run."""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec.formats.examples.example import encode_example
from streamrec.formats.shards.tfrecord import frame
from streamrec.shards.writer import TFRecordWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

__all__ = ["Dataset", "Plain", "images", "raw_images", "recsys", "tokens"]

FEWEST_SHARDS = 8
SHARD_BYTES = 134_000_000
IMAGE_BYTES = 110_000
LABELS = 1000
RAW_SHAPE = (224, 224, 3)
SEQUENCE = 512
VOCABULARY = 50_000
FLATNESS = 0.6
"""Token ids are drawn as ``rank ** (FLATNESS - 1)`` says: most take two or three bytes."""
CATEGORIES = (100, 1_000, 10_000, 100_000, 1_000_000)
"""How many values a categorical feature has; the features take turns."""
CATEGORICAL = [f"c{number:02}" for number in range(26)]
DENSE = 13

Plain = dict[str, dict[str, Any]]
"""Features by name: ``shape``, ``dtype``, and ``raw`` where a string holds an array's bytes."""
LABEL: Plain = {"label": {"shape": [], "dtype": "int64"}}


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
        features: What a record holds.
    """

    root: Path
    name: str
    shards: int
    records: int
    nbytes: int
    label_sum: int
    features: Plain = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """The name without the sizes."""
        return self.name.rpartition("-")[0]

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
        unsaid = ("root", "features")
        return {name: value for name, value in asdict(self).items() if name not in unsaid}

    def labels_of(self, records: int, shards: int) -> int:
        """The sum of the labels of so many records, if the first shards are read in turn."""
        cycle = self.records // self.shards * shards
        passes, rest = divmod(records, cycle)
        return passes * _label_sum(cycle) + _label_sum(rest)


def images(root: Path, megabytes: float) -> Dataset:
    """*Images*: 110 KB of bytes that do not compress, and an int64 label.

    Shards hold 134 MB, or an eighth of the whole where that is less.

    Args:
        root: Where datasets are kept.
        megabytes: The size of the whole, in 10^6 bytes.
    """
    features = {"image": {"shape": [], "dtype": "bytes"}, **LABEL}
    return _kept(root, "images", megabytes, _image, features)


def _image(number: int) -> dict[str, Any]:
    return {"image": Random(number).randbytes(IMAGE_BYTES), "label": number % LABELS}


def raw_images(root: Path, megabytes: float) -> Dataset:
    """*Raw images*: 224 x 224 x 3 uint8 as the bytes of an array, and an int64 label."""
    features = {"image": {"shape": list(RAW_SHAPE), "dtype": "uint8", "raw": True}, **LABEL}
    return _kept(root, "raw-images", megabytes, _raw_image, features)


def _raw_image(number: int) -> dict[str, Any]:
    size = int(np.prod(RAW_SHAPE))
    return {"image": Random(number).randbytes(size), "label": number % LABELS}


def tokens(root: Path, megabytes: float) -> Dataset:
    """*Tokens*: 512 int64, ids of a vocabulary of 50,000, and an int64 label: 1.3 KB."""
    features = {"tokens": {"shape": [SEQUENCE], "dtype": "int64"}, **LABEL}
    return _kept(root, "tokens", megabytes, _sequence, features)


def _sequence(number: int) -> dict[str, Any]:
    ranks = np.random.default_rng(number).random(SEQUENCE) ** (1 / FLATNESS)
    return {"tokens": (VOCABULARY * ranks).astype(np.int64), "label": number % LABELS}


def recsys(root: Path, megabytes: float) -> Dataset:
    """*Recsys*: 26 features of one int64, one of 13 floats, and an int64 label: 0.5 KB."""
    features: Plain = {name: {"shape": [], "dtype": "int64"} for name in CATEGORICAL}
    features["dense"] = {"shape": [DENSE], "dtype": "float32"}
    return _kept(root, "recsys", megabytes, _click, {**features, **LABEL})


def _click(number: int) -> dict[str, Any]:
    random = Random(number)
    record: dict[str, Any] = {
        name: random.randrange(CATEGORIES[place % len(CATEGORIES)])
        for place, name in enumerate(CATEGORICAL)
    }
    return {**record, "dense": [random.random() for _ in range(DENSE)], "label": number % LABELS}


def _label_sum(records: int) -> int:
    passes, rest = divmod(records, LABELS)
    return passes * sum(range(LABELS)) + sum(range(rest))


def _kept(
    root: Path,
    kind: str,
    megabytes: float,
    record: Callable[[int], Mapping[str, Any]],
    features: Plain,
) -> Dataset:
    """The dataset from an earlier run, or written now; one that was broken off is not kept."""
    size = len(frame(encode_example(record(0))))
    shards = max(FEWEST_SHARDS, round(megabytes * 1e6 / SHARD_BYTES))
    per_shard = max(1, round(megabytes * 1e6 / shards / size))
    name = f"{kind}-{shards}x{per_shard}"
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
    return Dataset(root, name, shards, records, nbytes, _label_sum(records), features)
