"""The mistakes of the first hour, and what is told: the class, and the words that help."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import streamrec as sr
from streamrec.errors import ConfigError, DataError, FunctionFailed, StoreError, WrongFeatureType
from tests.support import IN_TORCHS_WORKER

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def shard(tmp_path: Path) -> str:
    path = str(tmp_path / "x.tfrecord")
    with sr.TFRecordWriter(path) as writer:
        writer.write_many({"x": number} for number in range(4))
    return path


OPEN: Any = sr.open
"""Without its types, which refuse most of these mistakes before they are made."""


def first(source: Any, **settings: Any) -> Any:
    return next(iter(OPEN(source, engine="thread", **settings)))


class Tensor:
    """As those of torch look from outside."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return self._rows

    def numpy(self) -> Any:
        return np.zeros(self._rows)


MISTAKES: dict[str, tuple[Callable[[str], Any], type[Exception], str]] = {
    "bytes": (
        lambda path: OPEN(path, memory_budget="1 gig"),
        ConfigError,
        r"""'memory_budget' is '1 gig' but must be bytes, such as "1GiB" or 'auto'$""",
    ),
    "unequal": (
        lambda _: sr.encode_example({"x": [[1], [2, 3]]}),
        WrongFeatureType,
        r"feature x: .*unequal lengths.*one of the lengths, or use encode_sequence_example",
    ),
    "None": (
        lambda _: sr.encode_example({"x": None}),
        WrongFeatureType,
        r"feature x: .*None is not a value; leave the feature out where it has no value",
    ),
    "None in a list": (
        lambda _: sr.encode_example({"x": [1, None]}),
        WrongFeatureType,
        r"leave the feature out",
    ),
    "one slash": (
        lambda _: first("s3:/bucket/x-*.tfrecord"),
        sr.ObjectNotFound,
        r"did you mean s3://\?",
    ),
    "one slash, one name": (lambda _: first("gs:/bucket/x"), sr.ObjectNotFound, r"mean gs://\?"),
    "home": (
        lambda _: first("~/data/x-*.tfrecord"),
        sr.ObjectNotFound,
        r"only a shell replaces ~; write the path in full$",
    ),
    "a variable": (lambda _: first("$DATA/x"), sr.ObjectNotFound, r"a shell replaces \$DATA;"),
    "braces": (lambda _: first("${DATA}/x"), sr.ObjectNotFound, r"shell replaces \$\{DATA\};"),
    "home of a writer": (
        lambda _: sr.TFRecordWriter("~/data/x.tfrecord").write(b""),
        sr.ObjectNotFound,
        r"only a shell replaces ~; write the path in full$",
    ),
    "home of a dataset": (
        lambda _: sr.ShardedWriter("~/x.tfrecord", shards=2).write(b""),
        ConfigError,
        r"^~/: only a shell replaces ~; write the path in full$",
    ),
    "one slash of a dataset": (
        lambda _: sr.ShardedWriter("s3:/bucket/x.tfrecord", shards=2).write(b""),
        ConfigError,
        r"did you mean s3://\?$",
    ),
    "bs": (lambda path: OPEN(path, bs=4), ConfigError, r"it is batch_size$"),
    "local": (lambda path: OPEN(path, local="/x"), ConfigError, r"'local': it is cache"),
    "remote": (
        lambda path: OPEN(remote=path),
        ConfigError,
        r"'remote': it is the first argument, the source$",
    ),
    "no source": (lambda _: OPEN(), ConfigError, r"needs a source; give a URL, a path"),
    "a dtype's name": (
        lambda path: OPEN(path, {"x": "float32"}),
        ConfigError,
        r"feature 'x'.*not str; write streamrec\.FixedLenFeature\(\(\), 'float32'\)",
    ),
    "a type": (
        lambda path: OPEN(path, {"x": int}),
        ConfigError,
        r"not type; write streamrec\.FixedLenFeature\(\(\), 'int64'\)",
    ),
    "tensors of a map": (
        lambda path: first(
            path, features="infer", batch_size=2, map=lambda columns: {"x": Tensor(3)}
        ),
        FunctionFailed,
        r"returned 'x' as a Tensor; it must return NumPy arrays, by \.numpy\(\)",
    ),
    "a directory": (
        lambda path: first(str(Path(path).parent)),
        StoreError,
        r"this is a directory; name its shards, as in /.*/\*\.tfrecord$",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("mistake", "kind", "words"), MISTAKES.values(), ids=MISTAKES)
def test_what_is_told(
    mistake: Callable[[str], Any], kind: type[Exception], words: str, shard: str
) -> None:
    with pytest.raises(kind) as caught:
        mistake(shard)
    assert re.search(words, str(caught.value)), caught.value


@pytest.mark.parametrize("slash", ["", "/"])
def test_the_folder_of_tensorflow_datasets(tmp_path: Path, slash: str) -> None:
    for name in ("mnist-train.tfrecord-00000-of-00002", "features.json", "dataset_info.json"):
        (tmp_path / name).touch()
    told = r'as in .*/\*\.tfrecord\*, or read this TFDS dataset with split="train"$'
    with pytest.raises((ConfigError, StoreError), match=told):
        first(f"{tmp_path}{slash}")


@pytest.mark.parametrize("name", ["x.csv", "x.csv.gz", "short.csv"])
def test_text_in_place_of_a_shard(tmp_path: Path, name: str) -> None:
    text = b"a,b\n1,2\n" * (1 if name == "short.csv" else 100)
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    with pytest.raises(DataError, match="looks like text: `streamrec write` converts it") as caught:
        first(str(tmp_path / name))
    assert (caught.value.offset, caught.value.record) == (0, 0)


def test_a_loader_of_a_path_is_refused_at_once() -> None:
    pytest.importorskip("torch")
    from streamrec.adapters.torch import as_loader

    for wrong in ("x.tfrecord", as_loader(sr.open("x.tfrecord", batch_size=1))):
        name = type(wrong).__name__
        with pytest.raises(ConfigError, match=rf"as_loader takes a stream, not {name}; give it "):
            as_loader(wrong)  # type: ignore[arg-type]


@IN_TORCHS_WORKER
def test_a_device_that_this_torch_has_not(shard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from streamrec.adapters.torch import as_loader

    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None)
    with pytest.raises(ConfigError, match="'cuda:0': this torch was built without CUDA"):
        as_loader(sr.open(shard, "infer", batch_size=2), device="cuda:0")
    monkeypatch.setattr(torch.version, "cuda", "12.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="torch finds no GPU here"):
        as_loader(sr.open(shard, "infer", batch_size=2), device="cuda")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"features": "auto"}, "must be a mapping or 'infer'"),
        ({"storage_options": "key"}, "'storage_options' is str but must be a mapping$"),
    ],
)
def test_a_setting_that_holds_others(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        OPEN("x.tfrecord", **settings)
