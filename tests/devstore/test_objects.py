from __future__ import annotations

import pytest

from streamrec.devstore.objects import MemoryObjects, StoredObject, digest, split_name
from tests.support import asynchronous


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
