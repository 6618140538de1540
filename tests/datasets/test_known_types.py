from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamrec.datasets.known_types import known_types
from streamrec.datasets.shard_source import ShardSource
from streamrec.datasets.sharded_writer import ShardedWriter
from streamrec.formats.examples.specs import VarLenFeature

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def write(path: Path, record: dict[str, Any], labels: dict[str, int] | None = None) -> None:
    with ShardedWriter(path, shards=1, labels=labels) as writer:
        writer.write(record)


def known(*paths: Path) -> dict[str, Any]:
    return known_types(ShardSource.find([f"{path}-?????-of-?????*" for path in paths]))


def test_types_of_several_datasets(tmp_path: Path) -> None:
    write(tmp_path / "a", {"id": 1, "x": 0.5}, {"cat": 0})
    write(tmp_path / "b.tfrecord", {"id": 2, "name": "b"}, {"dog": 1})
    found = known(tmp_path / "a", tmp_path / "b")
    assert found["features"] == {
        "id": VarLenFeature("int64"),
        "x": VarLenFeature("float32"),
        "name": VarLenFeature("bytes"),
    }
    assert found["labels"] == {"cat": 0, "dog": 1}


def test_contradictions(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path / "a", {"id": 1}, {"cat": 0})
    write(tmp_path / "b", {"id": b"2"}, {"cat": 1})
    assert known(tmp_path / "a", tmp_path / "b") == {"features": None, "labels": None}
    assert "'id' is int64 in one and bytes in another" in caplog.text
    assert "the label maps of the datasets contradict each other: 'cat' is 0 in one" in caplog.text


def test_a_dataset_without_a_manifest(tmp_path: Path) -> None:
    write(tmp_path / "a", {"id": 1})
    write(tmp_path / "b", {"id": 1})
    (tmp_path / "b.streamrec-manifest.json").unlink()
    assert known(tmp_path / "a", tmp_path / "b") == {}


def test_shards_of_no_dataset(tmp_path: Path) -> None:
    (tmp_path / "x-00000-of-00001").write_bytes(b"")
    (tmp_path / "y").write_bytes(b"")
    assert known_types(ShardSource.find(str(tmp_path / "*"))) == {}
