"""TFDS folders that tensorflow_datasets writes, and what it reads back of them."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import streamrec as sr
from streamrec.values.columns import BytesColumn, Ragged
from tests.formats.beside_tensorflow import tf
from tests.support import Deferred

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

if find_spec("tensorflow_datasets") is None:
    reason = "tensorflow_datasets is not installed: tests/data holds a folder that it wrote"
    pytest.skip(reason, allow_module_level=True)
os.environ.setdefault("TFDS_DISABLE_TELEMETRY", "1")

tfds: Any = Deferred("tensorflow_datasets")
rng = np.random.default_rng(7)
Examples = list[dict[str, Any]]


def picture(height: int, width: int, channels: int = 3, dtype: Any = np.uint8) -> Any:
    """A picture with smooth parts, as photographs have, and some noise."""
    rows, columns = np.mgrid[:height, :width]
    smooth = (rows * 5 + columns * 3)[..., None] * np.arange(1, channels + 1)
    noise = rng.integers(0, 9, (height, width, channels))
    return ((smooth + noise) % np.iinfo(dtype).max).astype(dtype)


def digits() -> tuple[Any, Examples]:
    labels = tfds.features.ClassLabel(names=["zero", "one", "two"])
    features = {"image": tfds.features.Image(shape=(8, 8, 1)), "label": labels}
    return features, [{"image": picture(8, 8, 1), "label": row % 3} for row in range(9)]


def photographs() -> tuple[Any, Examples]:
    image = tfds.features.Image(encoding_format="jpeg")
    features = {
        "image": image,
        "name": tfds.features.Text(),
        "mask": tfds.features.LabeledImage(labels=["road", "tree"], shape=(None, None, 1)),
    }
    rows = [
        {
            "image": picture(20 + row, 30),
            "name": f"Straße {row}",
            "mask": picture(5, row + 1, 1) % 2,
        }
        for row in range(5)
    ]
    return features, rows


def depths() -> tuple[Any, Examples]:
    features = {
        "deep": tfds.features.Image(shape=(None, None, 1), dtype=np.uint16, encoding_format="png"),
        "metres": tfds.features.Image(shape=(6, 7, 1), dtype=np.float32, encoding_format="png"),
        "opaque": tfds.features.Image(shape=(None, None, 4)),
    }
    rows = [
        {
            "deep": picture(6 + row, 5, 1, np.uint16),
            "metres": rng.normal(size=(6, 7, 1)).astype(np.float32),
            "opaque": picture(4, 4 + row, 4),
        }
        for row in range(4)
    ]
    return features, rows


SCALARS = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float16", "float32", "float64"]


def scalars() -> tuple[Any, Examples]:
    kinds = {name: np.dtype(name) for name in SCALARS + FLOATS}
    features = {name: tfds.features.Scalar(dtype) for name, dtype in kinds.items()}
    features |= {
        f"{name}s": tfds.features.Tensor(shape=(2, 3), dtype=kinds[name]) for name in kinds
    }
    features["text"] = np.object_

    def value(dtype: np.dtype[Any], shape: tuple[int, ...] = ()) -> Any:
        numbers = rng.integers(0, 2 if dtype == np.bool_ else 100, shape)
        return np.asarray(numbers).astype(dtype)

    rows = [
        {name: value(kind) for name, kind in kinds.items()}
        | {f"{name}s": value(kind, (2, 3)) for name, kind in kinds.items()}
        | {"text": f"a text {row}"}
        for row in range(4)
    ]
    return features, rows


def tensors() -> tuple[Any, Examples]:
    def tensor(*shape: int | None, dtype: Any = np.float32, encoding: str = "none") -> Any:
        return tfds.features.Tensor(shape=shape, dtype=dtype, encoding=encoding)

    features = {
        "rows": tensor(None, dtype=np.int32),
        "points": tensor(None, 2, 3),
        "names": tfds.features.Tensor(shape=(2, 2), dtype=np.object_),
        "octets": tensor(3, 2, dtype=np.uint16, encoding="bytes"),
        "flags": tensor(4, dtype=np.bool_, encoding="bytes"),
        "field": tensor(None, None, 2, encoding="bytes"),
        "zipped": tensor(2, 2, dtype=np.int32, encoding="zlib"),
        "volume": tensor(None, None, None, dtype=np.uint8, encoding="zlib"),
    }
    rows = [
        {
            "rows": np.arange(row, dtype=np.int32),
            "points": rng.normal(size=(row, 2, 3)).astype(np.float32),
            "names": np.array([["a", "b" * row], ["", "d"]], object),
            "octets": rng.integers(0, 1 << 16, (3, 2)).astype(np.uint16),
            "flags": rng.integers(0, 2, 4).astype(np.bool_),
            "field": rng.normal(size=(row + 1, 3, 2)).astype(np.float32),
            "zipped": np.full((2, 2), row, np.int32),
            "volume": rng.integers(0, 9, (row, 2, 3)).astype(np.uint8),
        }
        for row in range(5)
    ]
    return features, rows


def sequences() -> tuple[Any, Examples]:
    sequence = tfds.features.Sequence
    features = {
        "ids": sequence(np.int64),
        "words": sequence(tfds.features.Text()),
        "three": sequence(np.float32, length=3),
        "boxes": sequence({"box": tfds.features.BBoxFeature(), "kind": sequence_label()}),
        "matrices": sequence(tfds.features.Tensor(shape=(2, 2), dtype=np.int16)),
        "nested": {"deep": {"er": np.int64}, "also": sequence(np.uint8)},
    }
    box = tfds.features.BBox(ymin=0.1, xmin=0.2, ymax=0.5, xmax=0.75)
    rows = [
        {
            "ids": list(range(row)),
            "words": [f"w{n}" for n in range(3 - row % 3)],
            "three": [0.5, row, -1],
            "boxes": [{"box": box, "kind": n % 2} for n in range(row % 3)],
            "matrices": rng.integers(-9, 9, (row, 2, 2)).astype(np.int16),
            "nested": {"deep": {"er": row}, "also": [row, 7]},
        }
        for row in range(6)
    ]
    return features, rows


def sequence_label() -> Any:
    return tfds.features.ClassLabel(names=["cat", "dog"])


def ragged() -> tuple[Any, Examples]:
    sequence = tfds.features.Sequence
    features = {
        "two": sequence(sequence(np.int64)),
        "three": sequence(sequence(sequence(np.float32))),
        "words": sequence(sequence(tfds.features.Text())),
        "pairs": sequence(sequence(tfds.features.Tensor(shape=(2,), dtype=np.int32))),
        "parts": sequence({"tokens": sequence(np.int64), "count": np.int64}),
    }
    rows = [
        {
            "two": [[1, 2, 3], [], [row]][: row + 1],
            "three": [[[1.5], []], [], [[row, 2.5]]],
            "words": [["a", "bc"], [], [str(row)]],
            "pairs": [[[1, row]], [[2, 3], [4, 5]]],
            "parts": [{"tokens": list(range(n)), "count": n} for n in range(row)],
        }
        for row in range(4)
    ]
    return features, rows


def translations() -> tuple[Any, Examples]:
    features = {
        "pair": tfds.features.Translation(languages=["en", "fr"]),
        "many": tfds.features.TranslationVariableLanguages(languages=["en", "fr", "de"]),
    }
    rows: Examples = [
        {"pair": {"en": "cat", "fr": "chat"}, "many": {"en": "cat", "fr": ["chat", "chatte"]}},
        {"pair": {"en": "dog", "fr": "chien"}, "many": {"de": "Hund"}},
    ]
    return features, rows


def sounds() -> tuple[Any, Examples]:
    features = {
        "audio": tfds.features.Audio(),
        "stereo": tfds.features.Audio(shape=(None, 2), dtype=np.int32),
        "maybe": tfds.features.Scalar(np.int32, optional=True),
        "ratio": tfds.features.Scalar(np.float32, optional=True),
        # TFDS's own Text forgets in a folder that it is optional.
        "title": tfds.features.Tensor(shape=(), dtype=np.object_, optional=True),
    }
    rows: Examples = [
        {
            "audio": rng.integers(-99, 99, 5 + row),
            "stereo": rng.integers(-99, 99, (3 + row, 2)).astype(np.int32),
            "maybe": row if row % 2 else None,
            "ratio": None if row % 2 else row / 2,
            "title": "t" if row else None,
        }
        for row in range(4)
    ]
    return features, rows


def videos() -> tuple[Any, Examples]:
    features = {
        "clip": tfds.features.Video(shape=(None, 6, 5, 3)),
        "frames": tfds.features.Sequence(tfds.features.Image(encoding_format="jpeg")),
    }
    rows = [
        {
            "clip": np.stack([picture(6, 5) for _ in range(1 + row)]),
            "frames": [picture(8, 9 + n) for n in range(1)],
        }
        for row in range(3)
    ]
    return features, rows


def episodes(lengths: Sequence[int] = (3, 4, 5, 6)) -> tuple[Any, Examples]:
    step = {
        "observation": {
            "image": tfds.features.Image(shape=(16, 16, 3), encoding_format="jpeg"),
            "state": tfds.features.Tensor(shape=(7,), dtype=np.float32),
        },
        "action": tfds.features.Tensor(shape=(7,), dtype=np.float32),
        "reward": np.float32,
        "is_first": np.bool_,
        "language_instruction": tfds.features.Text(),
    }
    features = {"steps": tfds.features.Dataset(step), "episode_metadata": {"file": np.object_}}

    def one(episode: int, n: int) -> dict[str, Any]:
        state = rng.normal(size=7).astype(np.float32)
        return {
            "observation": {"image": picture(16, 16), "state": state},
            "action": rng.normal(size=7).astype(np.float32),
            "reward": np.float32(n),
            "is_first": n == 0,
            "language_instruction": f"pick {episode}",
        }

    rows = [
        {
            "steps": [one(episode, n) for n in range(steps)],
            "episode_metadata": {"file": f"{episode}.h5"},
        }
        for episode, steps in enumerate(lengths)
    ]
    return features, rows


DATASETS: dict[str, Callable[[], tuple[Any, Examples]]] = {
    made.__name__: made
    for made in (
        digits, photographs, depths, scalars, tensors, sequences, ragged, translations, sounds,
        videos, episodes,
    )
}  # fmt: skip
"""Functions that return the features of a dataset and its examples, by the dataset's name."""


