from __future__ import annotations

import json
from itertools import count
from typing import TYPE_CHECKING, Any

import fsspec
import pytest

from streamrec.datasets.merge_shards import merge_index
from streamrec.datasets.sharded_writer import ShardedWriter
from streamrec.devstore import DevStore
from streamrec.errors import AccessDenied, ConfigError, StoreError
from streamrec.formats.shards.index import Index
from streamrec.stores.base.new_object import GuardedObject, PartUpload
from streamrec.stores.blocking import Folder, new_object
from streamrec.streams.sources import read_records
from tests.datasets.datasets import manifest, names, records

if TYPE_CHECKING:
    from pathlib import Path


def write(directory: Path, task: int, tasks: int, **how: Any) -> None:
    with ShardedWriter(directory / "x", task=(task, tasks), **how) as writer:
        writer.write_many([b"%d of task %d" % (n, task) for n in range(4)])


def test_shards_by_size_are_numbered_by_task(tmp_path: Path) -> None:
    for task in (2, 0, 1):
        write(tmp_path, task, 3, shard_bytes=60)
        assert not list(tmp_path.glob("x*"))
    merge_index(tmp_path / "x")
    every = [record for shard in records(tmp_path) for record in shard]
    assert every == [b"%d of task %d" % (n, task) for task in range(3) for n in range(4)]
    assert manifest(tmp_path).tasks == [4, 4, 4]
    index = Index.parse((tmp_path / "x.streamrec-index").read_bytes(), url="x")
    assert [entry.name for entry in index.entries] == names(tmp_path)[:6]
    assert index.records == 12


def test_a_second_call_does_nothing(tmp_path: Path) -> None:
    write(tmp_path, 0, 1, shards=1)
    before = names(tmp_path)
    merge_index(tmp_path / "x")
    assert names(tmp_path) == before


def test_uploads_of_a_run_that_was_killed_are_aborted() -> None:
    with DevStore() as store:
        store.objects.create_bucket("b")
        options = store.storage_options
        for number in range(2):
            with ShardedWriter(
                "s3://b/x", shards=2, task=(number, 2), storage_options=options
            ) as writer:
                writer.write(b"record")
        for name in ("x.streamrec-index", "x-00001-of-00002", "y-00001-of-00002"):
            target = new_object(f"s3://b/{name}", options)
            target.write(bytes(9 << 20))  # as if its process had been killed here
            assert isinstance(target, GuardedObject)
            assert isinstance(target.target, PartUpload)
            target.target._wait()
        merge_index("s3://b/x", storage_options=options)
        assert [upload.key for upload in store._s3._uploads.values()] == ["y-00001-of-00002"]


def test_nothing_was_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no task has left its part"):
        merge_index(tmp_path / "x")


def test_a_task_is_missing_or_not_complete(tmp_path: Path) -> None:
    write(tmp_path, 0, 3, shards=3)
    with pytest.raises(ConfigError, match=r"2 of 3 tasks are not complete \(1, 2\)"):
        merge_index(tmp_path / "x")
    write(tmp_path, 1, 3, shards=3)
    writer = ShardedWriter(tmp_path / "x", task=(2, 3), shards=3)
    with pytest.raises(ConfigError, match=r"1 of 3 tasks are not complete \(2\)"):
        merge_index(tmp_path / "x")
    writer.discard()


def test_tasks_of_other_settings(tmp_path: Path) -> None:
    write(tmp_path, 0, 2, shards=2)
    part = next(tmp_path.glob(".x.task-*"))
    other = part.read_text().replace('"shards":2', '"shards":3')
    (tmp_path / ".x.task-00001-of-00002.streamrec-part").write_text(other)
    with pytest.raises(ConfigError, match="task 1 had other settings than task 0"):
        merge_index(tmp_path / "x")


@pytest.mark.parametrize("way", [{"shards": 2}, {"shard_bytes": 100}])
@pytest.mark.parametrize("name", ["../other", "other", "/other", ".x.task-00001-of-00002-../o"])
def test_a_record_that_names_what_its_task_did_not_write(
    tmp_path: Path, way: dict[str, Any], name: str
) -> None:
    for task in range(2):
        with ShardedWriter(tmp_path / "d/x", task=(task, 2), **way) as writer:
            writer.write(b"1")
    (tmp_path / "other").write_bytes(b"of somebody else")
    (tmp_path / "d/other").write_bytes(b"of somebody else")
    record = tmp_path / "d/.x.task-00001-of-00002.streamrec-part"
    document = json.loads(record.read_text())
    document["shards"][0]["name"] = name
    record.write_text(json.dumps(document))
    with pytest.raises(ConfigError, match="task 1 names shards that it did not write"):
        merge_index(tmp_path / "d/x")
    assert (tmp_path / "other").exists()
    assert (tmp_path / "d/other").exists()


def test_tasks_of_two_runs(tmp_path: Path) -> None:
    write(tmp_path, 0, 2, shards=2)
    part = next(tmp_path.glob(".x.task-*"))
    (tmp_path / ".x.task-00001-of-00003.streamrec-part").write_bytes(part.read_bytes())
    with pytest.raises(ConfigError, match="runs of 2 and 3 tasks left their parts"):
        merge_index(tmp_path / "x")


@pytest.mark.parametrize(("data", "message"), [(None, "is missing"), (b"x", "has another size")])
def test_a_shard_that_is_not_as_it_was_written(
    tmp_path: Path, data: bytes | None, message: str
) -> None:
    for task in range(2):
        write(tmp_path, task, 2, shards=2)
    shard = tmp_path / "x-00001-of-00002"
    shard.unlink()
    if data is not None:
        shard.write_bytes(data)
    with pytest.raises(StoreError, match=f"x-00001-of-00002: the shard {message}"):
        merge_index(tmp_path / "x")
    assert "x.streamrec-manifest.json" not in names(tmp_path)
    write(tmp_path, 1, 2, shards=2)
    merge_index(tmp_path / "x")
    assert manifest(tmp_path).records == 8


@pytest.mark.parametrize("call", ["cp_file", "rm_file"])
def test_names_that_were_given_in_part(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A last step that failed among the names is run again."""
    with ShardedWriter(f"memory://names-{call}/x", shard_bytes=60, task=(0, 2)) as writer:
        writer.write_many([b"%d of a task" % number for number in range(20)])
    with ShardedWriter(f"memory://names-{call}/x", shard_bytes=60, task=(1, 2)):
        pass
    files, names_given = type(fsspec.filesystem("memory")), count()
    work = getattr(files, call)

    def fail_later(*args: Any, **kwargs: Any) -> None:
        if next(names_given) == 5:
            raise PermissionError
        work(*args, **kwargs)

    with monkeypatch.context() as patch, pytest.raises(AccessDenied, match="0000"):
        patch.setattr(files, call, fail_later)
        merge_index(f"memory://names-{call}/x")
    merge_index(f"memory://names-{call}/x")
    left = sorted(Folder(f"memory://names-{call}/", {}).sizes())
    assert left[:10] == [f"x-{number:05}-of-00010" for number in range(10)]
    assert left[10:] == ["x.streamrec-index", "x.streamrec-manifest.json"]
    found = [bytes(r) for name in left[:10] for r in read_records(f"memory://names-{call}/{name}")]
    assert found == [b"%d of a task" % number for number in range(20)]
