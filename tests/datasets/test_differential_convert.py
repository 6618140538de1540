"""Datasets of every kind of source, as TensorFlow reads them."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.cli.support import streamrec as cli
from tests.sources.folders import CLASSES, picture_folder
from tests.sources.real_sources import OF_FLOWERS, TYPES, flowers, options_of, real_source
from tests.sources.texts import PAGES, vocabulary_file

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


def specs_of_flowers() -> dict[str, Any]:
    """Return the specs of a source of flowers."""
    import tensorflow as tf

    dtypes = {float: tf.float32, int: tf.int64, str: tf.string}
    return {name: (dtypes[kind], None) for name, kind in TYPES.items()}


@pytest.mark.parametrize("kind", OF_FLOWERS)
def test_tables(kind: str, tmp_path: Path) -> None:
    write(real_source(kind, tmp_path), tmp_path, "--shard-size", "4kB", *options_of(kind))
    assert len(list(tmp_path.glob("x-*.tfrecord"))) > 1
    found = read(tmp_path, **specs_of_flowers())
    assert found == [
        {
            name: value.encode() if isinstance(value, str) else np.float32(value)
            for name, value in flower.items()
        }
        for flower in flowers()
    ]


def test_missing_values_take_the_default(tmp_path: Path) -> None:
    import tensorflow as tf

    (tmp_path / "t.csv").write_text("a,b\n1,x\n,y\n")
    write(tmp_path / "t.csv", tmp_path, "--shards", 1)
    found = read(tmp_path, a=(tf.int64, -1), b=(tf.string, None))
    assert [(int(row["a"]), row["b"]) for row in found] == [(1, b"x"), (-1, b"y")]


def test_text(tmp_path: Path) -> None:
    import tensorflow as tf

    text = tmp_path / "text.txt"
    text.write_bytes(b"\n\n".join(page.read_bytes() for page in PAGES))
    vocabulary = vocabulary_file(tmp_path)
    sizes = ["--max-seq-length", 64, "--max-predictions-per-seq", 10]
    write(text, tmp_path, "--kind", "bert", "--vocab-file", vocabulary, "--shards", 2, *sizes)
    # The features as BERT's own run_pretraining.py reads them.
    specs = {
        name: tf.io.FixedLenFeature([size], dtype)
        for name, size, dtype in [
            ("input_ids", 64, tf.int64),
            ("input_mask", 64, tf.int64),
            ("segment_ids", 64, tf.int64),
            ("masked_lm_positions", 10, tf.int64),
            ("masked_lm_ids", 10, tf.int64),
            ("masked_lm_weights", 10, tf.float32),
            ("next_sentence_labels", 1, tf.int64),
        ]
    }
    shards = sorted(tmp_path.glob("x-*.tfrecord"))
    with tf.io.TFRecordWriter(str(tmp_path / "theirs")) as writer:
        for record in tf.data.TFRecordDataset(list(map(str, shards))).as_numpy_iterator():
            message = tf.train.Example.FromString(record)
            writer.write(message.SerializeToString(deterministic=True))
    written = b"".join(shard.read_bytes() for shard in shards)
    assert (tmp_path / "theirs").read_bytes() == written
    batches = tf.data.TFRecordDataset(list(map(str, shards))).batch(100_000)
    batch = next(iter(batches.map(lambda r: tf.io.parse_example(r, specs))))
    found = {name: column.numpy() for name, column in batch.items()}
    assert len(found["input_ids"]) > 1000
    assert not found["input_ids"][found["input_mask"] == 0].any()
    assert (np.diff(found["input_mask"]) <= 0).all()
    np.testing.assert_array_equal(found["masked_lm_ids"] != 0, found["masked_lm_weights"] == 1)
    assert (found["input_ids"][:, 0] == 2).all()
    hidden = np.take_along_axis(found["input_ids"], found["masked_lm_positions"], 1)
    masked = (hidden == 4).sum() / found["masked_lm_weights"].sum()
    assert masked == pytest.approx(0.8, abs=0.02)


def losses_of(batches: Any, steps: int) -> list[float]:
    """Train a classifier of three classes; return the loss of each epoch of as many steps."""
    import keras

    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(3, "softmax")])
    model.compile(keras.optimizers.Adam(0.1), "sparse_categorical_crossentropy")
    how: dict[str, Any] = {"epochs": 8, "steps_per_epoch": steps, "shuffle": False, "verbose": 0}
    fit = model.fit(batches.repeat(), **how)
    losses: list[float] = fit.history["loss"]
    return losses


def parsed(directory: Path, specs: dict[str, Any], batch_size: int) -> Any:
    """Return the batches that TensorFlow reads, in a random order."""
    import tensorflow as tf

    files = tf.data.Dataset.list_files(f"{directory}/x-*.tfrecord", shuffle=False)
    records = files.interleave(tf.data.TFRecordDataset).shuffle(200, seed=1)
    return records.batch(batch_size).map(lambda batch: tf.io.parse_example(batch, specs))


def test_tensorflow_trains_on_a_table(tmp_path: Path) -> None:
    import tensorflow as tf

    write(real_source("csv", tmp_path), tmp_path, "--shards", 3)
    sizes = [name for name, kind in TYPES.items() if kind is float]
    specs = {name: tf.io.FixedLenFeature([], tf.float32) for name in sizes}
    batches = parsed(tmp_path, {**specs, "label": tf.io.FixedLenFeature([], tf.int64)}, 15)
    pairs = batches.map(lambda row: (tf.stack([row[name] for name in sizes], 1), row["label"]))
    first, *_, last = losses_of(pairs, 10)
    assert last < 0.5 * first


def test_tensorflow_trains_on_pictures(tmp_path: Path) -> None:
    import tensorflow as tf

    write(real_source("pictures", tmp_path), tmp_path, "--shards", 3)
    specs = {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/class/label": tf.io.FixedLenFeature([], tf.int64),
    }

    def pair(row: Any) -> Any:
        image = tf.io.decode_jpeg(row["image/encoded"], 3, ratio=8)
        return tf.image.resize(image, (8, 8)) / 255, row["image/class/label"]

    pairs = parsed(tmp_path, specs, 1).unbatch().map(pair).cache().batch(4)
    first, *_, last = losses_of(pairs, 2)
    assert last < 0.5 * first