def write_folder(
    place: Path, name: str, features: Any, splits: Mapping[str, Examples], shards: int = 1
) -> Path:
    """Write a dataset with tensorflow_datasets; return its folder. Each row gets its number."""
    numbered = {
        split: [(str(row), {**example, "row": row}) for row, example in enumerate(examples)]
        for split, examples in splits.items()
    }
    builder = tfds.dataset_builders.store_as_tfds_dataset(
        name=name,
        version="1.0.0",
        features=tfds.features.FeaturesDict({**features, "row": np.int64}),
        split_datasets=numbered,
        data_dir=place,
        download_config=tfds.download.DownloadConfig(num_shards=shards),
    )
    return type(place)(builder.data_dir)


def their_rows(folder: Path, split: str = "train") -> dict[int, dict[str, Any]]:
    """Return what tensorflow_datasets reads of a split, by the rows' numbers."""
    dataset = tfds.builder_from_directory(folder).as_dataset(split=split, shuffle_files=False)
    rows = [dict(_flat(example, ())) for example in dataset]
    return {int(row["row"]): row for row in rows}


def _flat(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, (*path, key))
    elif isinstance(value, tf.data.Dataset):
        steps = [dict(_flat(step, path)) for step in value]
        for name in steps[0]:
            yield name, np.stack([step[name] for step in steps])
    elif isinstance(value, tf.RaggedTensor):
        yield "/".join(path), value.to_list()
    else:
        yield "/".join(path), value.numpy()


