"""TFDS folders read by streamrec beside tensorflow_datasets: pictures, and small records.

Both read the same local folder, with its features, check CRCs, decode pictures and give batches of
NumPy's arrays. The folder is written here, as tensorflow_datasets writes it.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

import streamrec as sr
from bench.harness import AIMS, Aim, Case, Column, Report, Result, Run, benchmark, say, table_of
from streamrec.datasets.sample_pictures import sample_pictures

RATE = "records_per_second"
SECONDS = 3.0
"""Seconds that each reading takes."""
SHARDS = 8
SIDE = 224
PLACE = "tensorflow_datasets.core.features"
READERS = ("streamrec", "tensorflow_datasets")


class Group(NamedTuple):
    """A dataset."""

    name: str
    file: str
    records: int
    batch_size: int
    aim: float
    """The least rate over that of tensorflow_datasets."""


PICTURES = Group("photographs of 224 x 224", "photographs", 3200, 64, 1.0)  # libjpeg takes the time
SMALL = Group("26 integers, 13 floats and a label", "clicks", 200_000, 1024, 3.0)


@benchmark("tfds", repeat=3, only=True, data=True)
def main(run: Run) -> Report:
    if find_spec("tensorflow_datasets") is None:
        run.skipped.append("tensorflow_datasets: it is not installed.")
    folders = {group: write_folder(run.data / "tfds", group) for group in (PICTURES, SMALL)}
    run.measure(list(cases(folders)), judge)
    measured = [one for one in run.results if one.measurements]
    aims = list(aims_of(measured))
    text = "\n\n".join([table_of(COLUMNS, measured), table_of(AIMS, aims)])
    return Report(text, {"aims": [aim.facts() for aim in aims]})


COLUMNS = (
    Column("dataset", lambda result: result.case.group, str),
    Column("read by", lambda result: result.case.name, str),
    Column("records/s", RATE),
    Column("CPU, µs a record", "cpu_microseconds_per_record"),
)


def write_folder(place: Path, group: Group) -> Path:
    """Write a folder; return its path."""
    say(f"writing {group.file}")
    folder = place / group.file / "1.0.0"
    folder.mkdir(parents=True, exist_ok=True)
    records, features = (photographs if group is PICTURES else clicks)(group.records)
    count = group.records // SHARDS
    for shard in range(SHARDS):
        name = f"{group.file}-train.tfrecord-{shard:05}-of-{SHARDS:05}"
        with sr.TFRecordWriter(folder / name) as writer:
            writer.write_many(records[shard * count : (shard + 1) * count])
    split = {"name": "train", "shardLengths": [str(count)] * SHARDS}
    info = {"name": group.file, "version": "1.0.0", "fileFormat": "tfrecord", "splits": [split]}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    (folder / "features.json").write_text(json.dumps(features))
    return folder


def photographs(number: int) -> tuple[Sequence[Any], dict[str, Any]]:
    """Return photographs as JPEG with a label, and their features."""
    pictures = [small(encoded) for encoded in sample_pictures()]
    rows = [{"image": pictures[n % len(pictures)], "label": n} for n in range(number)]
    shape = {"dimensions": [str(SIDE), str(SIDE), "3"]}
    image = {"image": {"shape": shape, "dtype": "uint8", "encodingFormat": "jpeg"}}
    return rows, features_of({"image": ("image_feature.Image", image), "label": scalar("int64")})


def small(encoded: bytes) -> bytes:
    """Return a picture as a small JPEG."""
    whole = Image.open(io.BytesIO(encoded)).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    file = io.BytesIO()
    whole.save(file, "JPEG", quality=90)
    return file.getvalue()


def clicks(number: int) -> tuple[Sequence[Any], dict[str, Any]]:
    """Return small records, and their features."""
    random = np.random.default_rng(0)
    integers = random.integers(0, 1 << 20, (number, 26))
    floats = random.random((number, 13), np.float32)
    names = [f"c{column}" for column in range(26)]
    rows = [
        {**dict(zip(names, some.tolist(), strict=True)), "dense": dense, "label": n % 2}
        for n, (some, dense) in enumerate(zip(integers, floats, strict=True))
    ]
    features = {**dict.fromkeys(names, scalar("int64")), "label": scalar("int64")}
    return rows, features_of({**features, "dense": scalar("float32", "13")})


def scalar(dtype: str, *shape: str) -> tuple[str, dict[str, Any]]:
    sides = {"dimensions": list(shape)}
    return "tensor_feature.Tensor", {"tensor": {"shape": sides, "dtype": dtype, "encoding": "none"}}


def features_of(features: Mapping[str, tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """Return the document of the features."""
    described = {
        name: {"pythonClassName": f"{PLACE}.{kind}", **content}
        for name, (kind, content) in features.items()
    }
    kind = f"{PLACE}.features_dict.FeaturesDict"
    return {"pythonClassName": kind, "featuresDict": {"features": described}}


def cases(folders: Mapping[Group, Path]) -> Iterator[Case]:
    for group, folder in folders.items():
        for reader in READERS:
            if find_spec(reader) is not None:
                settings = (str(folder), group.batch_size)
                arguments = {"reader": reader, "settings": settings, "seconds": SECONDS}
                yield Case(group.name, reader, "readers.tfds_folders read", arguments)


def judge(_: Case, report: Mapping[str, Any]) -> dict[str, float]:
    """Return the rate, and the CPU time of a record."""
    cpu = sum(report["cpu_seconds"].values())
    return {
        RATE: report["records"] / report["seconds"],
        "cpu_microseconds_per_record": cpu / report["records"] * 1e6,
    }


def aims_of(found: Sequence[Result]) -> Iterator[Aim]:
    rates = {result.case.title: result.median(RATE) for result in found}
    for group in (PICTURES, SMALL):
        ours, theirs = (rates.get(f"{group.name}: {reader}") for reader in READERS)
        if ours and theirs:
            yield Aim(f"{group.name}: over tensorflow_datasets", "times", group.aim, ours / theirs)


if __name__ == "__main__":
    main()
