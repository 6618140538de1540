"""Writes the TFDS folder of this directory with tensorflow_datasets, and what that reads of it.

Run it with tensorflow_datasets 4.9 and TensorFlow: ``python -m tests.data.make_tfds``. The values
stand in ``expected.json`` beside the folder: for each split, by the rows' numbers.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from tests.formats.tfds.tfds_folders import picture, their_rows, write_folder

HERE = Path(__file__).parent / "tfds"
COUNTS = {"train": 5, "test": 3}


def features() -> dict[str, Any]:
    sequence = tfds.features.Sequence
    label = tfds.features.ClassLabel(names=["zero", "one"])
    return {
        "image": tfds.features.Image(shape=(8, 8, 1)),
        "label": label,
        "text": tfds.features.Text(),
        "ids": sequence(np.int32),
        "boxes": sequence({"box": tfds.features.BBoxFeature(), "kind": np.int64}),
        "tokens": sequence(sequence(np.int64)),
        "small": tfds.features.Tensor(shape=(2,), dtype=np.float64),
    }


def rows(count: int) -> list[dict[str, Any]]:
    box = tfds.features.BBox(ymin=0.25, xmin=0.5, ymax=0.75, xmax=1.0)
    return [
        {
            "image": picture(8, 8, 1),
            "label": row % 2,
            "text": f"Zeile {row}: ä",
            "ids": list(range(row)),
            "boxes": [{"box": box, "kind": n} for n in range(row % 3)],
            "tokens": [[row, n][: n + 1] for n in range(row % 3)],
            "small": [row / 2, -1.0],
        }
        for row in range(count)
    ]


def plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list):
        return [plain(each) for each in value]
    return value.decode() if isinstance(value, bytes) else value


def main() -> None:
    """Write everything."""
    shutil.rmtree(HERE, ignore_errors=True)
    with tempfile.TemporaryDirectory() as made:
        splits = {split: rows(count) for split, count in COUNTS.items()}
        folder = write_folder(Path(made), "frozen", features(), splits, shards=2)
        shutil.copytree(folder, HERE / "frozen" / "1.0.0")
        expected = {split: their_rows(folder, split) for split in COUNTS}
    lines = [
        f"{json.dumps(split)}: "
        + json.dumps({n: {name: plain(v) for name, v in row.items()} for n, row in found.items()})
        for split, found in expected.items()
    ]
    (HERE / "expected.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
