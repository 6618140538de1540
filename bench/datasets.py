"""The datasets that are read: written once, and kept for the next run."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from bench.cases import RATE, Failure, say
from streamrec.datasets.writer import TFRecordWriter
from streamrec.formats.examples.example import encode_example
from streamrec.formats.shards.tfrecord import frame

FEWEST_SHARDS = 8
SHARD_BYTES = 134_000_000
IMAGE_BYTES = 110_000
IMAGE_NAME = "images-{:05}.tfrecord"
LABELS = 1000
RAW_SHAPE = (224, 224, 3)
SEQUENCE = 512
VOCABULARY = 50_000
FLATNESS = 0.6
"""Token ids have the density ``rank ** (FLATNESS - 1)``: most take two or three bytes."""
CATEGORIES = (100, 1_000, 10_000, 100_000, 1_000_000)
"""Numbers of values of the categorical features, which take turns."""
CATEGORICAL = [f"c{number:02}" for number in range(26)]
DENSE = 13

Plain = dict[str, dict[str, Any]]
"""Features by name: ``shape``, ``dtype``, and ``raw`` where a string holds an array's bytes."""
LABEL: Plain = {"label": {"shape": [], "dtype": "int64"}}


@dataclass(frozen=True)
class Dataset:
    """Shards in one directory, which is a bucket for a store that serves its parent.

    Args:
        root: Directory that holds the dataset's directory.
        name: Name of the directory, which says everything that determines its contents.
        nbytes: Size of all shards, frames included.
        label_sum: Sum of all labels: it shows that each record was read once.
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
        """Return the name without the sizes."""
        return self.name.rpartition("-")[0]

    @property
    def pattern(self) -> str:
        """Return the glob of the local files."""
        return f"{self.root}/{self.name}/*.tfrecord"

    @property
    def url(self) -> str:
        """Return the glob of the objects."""
        return f"s3://{self.name}/*.tfrecord"

    @property
    def paths(self) -> list[Path]:
        """Return the local files, sorted."""
        return sorted((self.root / self.name).glob("*.tfrecord"))

    def facts(self) -> dict[str, Any]:
        """Return plain values for the results, without the directory of this machine."""
        left_out = ("root", "features")
        return {name: value for name, value in asdict(self).items() if name not in left_out}

    def labels_of(self, records: int, shards: int) -> int:
        """Return the sum of the first labels, if the first shards are read again and again."""
        cycle = self.records // self.shards * shards
        passes, rest = divmod(records, cycle)
        return passes * _label_sum(cycle) + _label_sum(rest)


@dataclass(frozen=True)
class Images:
    """Shards of images: those of a dataset, served again and again under other names.

    Args:
        template: Dataset whose shards are served.
        passes: Number of times that each of them is served.
    """

    template: Dataset
    passes: int

    @property
    def recipe(self) -> dict[str, Any]:
        templates = [str(path) for path in self.template.paths]
        objects = self.template.shards * self.passes
        return {"templates": templates, "name": IMAGE_NAME, "objects": objects}

    def part(self, passes: int) -> Dataset:
        """Return the facts of the first passes as those of a dataset."""
        one = self.template
        return replace(
            one,
            shards=one.shards * passes,
            records=one.records * passes,
            nbytes=one.nbytes * passes,
            label_sum=one.label_sum * passes,
        )

    def names(self, passes: int) -> list[tuple[str, int]]:
        sizes = [path.stat().st_size for path in self.template.paths] * passes
        return [(IMAGE_NAME.format(number), size) for number, size in enumerate(sizes)]

    def braces(self, passes: int) -> str:
        """Return the names as one range in braces."""
        last = self.template.shards * passes - 1
        return f"images-{{00000..{last:05}}}.tfrecord"

    def linked(self, root: Path) -> Path:
        """Return a directory of links by all names, for servers that serve files."""
        directory = root / f"{self.template.name}-x{self.passes}"
        if not directory.is_dir():
            unfinished = root / f".{directory.name}.unfinished"
            unfinished.mkdir(parents=True, exist_ok=True)
            paths = self.template.paths * self.passes
            for (name, _), path in zip(self.names(self.passes), paths, strict=True):
                link = unfinished / name
                link.unlink(missing_ok=True)
                link.symlink_to(path)
            unfinished.rename(directory)
        return directory


def images(root: Path, megabytes: float) -> Dataset:
    """Make *images*: records of 110 KB that do not compress, and an int64 label.

    Shards hold 134 MB, or an eighth of the whole where that is less.

    Args:
        root: Directory that keeps the datasets.
        megabytes: Size of the dataset in 10^6 bytes.
    """
    features = {"image": {"shape": [], "dtype": "bytes"}, **LABEL}
    return _keep(root, "images", megabytes, _image, features)


def _image(number: int) -> dict[str, Any]:
    return {"image": Random(number).randbytes(IMAGE_BYTES), "label": number % LABELS}


def raw_images(root: Path, megabytes: float) -> Dataset:
    """Make *raw images*: 224 x 224 x 3 uint8 as the bytes of an array, and an int64 label."""
    features = {"image": {"shape": list(RAW_SHAPE), "dtype": "uint8", "raw": True}, **LABEL}
    return _keep(root, "raw-images", megabytes, _raw_image, features)


def _raw_image(number: int) -> dict[str, Any]:
    size = int(np.prod(RAW_SHAPE))
    return {"image": Random(number).randbytes(size), "label": number % LABELS}


def tokens(root: Path, megabytes: float) -> Dataset:
    """Make *tokens*: 512 int64, ids of a vocabulary of 50,000, and an int64 label: 1.3 KB."""
    features = {"tokens": {"shape": [SEQUENCE], "dtype": "int64"}, **LABEL}
    return _keep(root, "tokens", megabytes, _sequence, features)


def _sequence(number: int) -> dict[str, Any]:
    ranks = np.random.default_rng(number).random(SEQUENCE) ** (1 / FLATNESS)
    return {"tokens": (VOCABULARY * ranks).astype(np.int64), "label": number % LABELS}


def recsys(root: Path, megabytes: float) -> Dataset:
    """Make *recsys*: 26 features of one int64, one of 13 floats, and an int64 label: 0.5 KB."""
    features: Plain = {name: {"shape": [], "dtype": "int64"} for name in CATEGORICAL}
    features["dense"] = {"shape": [DENSE], "dtype": "float32"}
    return _keep(root, "recsys", megabytes, _click, {**features, **LABEL})


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


def _keep(
    root: Path,
    kind: str,
    megabytes: float,
    record: Callable[[int], Mapping[str, Any]],
    features: Plain,
) -> Dataset:
    """Return the dataset of an earlier run, or write it; an unfinished one is not kept."""
    size = len(frame(encode_example(record(0))))
    shards = max(FEWEST_SHARDS, round(megabytes * 1e6 / SHARD_BYTES))
    per_shard = max(1, round(megabytes * 1e6 / shards / size))
    name = f"{kind}-{shards}x{per_shard}"
    directory = root / name
    if not directory.is_dir():
        say(f"writing {name}: {shards * per_shard * size / 1e6:,.0f} MB")
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


def write_shards(
    directory: Path, shards: int, records: Sequence[Any] | Callable[[int], Iterable[Any]]
) -> str:
    """Write shards of the same records, or of those that a function makes of a shard's number.

    Returns the glob that finds them.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for shard in range(shards):
        with TFRecordWriter(directory / f"{shard:05}.tfrecord") as writer:
            writer.write_many(records(shard) if callable(records) else records)
    return f"{directory}/*.tfrecord"


