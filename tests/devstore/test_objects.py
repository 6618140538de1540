from __future__ import annotations

import os
from typing import TYPE_CHECKING
from unittest import mock

import pytest

from streamrec.devstore import objects
from streamrec.devstore.errors import Refusal
from streamrec.devstore.objects import (
    DirectoryObjects,
    MemoryObjects,
    StoredObject,
    digest,
    split_name,
)
from tests.support import asynchronous

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def objects_directory(tmp_path: Path) -> DirectoryObjects:
    (tmp_path / "b/deep/er").mkdir(parents=True)
    (tmp_path / "b/deep/er/k").write_bytes(b"data")
    return DirectoryObjects(tmp_path)


@asynchronous
async def test_files_are_objects(objects_directory: DirectoryObjects) -> None:
    assert dict(objects_directory) == {"b/deep/er/k": b"data"}
    stored = await objects_directory.describe("b", "deep/er/k")
    assert (stored.size, stored.etag) == (4, digest(b"data"))
    assert stored.modified == pytest.approx(
        (objects_directory.root / "b/deep/er/k").stat().st_mtime
    )


@asynchronous
async def test_a_file_is_hashed_once(objects_directory: DirectoryObjects) -> None:
    first = await objects_directory.describe("b", "deep/er/k")
    with mock.patch.object(directory, "_stored", side_effect=AssertionError):
        assert await objects_directory.describe("b", "deep/er/k") is first


@asynchronous
async def test_a_changed_file_is_hashed_again(objects_directory: DirectoryObjects) -> None:
    before = await objects_directory.describe("b", "deep/er/k")
    file = objects_directory.root / "b/deep/er/k"
    file.write_bytes(b"new!")
    os.utime(file, ns=(1, 1))
    after = await objects_directory.describe("b", "deep/er/k")
    assert (after.etag, after.modified) == (digest(b"new!"), 1e-9)
    assert after.generation != before.generation


@pytest.mark.parametrize(
    "name",
    ["b/../b/k", "b/./k", "b/a//k", "b//k", "b/a/", "../b/k", "./k", "b/\0", "b/deep", "c/k"],
)
@asynchronous
async def test_names_that_are_no_files_are_missing(
    objects_directory: DirectoryObjects, name: str
) -> None:
    (objects_directory.root / "b/k").touch()
    bucket, _, key = name.partition("/")
    with pytest.raises(KeyError):
        objects_directory[name]
    with pytest.raises(KeyError):
        objects_directory.open(bucket, key)
    with pytest.raises(KeyError):
        await objects_directory.describe(bucket, key)


@pytest.mark.parametrize("bucket", ["c", "..", "."])
def test_a_bucket_that_is_missing(objects_directory: DirectoryObjects, bucket: str) -> None:
    with pytest.raises(KeyError):
        objects_directory.keys_of(bucket)


def test_a_prefix_keeps_all_keys_that_begin_with_it_directory(
    objects_directory: DirectoryObjects,
) -> None:
    keys = ["a-b", "a/b/1", "a/b/2", "a/c", "b", "deep/er/k"]
    (objects_directory.root / "b/a/b").mkdir(parents=True)
    for key in keys[:-1]:
        (objects_directory.root / "b" / key).touch()
    for prefix in ("", "a", "a/", "a/b", "a/b/", "a/b/1", "b", "x", "a/b/1/x", "../b", "//", "x/"):
        found = objects_directory.keys_of("b", prefix)
        assert [key for key in found if key.startswith(prefix)] == [
            key for key in keys if key.startswith(prefix)
        ]
        assert found == sorted(found)


def test_a_name_that_is_no_utf8_has_no_key(objects_directory: DirectoryObjects) -> None:
    (objects_directory.root / "b" / os.fsdecode(b"\xff")).touch()
    assert objects_directory.keys_of("b") == ["deep/er/k"]


def test_ranges_are_read_from_the_file_that_was_opened(objects_directory: DirectoryObjects) -> None:
    content = objects_directory.open("b", "deep/er/k")
    (objects_directory.root / "b/deep/er/k").unlink()
    assert content.read(1, 3) == b"at"
    content.close()


