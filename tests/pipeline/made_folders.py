"""TFDS folders that are written here: shards of streamrec, and documents as TFDS writes them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import streamrec as sr

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

LENGTHS = {"train": (4, 7, 0, 6), "test": (3,)}
"""The records of each shard of the splits."""
FEATURES = {
    "pythonClassName": "tensorflow_datasets.core.features.features_dict.FeaturesDict",
    "featuresDict": {
        "features": {
            "id": {
                "pythonClassName": "tensorflow_datasets.core.features.scalar.Scalar",
                "tensor": {"shape": {}, "dtype": "int32", "encoding": "none"},
            },
            "label": {
                "pythonClassName": "tensorflow_datasets.core.features.class_label.ClassLabel",
                "classLabel": {"numClasses": "2"},
            },
        }
    },
}


def ids_of(split: str, lengths: Mapping[str, Sequence[int]] = LENGTHS) -> list[int]:
    """Return the ids of a split's records in their order; those of splits are apart."""
    first = 1000 * list(lengths).index(split)
    return list(range(first, first + sum(lengths[split])))


def make_folder(
    place: Path, lengths: Mapping[str, Sequence[int]] = LENGTHS, name: str = "made", size: int = 0
) -> Path:
    """Write a folder; return its path.

    Args:
        place: The directory to make it in.
        lengths: The records of each shard, by split.
        name: The dataset's name.
        size: Bytes of each record besides its numbers.
    """
    folder = place / name / "1.0.0"
    folder.mkdir(parents=True)
    splits = []
    for split, counts in lengths.items():
        ids = iter(ids_of(split, lengths))
        for shard, count in enumerate(counts):
            path = folder / f"{name}-{split}.tfrecord-{shard:05}-of-{len(counts):05}"
            with sr.TFRecordWriter(path) as writer:
                for _ in range(count):
                    number = next(ids)
                    row: dict[str, Any] = {"id": number, "label": number % 2}
                    writer.write({**row, "rest": b"x" * size})
        splits.append({"name": split, "shardLengths": [str(count) for count in counts]})
    info = {"name": name, "version": "1.0.0", "fileFormat": "tfrecord", "splits": splits}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    (folder / "features.json").write_text(json.dumps(FEATURES))
    (folder / "label.labels.txt").write_text("even\nodd\n")
    return folder
