"""Datasets of every kind of source, as TensorFlow reads them."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.cli.support import streamrec as cli
from tests.shard_tools.sources.folders import CLASSES, picture_folder
from tests.shard_tools.sources.tables import NAMES, ROWS, TABLE

if find_spec("tensorflow") is None:
    pytest.skip("TensorFlow is not installed", allow_module_level=True)

if TYPE_CHECKING:
    from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
pytestmark = pytest.mark.xdist_group("tensorflow")


def read(directory: Path, **features: Any) -> list[dict[str, Any]]:
    """Return the records as TensorFlow gives them; a name's two underscores stand for a slash."""
    import tensorflow as tf

    specs = {
        name.replace("__", "/"): tf.io.FixedLenFeature([], dtype, default)
        for name, (dtype, default) in features.items()
    }
    files = tf.data.Dataset.list_files(f"{directory}/x-*.tfrecord", shuffle=False)
    parsed = tf.data.TFRecordDataset(files).map(lambda r: tf.io.parse_single_example(r, specs))
    return list(parsed.as_numpy_iterator())


def write(source: object, directory: Path, *options: object) -> None:
    outcome = cli("write", source, directory / "x.tfrecord", *options)
    assert outcome.code == 0, outcome


def test_pictures(tmp_path: Path) -> None:
    import tensorflow as tf

    root = picture_folder(tmp_path / "pictures")
    write(root, tmp_path, "--shards", 3)
    names = {"image__encoded": (tf.string, None), "image__filename": (tf.string, None)}
    found = read(tmp_path, **names, image__class__label=(tf.int64, None))
    assert len(found) == 8
    for row in found:
        name = row["image/filename"].decode()
        assert row["image/encoded"] == (root / name).read_bytes()
        assert CLASSES[row["image/class/label"]] == name.partition("/")[0]
    pixels = tf.io.decode_jpeg(found[0]["image/encoded"])
    assert pixels.shape[-1] in (1, 3)


def table_file(kind: str, directory: Path) -> Path:
    if kind == "csv":
        return TABLE
    if kind == "jsonl":
        rows = [dict(zip(NAMES, map(float, row), strict=True)) for row in ROWS]
        (directory / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
        return directory / "t.jsonl"
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    read_csv = pytest.importorskip("pyarrow.csv").read_csv
    table = read_csv(TABLE)
    assert isinstance(table, pa.Table)
    pq.write_table(table, directory / "t.parquet")
    return directory / "t.parquet"


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_tables(kind: str, tmp_path: Path) -> None:
    import tensorflow as tf

    source = table_file(kind, tmp_path)
    features = ",".join(f"{name}=float32" for name in NAMES)
    write(source, tmp_path, "--shard-size", "1MB", "--features", features)
    found = read(tmp_path, **dict.fromkeys(NAMES, (tf.float32, None)))
    expected = np.array([list(map(float, row)) for row in ROWS], np.float32)
    np.testing.assert_array_equal(np.array([[row[n] for n in NAMES] for row in found]), expected)


def test_missing_values_take_the_default(tmp_path: Path) -> None:
    import tensorflow as tf

    (tmp_path / "t.csv").write_text("a,b\n1,x\n,y\n")
    write(tmp_path / "t.csv", tmp_path, "--shards", 1)
    found = read(tmp_path, a=(tf.int64, -1), b=(tf.string, None))
    assert [(int(row["a"]), row["b"]) for row in found] == [(1, b"x"), (-1, b"y")]


def test_functions(tmp_path: Path) -> None:
    import tensorflow as tf

    write("tests.shard_tools.sources.tables:rows", tmp_path, "--shards", 2)
    found = read(tmp_path, seconds=(tf.float32, None))
    assert sorted(row["seconds"] for row in found) == sorted(np.float32(row[0]) for row in ROWS)
