from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from streamrec.datasets import shard_source
from streamrec.datasets.shard_source import ShardSource
from streamrec.datasets.writer import TFRecordWriter
from streamrec.devstore import DevStore
from streamrec.errors import ConfigError, CorruptRecord, ObjectNotFound
from streamrec.plan.order.shard_names import Task

if TYPE_CHECKING:
    from pathlib import Path

RECORDS = [b"%d" % number * (number % 40) for number in range(1000)]


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    for number in range(4):
        suffix = ".gz" if number == 2 else ""
        with TFRecordWriter(tmp_path / f"x-{number}.tfrecord{suffix}", "auto") as writer:
            writer.write_many(RECORDS[number * 250 : number * 250 + 250])
    return tmp_path


def records(source: ShardSource, **how: object) -> list[bytes]:
    blocks = source.blocks(**how)  # type: ignore[arg-type]
    return [record for block in blocks for record in block.to_list()]


def test_records_in_the_order_of_the_shards(shards: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    source = ShardSource.find(shards / "x-*")
    found = records(source, progress=lambda *at: seen.append(at))
    assert found == RECORDS
    size = sum(path.stat().st_size for path in shards.iterdir())
    assert source.nbytes == size
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    assert {(what, total) for what, _, total in seen} == {("reading", size)}


def test_blocks_are_of_some_mebibytes(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_source, "BLOCK", 2000)
    blocks = list(ShardSource.find(str(shards / "x-*")).blocks())
    assert 10 < len(blocks) < 100
    assert max(len(block.values) for block in blocks) < 10_000


def test_the_shards_of_a_task(shards: Path) -> None:
    source = ShardSource.find([shards / "x-*"])
    parts = [source.part(Task(task, 3)) for task in range(3)]
    assert [len(part.objects) for part in parts] == [1, 1, 2]
    assert [record for part in parts for record in records(part)] == RECORDS
    with pytest.raises(ConfigError, match="4 shards cannot be divided over 5 tasks"):
        source.part(Task(0, 5))


def test_facts_tell_other_shards_apart(shards: Path) -> None:
    facts = ShardSource.find(shards / "x-*").facts()
    assert facts["shards"] == 4
    assert facts["first_shard"] == str(shards / "x-0.tfrecord")
    names = [path.name for path in sorted(shards.iterdir())]
    assert ShardSource.find([shards / name for name in names]).facts() == facts
    with TFRecordWriter(shards / "x-3.tfrecord") as writer:
        writer.write(b"another")
    assert ShardSource.find(shards / "x-*").facts() != facts


def test_sizes_of_names_in_a_store() -> None:
    with DevStore() as store:
        store.put("data/a", b"")
        store.put("data/b", b"12345")
        urls = ["s3://data/a", "s3://data/b"]
        source = ShardSource.find(urls, store.storage_options)
        assert [found.size for found in source.objects] == [0, 5]
        assert source.objects[1].etag is not None
        with pytest.raises(ObjectNotFound):
            ShardSource.find("s3://data/c", store.storage_options)


def test_no_records(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    source = ShardSource.find(tmp_path / "empty")
    assert records(source) == []
    assert source.first_records() == []


def test_damage_is_an_error(shards: Path) -> None:
    data = bytearray((shards / "x-1.tfrecord").read_bytes())
    data[-6] ^= 1
    (shards / "x-1.tfrecord").write_bytes(data)
    with pytest.raises(CorruptRecord):
        records(ShardSource.find(shards / "x-*"))