def read_into_page_cache(made: Iterable[Dataset]) -> None:
    say("reading the data into the page cache")
    for path in (path for dataset in made for path in dataset.paths):
        path.read_bytes()


def reading_figures(report: Mapping[str, Any], dataset: Dataset) -> dict[str, float]:
    """Check that a reader has read exactly the dataset, and return its report as figures.

    Args:
        report: Report of :class:`bench.stopwatch.Stopwatch`.
        dataset: Dataset that the reader was given.

    Raises:
        Failure: It has read something else.
    """
    names = ["records", "label_sum"] if report["nbytes"] is None else ["nbytes"]
    came, there = ({name: facts[name] for name in names} for facts in (report, dataset.facts()))
    if came != there:
        raise Failure(f"read {came}, where there is {there}")
    seconds, first = report["seconds"], report["first_batch_seconds"]
    megabytes = dataset.nbytes / 1e6
    figures = {
        "seconds": seconds,
        RATE: megabytes / seconds,
        "client_idle_megabytes": report["idle_megabytes"],
    }
    if first is not None:
        figures["first_batch_seconds"] = first
        figures["longest_wait_seconds"] = report["longest_wait_seconds"]
        rest = 1 - report["first_batch_share"]
        figures[f"{RATE}_after_first_batch"] = megabytes * rest / (seconds - first)
    if report["nbytes"] is None:
        figures["records_per_second"] = dataset.records / seconds
    for name, cpu in report["cpu_seconds"].items():
        figures[f"{name}_cpu_seconds_per_gigabyte"] = cpu / (dataset.nbytes / 1e9)
    for name, peak in report["peak_megabytes"].items():
        figures[f"{name}_peak_megabytes"] = peak
    return figures
