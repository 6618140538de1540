from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING
from unittest import mock

import crc32c
import pytest

from streamrec.devstore import directory
from streamrec.devstore.directory import DirectoryObjects
from streamrec.devstore.errors import Refusal
from streamrec.devstore.objects import digest
from tests.support import asynchronous

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def objects(root: Path) -> DirectoryObjects:
    return DirectoryObjects(root)


def test_objects_are_files(objects: DirectoryObjects, root: Path) -> None:
    objects["b/a/k"] = b"data"
    assert (root / "b/a/k").read_bytes() == b"data"


@asynchronous
async def test_files_that_others_wrote_are_objects(objects: DirectoryObjects, root: Path) -> None:
    (root / "b/deep/er").mkdir(parents=True)
    (root / "b/deep/er/k").write_bytes(b"data")
    assert dict(objects) == {"b/deep/er/k": b"data"}
    stored = await objects.describe("b", "deep/er/k")
    assert (stored.size, stored.etag) == (4, digest(b"data"))
    assert stored.modified == pytest.approx((root / "b/deep/er/k").stat().st_mtime)


@asynchronous
async def test_a_file_is_hashed_once(objects: DirectoryObjects, root: Path) -> None:
    (root / "b").mkdir()
    (root / "b/k").write_bytes(b"data")
    with mock.patch.object(directory, "_digests_of", return_value=("e", 7)) as hashing:
        found = await asyncio.gather(*(objects.describe("b", "k") for _ in range(8)))
    assert {(stored.etag, stored.crc32c) for stored in found} == {("e", 7)}
    assert hashing.call_count == 1


@asynchronous
async def test_a_changed_file_is_hashed_again(objects: DirectoryObjects, root: Path) -> None:
    (root / "b").mkdir()
    file = root / "b/k"
    file.write_bytes(b"old!")
    assert (await objects.describe("b", "k")).etag == digest(b"old!")
    file.write_bytes(b"new!")
    os.utime(file, ns=(1, 1))
    stored = await objects.describe("b", "k")
    assert (stored.etag, stored.modified) == (digest(b"new!"), 1e-9)


@asynchronous
async def test_what_the_store_wrote_is_not_hashed_again(objects: DirectoryObjects) -> None:
    objects.write("b", "k", b"data", {"X-Amz-Meta-A": "b"}, etag="given-2")
    with mock.patch.object(directory, "_digests_of", side_effect=AssertionError):
        stored = await objects.describe("b", "k")
    assert (stored.etag, stored.headers) == ("given-2", {"X-Amz-Meta-A": "b"})


def test_large_files_are_hashed_in_slices(tmp_path: Path) -> None:
    data = bytes(range(256)) * 5000
    file = tmp_path / "k"
    file.write_bytes(data)
    with mock.patch.object(directory, "HASHED_SLICE", 1000):
        assert directory._digests_of(file) == (digest(data), crc32c.crc32c(data))


@pytest.mark.parametrize(
    "name", ["b/../k", "b/./k", "b/a//k", "b//k", "b/a/", "../b/k", "./k", ".unfinished/k", "b/\0"]
)
def test_names_that_are_no_files_are_refused(objects: DirectoryObjects, name: str) -> None:
    with pytest.raises(Refusal, match="InvalidArgument"):
        objects[name] = b""


def test_a_name_cannot_be_file_and_directory(objects: DirectoryObjects) -> None:
    objects["b/a/k"] = b""
    with pytest.raises(Refusal, match="OperationAborted"):
        objects["b/a"] = b""
    with pytest.raises(Refusal, match="OperationAborted"):
        objects["b/a/k/x"] = b""


def test_a_directory_is_no_object(objects: DirectoryObjects) -> None:
    objects["b/a/k"] = b""
    with pytest.raises(KeyError):
        objects["b/a"]


def test_removing_leaves_no_empty_directories(objects: DirectoryObjects, root: Path) -> None:
    objects["b/x/y/one"] = b""
    objects["b/x/two"] = b""
    del objects["b/x/y/one"]
    assert sorted(path.name for path in (root / "b").rglob("*")) == ["two", "x"]
    del objects["b/x/two"]
    assert list((root / "b").iterdir()) == []
    assert objects.buckets() == ["b"]


def test_a_write_leaves_nothing_unfinished(objects: DirectoryObjects, root: Path) -> None:
    objects["b/k"] = b"data"
    assert list((root / ".unfinished").iterdir()) == []
    assert objects.buckets() == ["b"]


def test_a_bucket_with_empty_directories_is_empty(objects: DirectoryObjects, root: Path) -> None:
    (root / "b/x/y").mkdir(parents=True)
    assert objects.keys_of("b") == []
    objects.delete_bucket("b")
    assert not (root / "b").exists()


def test_a_name_that_is_no_utf8_has_no_key(objects: DirectoryObjects, root: Path) -> None:
    (root / "b").mkdir()
    (root / "b" / os.fsdecode(b"\xff")).touch()
    (root / "b" / "ok").touch()
    assert objects.keys_of("b") == ["ok"]
