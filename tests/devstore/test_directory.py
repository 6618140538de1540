from __future__ import annotations

import os
from typing import TYPE_CHECKING
from unittest import mock

import pytest

from streamrec.devstore import directory
from streamrec.devstore.directory import DirectoryObjects
from streamrec.devstore.errors import Refusal
from streamrec.devstore.objects import digest
from tests.support import asynchronous

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def objects(tmp_path: Path) -> DirectoryObjects:
    (tmp_path / "b/deep/er").mkdir(parents=True)
    (tmp_path / "b/deep/er/k").write_bytes(b"data")
    return DirectoryObjects(tmp_path)


@asynchronous
async def test_files_are_objects(objects: DirectoryObjects) -> None:
    assert dict(objects) == {"b/deep/er/k": b"data"}
    stored = await objects.describe("b", "deep/er/k")
    assert (stored.size, stored.etag) == (4, digest(b"data"))
    assert stored.modified == pytest.approx((objects.root / "b/deep/er/k").stat().st_mtime)


@asynchronous
async def test_a_file_is_hashed_once(objects: DirectoryObjects) -> None:
    first = await objects.describe("b", "deep/er/k")
    with mock.patch.object(directory, "_stored", side_effect=AssertionError):
        assert await objects.describe("b", "deep/er/k") is first


@asynchronous
async def test_a_changed_file_is_hashed_again(objects: DirectoryObjects) -> None:
    before = await objects.describe("b", "deep/er/k")
    file = objects.root / "b/deep/er/k"
    file.write_bytes(b"new!")
    os.utime(file, ns=(1, 1))
    after = await objects.describe("b", "deep/er/k")
    assert (after.etag, after.modified) == (digest(b"new!"), 1e-9)
    assert after.generation != before.generation


@pytest.mark.parametrize(
    "name",
    ["b/../b/k", "b/./k", "b/a//k", "b//k", "b/a/", "../b/k", "./k", "b/\0", "b/deep", "c/k"],
)
@asynchronous
async def test_names_that_are_no_files_are_missing(objects: DirectoryObjects, name: str) -> None:
    (objects.root / "b/k").touch()
    bucket, _, key = name.partition("/")
    with pytest.raises(KeyError):
        objects[name]
    with pytest.raises(KeyError):
        objects.open(bucket, key)
    with pytest.raises(KeyError):
        await objects.describe(bucket, key)


@pytest.mark.parametrize("bucket", ["c", "..", "."])
def test_a_bucket_that_is_missing(objects: DirectoryObjects, bucket: str) -> None:
    with pytest.raises(KeyError):
        objects.keys_of(bucket)


def test_a_prefix_keeps_all_keys_that_begin_with_it(objects: DirectoryObjects) -> None:
    keys = ["a-b", "a/b/1", "a/b/2", "a/c", "b", "deep/er/k"]
    (objects.root / "b/a/b").mkdir(parents=True)
    for key in keys[:-1]:
        (objects.root / "b" / key).touch()
    for prefix in ("", "a", "a/", "a/b", "a/b/", "a/b/1", "b", "x", "a/b/1/x", "../b", "//", "x/"):
        found = objects.keys_of("b", prefix)
        assert [key for key in found if key.startswith(prefix)] == [
            key for key in keys if key.startswith(prefix)
        ]
        assert found == sorted(found)


def test_a_name_that_is_no_utf8_has_no_key(objects: DirectoryObjects) -> None:
    (objects.root / "b" / os.fsdecode(b"\xff")).touch()
    assert objects.keys_of("b") == ["deep/er/k"]


def test_ranges_are_read_from_the_file_that_was_opened(objects: DirectoryObjects) -> None:
    content = objects.open("b", "deep/er/k")
    (objects.root / "b/deep/er/k").unlink()
    assert content.read(1, 3) == b"at"
    content.close()


def test_nothing_can_be_changed(objects: DirectoryObjects) -> None:
    objects.create_bucket("b")
    with pytest.raises(Refusal, match="405"):
        objects.create_bucket("c")
    with pytest.raises(Refusal, match="405"):
        objects["b/k"] = b""
    with pytest.raises(Refusal, match="405"):
        del objects["b/deep/er/k"]