def test_nothing_can_be_changed(objects_directory: DirectoryObjects) -> None:
    objects_directory.create_bucket("b")
    with pytest.raises(Refusal, match="405"):
        objects_directory.create_bucket("c")
    with pytest.raises(Refusal, match="405"):
        objects_directory["b/k"] = b""
    with pytest.raises(Refusal, match="405"):
        del objects_directory["b/deep/er/k"]


@pytest.fixture
def objects() -> MemoryObjects:
    return MemoryObjects()


def test_names() -> None:
    assert split_name("b/a/k") == ("b", "a/k")
    for name in ("", "b", "b/", "/k"):
        with pytest.raises(KeyError):
            split_name(name)


def test_a_mapping_of_contents(objects: MemoryObjects) -> None:
    objects["b/k"] = b"one"
    objects["b/a/k"] = b"two"
    objects["c/k"] = b"three"
    objects["b/k"] = b"four"
    assert dict(objects) == {"b/a/k": b"two", "b/k": b"four", "c/k": b"three"}
    assert len(objects) == 3
    del objects["b/a/k"]
    assert list(objects) == ["b/k", "c/k"]
    assert "b/a/k" not in objects


def test_what_is_missing_is_a_key_error(objects: MemoryObjects) -> None:
    objects.create_bucket("b")
    for name in ("b/k", "c/k", "b"):
        with pytest.raises(KeyError):
            objects[name]
    with pytest.raises(KeyError):
        objects.keys_of("c")
    with pytest.raises(KeyError):
        del objects["b/k"]
    with pytest.raises(KeyError):
        objects.open("b", "k")


@asynchronous
async def test_missing_objects_have_no_description(objects: MemoryObjects) -> None:
    objects.create_bucket("b")
    with pytest.raises(KeyError):
        await objects.describe("b", "k")


def test_buckets_are_made_once(objects: MemoryObjects) -> None:
    for name in ("b", "b", "a"):
        objects.create_bucket(name)
    assert objects.buckets() == ["a", "b"]


def test_keys_are_sorted_by_their_bytes(objects: MemoryObjects) -> None:
    keys = ["a-b", "a/b", "a0", "b", "ä", "\U0001f600", "\uff5e"]
    for key in keys:
        objects[f"b/{key}"] = b""
    assert objects.keys_of("b") == sorted(keys, key=str.encode)


def test_a_prefix_keeps_all_keys_that_begin_with_it(objects: MemoryObjects) -> None:
    keys = ["a/b/1", "a/b/2", "a/c", "b"]
    for key in keys:
        objects[f"b/{key}"] = b""
    for prefix in ("", "a", "a/", "a/b", "a/b/", "a/b/1", "b", "x", "a/b/1/x", "../b", "//"):
        expected = [key for key in keys if key.startswith(prefix)]
        found = objects.keys_of("b", prefix)
        assert [key for key in found if key.startswith(prefix)] == expected
        assert found == sorted(found)


@asynchronous
async def test_the_description_is_that_of_the_write(objects: MemoryObjects) -> None:
    written = objects.write("b", "k", b"data", {"Content-Type": "text/plain"})
    assert await objects.describe("b", "k") == written
    assert written.etag == digest(b"data") == "8d777f385d3dfec8815d20f7496026dc"
    assert written.headers == {"Content-Type": "text/plain"}


def test_ranges_are_read(objects: MemoryObjects) -> None:
    objects["b/k"] = b"0123456789"
    content = objects.open("b", "k")
    assert bytes(content.read(2, 5)) == b"234"
    assert bytes(content.read(0, 10)) == b"0123456789"
    content.close()


def test_an_open_object_outlives_its_replacement(objects: MemoryObjects) -> None:
    objects["b/k"] = b"old"
    content = objects.open("b", "k")
    objects["b/k"] = b"new"
    assert bytes(content.read(0, 3)) == b"old"
    del objects["b/k"]
    assert bytes(content.read(0, 3)) == b"old"
    content.close()


def test_what_is_stored_is_a_value() -> None:
    assert StoredObject(1, "a", 2.0) == StoredObject(1, "a", 2.0, {})
