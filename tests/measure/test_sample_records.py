from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import streamrec as sr
from streamrec.errors import ConfigError
from streamrec.measure.sample_records import DEFAULT_FEATURES, sample_records

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FEATURES = {
    "label": sr.FixedLenFeature((), "int64"),
    "flag": sr.FixedLenFeature((), "bool"),
    "small": sr.FixedLenFeature((3,), "int8"),
    "vector": sr.FixedLenFeature((2, 3), "float32"),
    "half": sr.FixedLenFeature((4,), "float16"),
    "name": sr.FixedLenFeature((), "bytes"),
    "names": sr.FixedLenFeature((2,), "bytes"),
    "grid": sr.FixedLenFeature((2, 2), "uint16", raw=True),
    "tokens": sr.VarLenFeature("int64"),
    "words": sr.VarLenFeature("bytes"),
    "steps": sr.FixedLenSequenceFeature((2,), "float32", allow_missing=True),
    "pairs": sr.FixedLenSequenceFeature((2,), "bytes", allow_missing=True),
    "ragged": sr.RaggedFeature("int64"),
    "picture": sr.Image(channels=3, resize=(8, 8)),
}


def read(tmp_path: Path, features: Mapping[str, Any], number: int) -> Any:
    with sr.TFRecordWriter(tmp_path / "shard") as writer:
        writer.write_many(sample_records(features, number))
    with sr.open(tmp_path / "shard", features, batch_size=number, engine="thread") as stream:
        return next(iter(stream))


def test_records_hold_the_features(tmp_path: Path) -> None:
    batch = read(tmp_path, FEATURES, 10)
    assert set(batch) == set(FEATURES)
    assert {len(batch[name]) for name in FEATURES} == {10}
    assert len(set(batch["label"].tolist())) > 1
    assert batch["picture"].shape == (10, 8, 8, 3)


def test_the_default_is_pictures(tmp_path: Path) -> None:
    records = sample_records(DEFAULT_FEATURES, 16)
    assert 60_000 < int(records.offsets[-1]) / 16 < 120_000
    assert len(read(tmp_path, DEFAULT_FEATURES, 16)["image"]) == 16


def test_they_are_the_same_each_time() -> None:
    features = {name: FEATURES[name] for name in ("vector", "words")}
    first, again = sample_records(features, 5), sample_records(features, 5)
    assert list(first) == list(again)


@pytest.mark.parametrize(
    "spec",
    [
        sr.SparseFeature("i", "v", "float32", 10),
        sr.Image(shape=(8, 8)),
        sr.RaggedFeature("int64", partitions=[sr.RaggedFeature.RowSplits("splits")]),
    ],
)
def test_what_cannot_be_made_up_is_refused(spec: Any) -> None:
    with pytest.raises(ConfigError, match=r"'x' is .* can make no values; name a local shard"):
        sample_records({"x": spec}, 1)