def our_rows(folder: Path, split: str = "train", **settings: Any) -> dict[int, dict[str, Any]]:
    """Return what a stream of two records a batch gives, by the rows' numbers."""
    found: dict[int, dict[str, Any]] = {}
    with sr.open(folder, split=split, batch_size=2, engine="thread", **settings) as stream:
        for batch in stream:
            for row, number in enumerate(batch["row"].tolist()):
                assert number not in found
                found[number] = {name: plain(column[row]) for name, column in batch.items()}
    return found


def plain(value: Any) -> Any:
    """Return a row's value as arrays, bytes and lists."""
    if isinstance(value, Ragged | BytesColumn):
        return [plain(each) for each in value.to_list()]
    return value


def assert_same(ours: Any, theirs: Any, what: str) -> None:
    """Compare a row's value with that of tensorflow_datasets."""
    if isinstance(theirs, list):
        assert _listed(ours) == theirs, what
    elif isinstance(theirs, np.ndarray) and theirs.dtype != object:
        given = np.asarray(ours)
        assert given.shape == theirs.shape, what
        if theirs.size:
            assert given.dtype == theirs.dtype, what
        np.testing.assert_array_equal(given, theirs, err_msg=what)
    elif isinstance(theirs, np.ndarray):
        assert _listed(ours) == theirs.tolist(), what
    else:
        assert ours == theirs, what
        assert np.asarray(ours).dtype == np.asarray(theirs).dtype, what


def _listed(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return [_listed(each) for each in value] if isinstance(value, list) else value
