from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import streamrec as sr

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for shard in range(3):
        with sr.TFRecordWriter(tmp_path / f"part-{shard}.tfrecord") as writer:
            for record in range(4):
                writer.write(sr.encode_example({"id": record, "words": ["w"] * (record % 2)}))
    return tmp_path


class TestShards:
    def test_a_glob_is_listed(self, folder: Path) -> None:
        found = sr.shards(folder / "part-*.tfrecord")
        assert found == [f"{folder}/part-{shard}.tfrecord" for shard in range(3)]

    def test_they_can_be_split_by_hand(self, folder: Path) -> None:
        first, *rest = sr.shards(f"{folder}/*.tfrecord")
        with sr.open(first, engine="thread") as validation, sr.open(rest, engine="thread") as train:
            assert (len(list(validation)), len(list(train))) == (4, 8)

    def test_names_are_not_looked_up(self) -> None:
        assert sr.shards(["s3://b/y", "s3://b/x"]) == ["s3://b/x", "s3://b/y"]

    def test_nothing_matches(self, folder: Path) -> None:
        with pytest.raises(sr.ObjectNotFound, match="no object matches"):
            sr.shards(f"{folder}/*.tfrec")

    def test_what_is_no_source(self) -> None:
        with pytest.raises(sr.ConfigError, match="cannot name shards"):
            sr.shards(5)  # type: ignore[arg-type]


class TestInferFeatures:
    def test_specs_by_name(self, folder: Path) -> None:
        assert sr.infer_features(f"{folder}/*") == {
            "id": sr.FixedLenFeature((), "int64"),
            "words": sr.VarLenFeature(bytes),
        }

    def test_a_stream_takes_them(self, folder: Path) -> None:
        features = sr.infer_features(f"{folder}/*")
        with sr.open(f"{folder}/*", features, batch_size=12, engine="thread") as stream:
            (batch,) = stream
        assert sorted(batch["id"].tolist()) == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]

    def test_no_examples(self, tmp_path: Path) -> None:
        with sr.TFRecordWriter(tmp_path / "raw") as writer:
            writer.write(b"\xff\xff")
        with pytest.raises(sr.MalformedExample, match="record 0"):
            sr.infer_features(tmp_path / "raw")
