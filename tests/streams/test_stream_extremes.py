"""Shards of extreme sizes, from ``sr.open`` to batches; the kernel's part is in tests/kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import streamrec as sr
from streamrec import kernel
from streamrec.errors import ConfigError, MalformedExample
from streamrec.formats.shards.tfrecord import frame
from tests.kernel import extremes

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.both_kernels

FEATURES = {"a": sr.VarLenFeature("int64"), "b": sr.FixedLenFeature((), "float32", 0.5)}


def batches(path: Path | list[str], features: Any = None, size: int = 1000) -> list[Any]:
    source = path if isinstance(path, list) else str(path)
    with sr.open(source, features, batch_size=size, engine="thread") as stream:
        return list(stream)


class TestAShardOfNoBytes:
    @pytest.fixture
    def empty(self, tmp_path: Path) -> Path:
        (tmp_path / "empty.tfrecord").touch()
        return tmp_path / "empty.tfrecord"

    @pytest.mark.parametrize("features", [None, FEATURES])
    def test_it_gives_no_batch(self, empty: Path, features: Any) -> None:
        assert batches(empty, features) == []

    def test_it_is_nothing_beside_others(self, empty: Path) -> None:
        other = empty.with_name("other.tfrecord")
        other.write_bytes(frame(b"abc"))
        (batch,) = batches([str(empty), str(other), str(empty)])
        assert batch.records.to_list() == [b"abc"]

    def test_nothing_can_be_inferred_from_it(self, empty: Path) -> None:
        with pytest.raises(ConfigError, match="all shards are empty"):
            batches(empty, "infer")


class TestAMillionEmptyRecords:
    COUNT = 1_000_000 if kernel.implementation == "native" else 50_000

    @pytest.fixture
    def shard(self, tmp_path: Path) -> Path:
        extremes.empty_records(self.COUNT).tofile(tmp_path / "records.tfrecord")
        return tmp_path / "records.tfrecord"

    def test_all_come_as_they_are(self, shard: Path) -> None:
        found = batches(shard)
        assert sum(map(len, found)) == self.COUNT
        assert not any(batch.records.offsets.any() for batch in found)

    def test_all_are_parsed(self, shard: Path) -> None:
        found = batches(shard, FEATURES)
        assert sum(map(len, found)) == self.COUNT
        assert all((batch["b"] == 0.5).all() and not len(batch["a"].values) for batch in found)

    def test_all_come_as_one_batch(self, shard: Path) -> None:
        (batch,) = batches(shard, FEATURES, self.COUNT)
        assert len(batch) == self.COUNT


def test_ten_thousand_features_are_inferred_and_parsed(tmp_path: Path) -> None:
    count = 10_000
    (tmp_path / "wide.tfrecord").write_bytes(frame(extremes.many_features(count).tobytes()))
    (batch,) = batches(tmp_path / "wide.tfrecord", "infer", 1)
    assert np.concatenate([batch[name] for name in sorted(batch)]).tolist() == list(range(count))


def test_a_length_that_no_bytes_bear_out_is_refused(tmp_path: Path) -> None:
    record = extremes.heading(2**30) + bytes(100)
    (tmp_path / "lies.tfrecord").write_bytes(frame(record))
    with pytest.raises(MalformedExample, match=r"lies.tfrecord, record 0"):
        batches(tmp_path / "lies.tfrecord", FEATURES)
