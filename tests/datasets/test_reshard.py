from __future__ import annotations

import json
from itertools import chain, product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import streamrec as sr
from streamrec.datasets.reshard import (
    Resharding,
    WrittenDataset,
    excluded_by,
    reshard,
    types_of,
)
from streamrec.datasets.shard_source import ShardSource
from streamrec.datasets.sharded_writer import ShardedWriter
from streamrec.devstore import DevStore
from streamrec.errors import ConfigError, CorruptRecord, MissingFeature
from streamrec.formats.examples.specs import VarLenFeature
from streamrec.plan.order.shard_names import Splits
from streamrec.values.columns import cut
from tests.datasets.datasets import contents, manifest, names, records

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def write(path: Path, record: dict[str, Any], labels: dict[str, int] | None = None) -> None:
    with ShardedWriter(path, shards=1, labels=labels) as writer:
        writer.write(record)


def known(*paths: Path) -> dict[str, Any]:
    return types_of(ShardSource.find([f"{path}-?????-of-?????*" for path in paths]))


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
    assert types_of(ShardSource.find(str(tmp_path / "*"))) == {}


pytestmark = pytest.mark.both_kernels

COUNT = 1000
HALVES = Splits.parse("a=0.5,b=0.5")
MEMORY = 16 << 20


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Return the directory of a dataset of four shards, sorted by class."""
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    with ShardedWriter(tmp_path / "old" / "x", shard_bytes=20_000, labels={"cat": 1}) as writer:
        writer.write_many(
            {"id": np.arange(COUNT), "name": [b"%d" % (n // 2) for n in range(COUNT)]}
        )
    return tmp_path / "old"


@pytest.fixture
def new(old: Path) -> Path:
    return old.with_name("new")


def written(old: Path, new: Path, **how: Any) -> list[WrittenDataset]:
    plan = Resharding(str(new / how.pop("name", "x")), memory=MEMORY, **how)
    return reshard(ShardSource.find(f"{old}/x-*"), plan)


def test_shards_by_size_keep_the_order(old: Path, new: Path) -> None:
    assert len(records(old)) > 2
    assert written(old, new, shard_bytes=5000) == [WrittenDataset(str(new / "x"), COUNT)]
    assert len(records(new)) > len(records(old))
    assert list(chain(*records(new))) == list(chain(*records(old)))


def test_counted_shards_are_of_one_size(old: Path, new: Path) -> None:
    written(old, new, shards=3, name="x.tfrecord.gz", compression="auto")
    every = [list(sr.read_records(path)) for path in sorted(new.glob("x-*.gz"))]
    assert [len(shard) for shard in every] == [334, 333, 333]
    assert sorted(chain(*every)) == sorted(chain(*records(old)))


def test_what_is_known_of_the_dataset_is_kept(old: Path, new: Path) -> None:
    written(old, new, shards=1)
    assert manifest(new).features == {"id": "int64", "name": "bytes"}
    assert manifest(new).settings.labels == {"cat": 1}
    assert manifest(new).settings.source["resharded"]["shards"] == len(records(old))
    with sr.open(f"{new}/x-*", index=True) as stream:
        assert len(stream) == COUNT


def test_a_global_shuffle(old: Path, new: Path) -> None:
    written(old, new, shard_bytes=20_000, shuffle=3)
    before, after = (list(chain(*records(directory))) for directory in (old, new))
    assert after != before
    assert sorted(after) == sorted(before)


def test_the_progress_of_a_shuffle_ends_with_all_its_bytes(old: Path, new: Path) -> None:
    told: list[tuple[str, int, int]] = []
    plan = Resharding(str(new / "x"), memory=MEMORY, shuffle=7, shards=2)
    reshard(ShardSource.find(f"{old}/x-*"), plan, progress=lambda *news: told.append(news))
    nbytes = sum(map(len, chain(*records(old))))
    assert [news for news in told if news[0] == "writing"][-1] == ("writing", nbytes, nbytes)


def test_tasks_shuffle_as_one_does(old: Path, new: Path) -> None:
    for task in range(3):
        written(old, new, shard_bytes=5000, shuffle=3, task=(task, 3))
    sr.merge_index(new / "x")
    written(old, new, shard_bytes=5000, shuffle=3, name="one")
    assert list(chain(*records(new))) == list(chain(*records(new, "one")))


def test_tasks_keep_the_order(old: Path, new: Path) -> None:
    for task in range(2):
        written(old, new, shard_bytes=9000, task=(task, 2))
    sr.merge_index(new / "x")
    assert list(chain(*records(new))) == list(chain(*records(old)))


def listed(old: Path, removed: Sequence[tuple[int, int]]) -> Path:
    """Write a list of records, by the number of the shard and their own."""
    shards = sorted(path.name for path in old.glob("x-*-of-*"))
    lines = [json.dumps({"shard": shards[shard], "record": record}) for shard, record in removed]
    (old.parent / "removed.jsonl").write_text("\n".join(lines))
    return old.parent / "removed.jsonl"


REMOVED = [(0, 0), (0, 17), (1, 3), (2, 20), (2, 20)]
"""One is named twice."""


def without(old: Path, removed: Sequence[tuple[int, int]]) -> list[bytes]:
    return [
        record
        for shard, every in enumerate(records(old))
        for number, record in enumerate(every)
        if (shard, number) not in removed
    ]


@pytest.mark.parametrize(
    "how",
    [
        {"shard_bytes": 5000},
        {"shards": 3},
        {"shards": 2, "shuffle": 3},
        {"shards": 2, "splits": HALVES, "split_by": "name"},
    ],
)
def test_excluded_records_are_left_out_for_good(
    old: Path, new: Path, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = listed(old, REMOVED)
    source, plan = ShardSource.find(f"{old}/x-*", exclude=path), Resharding(str(new / "x"), **how)
    assert sum(one.records for one in reshard(source, plan)) == COUNT - 4
    assert excluded_by(source, plan) == 4
    stems = ["x-a", "x-b"] if "splits" in how else ["x"]
    found = list(chain.from_iterable(chain(*(records(new, stem) for stem in stems))))
    assert sorted(found) == sorted(without(old, REMOVED))
    if "shard_bytes" in how:
        assert found == without(old, REMOVED)
    facts = manifest(new, stems[0]).settings.source["resharded"]
    assert facts["excluded"]["records"] == 4
    # Of what is complete nothing is read; another list makes another dataset.
    monkeypatch.setattr(ShardSource, "batches", None)
    assert all(one.was_complete for one in reshard(source, plan))
    for other in (None, listed(old, REMOVED[1:])):
        with pytest.raises(ConfigError, match="there is a dataset"):
            reshard(ShardSource.find(f"{old}/x-*", exclude=other), plan)


def test_tasks_leave_out_what_is_in_their_shards(old: Path, new: Path) -> None:
    source = ShardSource.find(f"{old}/x-*", exclude=listed(old, REMOVED))
    told = []
    for task in range(2):
        plan = Resharding(str(new / "x"), shard_bytes=9000, task=(task, 2))
        reshard(source, plan)
        told.append(excluded_by(source, plan) or 0)
    sr.merge_index(new / "x")
    assert list(chain(*records(new))) == without(old, REMOVED)
    assert sum(told) == 4


def test_a_list_that_names_what_is_not_there(old: Path, new: Path) -> None:
    with pytest.raises(ConfigError, match=r"removed.jsonl, line 1: the source has no shard 'a'"):
        (old.parent / "removed.jsonl").write_text('{"shard": "a", "record": 0}')
        ShardSource.find(f"{old}/x-*", exclude=old.parent / "removed.jsonl")
    source = ShardSource.find(f"{old}/x-*", exclude=listed(old, [(1, 9999)]))
    with pytest.raises(ConfigError, match="there is no record 9999 in"):
        reshard(source, Resharding(str(new / "x"), shards=1))
    assert names(new) == []


def test_a_damaged_record_is_left_out_by_the_list(old: Path, new: Path) -> None:
    counts = [len(shard) for shard in records(old)]
    last = max(old.glob("x-*-of-*"))
    data = bytearray(last.read_bytes())
    data[-6] ^= 1
    last.write_bytes(data)
    place = len(counts) - 1, counts[-1] - 1
    source = ShardSource.find(f"{old}/x-*", exclude=listed(old, [place]))
    (one,) = reshard(source, Resharding(str(new / "x"), shards=1))
    assert one.records == COUNT - 1


def test_several_sources_are_merged(old: Path, new: Path) -> None:
    with ShardedWriter(old / "y", shards=1) as writer:
        writer.write_many([b"1", b"2"])
    reshard(ShardSource.find([f"{old}/y-*", f"{old}/x-*"]), Resharding(str(new / "x"), shards=1))
    assert records(new)[0] == [*chain(*records(old)), b"1", b"2"]


def test_splits_by_the_record(old: Path, new: Path) -> None:
    a, b = written(old, new, shards=1, splits=HALVES)
    assert a.template == str(new / "x-a")
    assert a.records + b.records == COUNT
    assert abs(a.records - b.records) < 100
    ((first,), (second,)) = records(new, "x-a"), records(new, "x-b")
    assert set(HALVES.of(first).tolist()) == {0}
    assert sorted(first + second) == sorted(chain(*records(old)))


@pytest.mark.parametrize("feature", ["name", "id"])
def test_splits_by_a_feature(old: Path, new: Path, feature: str) -> None:
    written(old, new, shards=1, splits=HALVES, split_by=feature)
    spec = {feature: sr.FixedLenFeature((), "string" if feature == "name" else "int64")}
    values = [
        {
            row
            for batch in sr.open(f"{new}/x-{name}-*", spec, batch_size=100)
            for row in batch[feature]
        }
        for name in HALVES.names
    ]
    assert values[0].isdisjoint(values[1])
    assert len(values[0] | values[1]) == (COUNT // 2 if feature == "name" else COUNT)


def test_features_that_divide_nothing(old: Path, new: Path) -> None:
    how: dict[str, Any] = {"shards": 1, "splits": HALVES}
    with pytest.raises(ConfigError, match="there is no feature 'none' in the first records"):
        written(old, new, split_by="none", **how)
    with ShardedWriter(old / "x-9", shards=1) as writer:
        writer.write({"id": 1})
    with pytest.raises(MissingFeature, match="name"):
        written(old, new, split_by="name", **how)
    assert names(new) == []


@pytest.mark.parametrize("how", [{"shards": 2}, {"shard_bytes": 3000}, {"shuffle": 1, "shards": 2}])
def test_a_run_again_ends_with_the_same_bytes(
    old: Path, new: Path, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    how = {"splits": HALVES, **how}
    written(old, new, **how)
    expected = contents(new)
    # Of what is complete nothing is read.
    monkeypatch.setattr(ShardSource, "batches", None)
    assert all(one.was_complete for one in written(old, new, **how))
    assert contents(new) == expected


@pytest.mark.parametrize("shuffle", [None, 1])
def test_a_run_that_was_cut_short_is_continued(
    old: Path, new: Path, shuffle: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    how: dict[str, Any] = {"shard_bytes": 3000, "shuffle": shuffle}
    written(old, new, name="whole", **how)
    whole = ShardedWriter.write_many

    def half(writer: ShardedWriter, records: Any) -> None:
        whole(writer, cut(records, 0, len(records) // 2))
        raise ZeroDivisionError

    monkeypatch.setattr(ShardedWriter, "write_many", half)
    with pytest.raises(ZeroDivisionError):
        written(old, new, **how)
    assert len([name for name in names(new) if name.startswith(".x.task")]) > 2
    monkeypatch.undo()
    written(old, new, **how)
    assert records(new) == records(new, "whole")
    assert not [name for name in names(new) if name.startswith(".")]


def test_damage_leaves_nothing(old: Path, new: Path) -> None:
    last = max(old.glob("x-*-of-*"))
    data = bytearray(last.read_bytes())
    data[-6] ^= 1
    last.write_bytes(data)
    for shuffle in (None, 1):
        with pytest.raises(CorruptRecord, match=last.name):
            written(old, new, shards=2, shuffle=shuffle)
        assert names(new) == []


def test_the_source_is_not_replaced(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = old.rename(old.with_name("with space"))
    monkeypatch.chdir(old)
    before = contents(old)
    link = old.with_name("link")
    link.symlink_to(old)
    places = [f"{old}/x", f"file://{old}/x", f"FILE://{old}/x", f"{old.as_uri()}/x", "x"]
    places.append(f"{link}/x")
    sources = [f"{old}/x-*", f"{old.as_uri()}/x-*", "x-*"]
    for url, source in product(places, sources):
        with pytest.raises(ConfigError, match="is read, but a new shard would replace it"):
            reshard(ShardSource.find(source), Resharding(url, shards=2, overwrite=True))
    assert contents(old) == before


def test_the_source_of_a_store_is_not_replaced() -> None:
    with DevStore() as store:
        options = store.storage_options
        store.put("bucket/other", b"")
        with ShardedWriter("s3://bucket/x", shards=1, storage_options=options) as writer:
            writer.write(b"one")
        source = ShardSource.find("s3://bucket/x-*", storage_options=options)
        again = Resharding("s3a://bucket/x", shards=2, overwrite=True, storage_options=options)
        with pytest.raises(ConfigError, match="is read, but a new shard would replace it"):
            reshard(source, again)


def test_from_a_store_to_a_store(old: Path) -> None:
    with DevStore() as store:
        for path in old.glob("x-*-of-*"):
            store.put(f"data/{path.name}", path.read_bytes())
        store.put("other/keep", b"")
        seen: list[str] = []
        reshard(
            ShardSource.find("s3://data/x-*", store.storage_options),
            Resharding("s3://other/y", shards=2, shuffle=1, storage_options=store.storage_options),
            lambda what, done, total: seen.append(what),
        )
        with sr.open("s3://other/y-*", storage_options=store.storage_options) as stream:
            found = [bytes(record) for record in stream]
    assert set(seen) == {"reading", "writing"}
    assert sorted(found) == sorted(chain(*records(old)))
