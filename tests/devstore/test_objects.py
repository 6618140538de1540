from __future__ import annotations

import asyncio
import hashlib
import json
import os
from typing import TYPE_CHECKING, Any
from unittest import mock

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.devstore import DevStore, Recipe, SyntheticObjects
from streamrec.devstore import objects as backends
from streamrec.devstore.objects import (
    DirectoryObjects,
    MemoryObjects,
    StoredObject,
    digest,
    split_name,
)
from streamrec.devstore.refusals import Refusal
from streamrec.errors import ConfigError
from streamrec.formats.shards.tfrecord import FrameScanner, frame
from tests.devstore.test_main import fetch, running
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


FIRST, SECOND = b"abc", b"0123456789"


@pytest.fixture
def templates(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / "first", tmp_path / "second"]
    for path, content in zip(paths, (FIRST, SECOND), strict=True):
        path.write_bytes(content)
    return paths


@pytest.fixture
def synthetic(templates: list[Path]) -> SyntheticObjects:
    recipe = Recipe(templates=templates, name="s-{:02}", objects=3, copies=4)
    return SyntheticObjects({"b": recipe})


def read_all(synthetic: SyntheticObjects, key: str, start: int, stop: int) -> bytes:
    """Read all as the server does: again from the end of the last piece."""
    content = synthetic.open("b", key)
    pieces = []
    while start < stop:
        pieces.append(bytes(content.read(start, stop)))
        assert 0 < len(pieces[-1]) <= stop - start
        start += len(pieces[-1])
    content.close()
    return b"".join(pieces)


def test_objects_take_turns_with_the_templates(synthetic: SyntheticObjects) -> None:
    assert synthetic.buckets() == ["b"]
    assert synthetic.keys_of("b") == ["s-00", "s-01", "s-02"]
    assert dict(synthetic) == {
        "b/s-00": FIRST * 4,
        "b/s-01": SECOND * 4,
        "b/s-02": FIRST * 4,
    }


def test_keys_are_sorted_where_numbers_are_not_padded(templates: list[Path]) -> None:
    made = SyntheticObjects({"b": Recipe(templates=templates, name="{}", objects=11)})
    assert made.keys_of("b")[:3] == ["0", "1", "10"]
    assert made["b/10"] == FIRST


@given(st.data())
def test_any_range_is_that_of_the_whole(tmp_path_factory: Any, data: st.DataObject) -> None:
    content = data.draw(st.binary(min_size=1, max_size=20))
    copies = data.draw(st.integers(1, 5))
    path = tmp_path_factory.getbasetemp() / "template"
    path.write_bytes(content)
    made = SyntheticObjects({"b": Recipe(templates=[path], name="{}", objects=1, copies=copies)})
    start = data.draw(st.integers(0, len(content) * copies))
    stop = data.draw(st.integers(start, len(content) * copies))
    assert read_all(made, "0", start, stop) == (content * copies)[start:stop]


def test_one_read_gives_no_more_than_a_piece(synthetic: SyntheticObjects) -> None:
    with mock.patch.object(backends, "LARGEST_PIECE", 2):
        assert bytes(synthetic.open("b", "s-01").read(1, 9)) == SECOND[1:3]
        assert read_all(synthetic, "s-01", 3, 27) == (SECOND * 4)[3:27]


def test_a_shard_repeated_is_a_shard(tmp_path: Path) -> None:
    import numpy as np

    path = tmp_path / "shard"
    path.write_bytes(frame(b"one") + frame(b"two"))
    made = SyntheticObjects({"b": Recipe(templates=[path], name="{}", objects=1, copies=5)})
    data = np.frombuffer(made["b/0"], np.uint8)
    blocks, consumed = FrameScanner(url="b/0").scan(data, more=False)
    assert consumed == len(data)
    assert sum(len(block) for block in blocks) == 10


@asynchronous
async def test_a_template_is_hashed_once(synthetic: SyntheticObjects) -> None:
    with mock.patch.object(hashlib, "md5", side_effect=hashlib.md5) as md5:
        first = await synthetic.describe("b", "s-00")
        third = await synthetic.describe("b", "s-02")
    assert first == third
    assert first.size == len(FIRST) * 4
    assert md5.call_count == 2  # the template, and what so many copies of it have for an ETag


@asynchronous
async def test_etags_tell_objects_of_other_content_apart(templates: list[Path]) -> None:
    made = SyntheticObjects(
        {
            "a": Recipe(templates=templates, name="{}", objects=2),
            "b": Recipe(templates=templates, name="{}", objects=2, copies=2),
        }
    )
    names = [("a", "0"), ("a", "1"), ("b", "0"), ("b", "1")]
    stored = await asyncio.gather(*(made.describe(*name) for name in names))
    assert len({one.etag for one in stored}) == 4


@pytest.mark.parametrize(
    "change",
    [
        lambda synthetic: synthetic.write("b", "k", b""),
        lambda synthetic: synthetic.__delitem__("b/s-00"),
        lambda synthetic: synthetic.create_bucket("c"),
    ],
    ids=["write", "remove", "create bucket"],
)
def test_nothing_synthetic_can_be_changed(
    synthetic: SyntheticObjects, change: Callable[[SyntheticObjects], object]
) -> None:
    with pytest.raises(Refusal) as caught:
        change(synthetic)
    assert (caught.value.status, caught.value.code) == (405, "MethodNotAllowed")
    assert len(synthetic) == 3


def test_a_bucket_that_is_there_may_be_created(synthetic: SyntheticObjects) -> None:
    synthetic.create_bucket("b")


@pytest.mark.parametrize("name", ["b/s-03", "b/other", "c/s-00"])
@asynchronous
async def test_what_is_missing_is_not_found(synthetic: SyntheticObjects, name: str) -> None:
    bucket, _, key = name.partition("/")
    with pytest.raises(KeyError):
        await synthetic.describe(bucket, key)
    with pytest.raises(KeyError):
        synthetic.open(bucket, key)
    with pytest.raises(KeyError):
        synthetic[name]


def test_an_empty_template_is_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_bytes(b"")
    with pytest.raises(ConfigError, match="empty; name a file that holds a shard"):
        SyntheticObjects({"b": Recipe(templates=[empty], objects=1)})


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ([], "JSON object of recipes"),
        ({"b": 3}, "JSON object of recipes"),
        ({"b": {"templates": ["t"], "objects": 1, "name": "same"}}, "holds no number"),
        ({"b": {"templates": ["t"], "objects": 1, "name": "{:q}"}}, "holds no number"),
        ({"b": {"templates": ["t"], "objects": 1, "name": "{who}"}}, "holds no number"),
        ({"b": {"templates": [], "objects": 1}}, "templates"),
        ({"b": {"templates": ["t"], "object": 1}}, "did you mean 'objects'"),
    ],
    ids=["list", "number", "no number", "format", "field", "no templates", "misspelt"],
)
def test_a_wrong_recipe_is_refused(plain: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SyntheticObjects.from_json(plain)


def test_a_store_serves_them(synthetic: SyntheticObjects, client_of: Callable[..., Any]) -> None:
    with DevStore(objects=synthetic) as store:
        s3 = client_of(store)
        listed = s3.list_objects_v2(Bucket="b", Prefix="s-0")["Contents"]
        answer = s3.get_object(Bucket="b", Key="s-01", Range="bytes=8-21")
        assert [found["Size"] for found in listed] == [12, 40, 12]
        assert answer["Body"].read() == (SECOND * 4)[8:22]


@asynchronous
async def test_their_bodies_take_their_size_over_the_rate(tmp_path: Path) -> None:
    naps: list[float] = []

    async def sleep(seconds: float) -> None:
        naps.append(seconds)

    path = tmp_path / "template"
    path.write_bytes(bytes(70_000))  # a slice reaches behind the end of a copy
    synthetic = SyntheticObjects({"b": Recipe(templates=[path], name="{}", objects=1, copies=10)})
    store = DevStore(
        objects=synthetic,
        anonymous=True,
        bandwidth=10e6,
        sleep=sleep,
        clock=lambda: 0.0,
    )
    async with store, aiohttp.ClientSession() as session, session.get(store.url("b/0")) as answer:
        assert len(await answer.read()) == 700_000
    assert naps[-1] == pytest.approx(0.07)  # the clock stands: naps add up to this


def test_the_process_serves_them(templates: list[Path], tmp_path: Path) -> None:
    recipes = tmp_path / "recipes.json"
    recipe = {"templates": [str(path) for path in templates], "name": "{:03}", "objects": 2}
    recipes.write_text(json.dumps({"b": recipe}))
    with running(f"--synthetic={recipes}", "--anonymous", "--warm") as (_, line):
        assert fetch(line["endpoint"] + "/b/001") == SECOND


@pytest.fixture
def directory(tmp_path: Path) -> DirectoryObjects:
    (tmp_path / "b/deep/er").mkdir(parents=True)
    (tmp_path / "b/deep/er/k").write_bytes(b"data")
    return DirectoryObjects(tmp_path)


@asynchronous
async def test_files_are_objects(directory: DirectoryObjects) -> None:
    assert dict(directory) == {"b/deep/er/k": b"data"}
    stored = await directory.describe("b", "deep/er/k")
    assert (stored.size, stored.etag) == (4, digest(b"data"))
    assert stored.modified == pytest.approx((directory.root / "b/deep/er/k").stat().st_mtime)


@asynchronous
async def test_a_file_is_hashed_once(directory: DirectoryObjects) -> None:
    first = await directory.describe("b", "deep/er/k")
    with mock.patch.object(backends, "_describe", side_effect=AssertionError):
        assert await directory.describe("b", "deep/er/k") is first


@asynchronous
async def test_a_changed_file_is_hashed_again(directory: DirectoryObjects) -> None:
    before = await directory.describe("b", "deep/er/k")
    file = directory.root / "b/deep/er/k"
    file.write_bytes(b"new!")
    os.utime(file, ns=(1, 1))
    after = await directory.describe("b", "deep/er/k")
    assert (after.etag, after.modified) == (digest(b"new!"), 1e-9)
    assert after.generation != before.generation


@pytest.mark.parametrize(
    "name",
    ["b/../b/k", "b/./k", "b/a//k", "b//k", "b/a/", "../b/k", "./k", "b/\0", "b/deep", "c/k"],
)
@asynchronous
async def test_names_that_are_no_files_are_missing(directory: DirectoryObjects, name: str) -> None:
    (directory.root / "b/k").touch()
    bucket, _, key = name.partition("/")
    with pytest.raises(KeyError):
        directory[name]
    with pytest.raises(KeyError):
        directory.open(bucket, key)
    with pytest.raises(KeyError):
        await directory.describe(bucket, key)


@pytest.mark.parametrize("bucket", ["c", "..", "."])
def test_a_bucket_that_is_missing(directory: DirectoryObjects, bucket: str) -> None:
    with pytest.raises(KeyError):
        directory.keys_of(bucket)


def test_a_prefix_keeps_all_keys_that_begin_with_it_in_a_directory(
    directory: DirectoryObjects,
) -> None:
    keys = ["a-b", "a/b/1", "a/b/2", "a/c", "b", "deep/er/k"]
    (directory.root / "b/a/b").mkdir(parents=True)
    for key in keys[:-1]:
        (directory.root / "b" / key).touch()
    for prefix in ("", "a", "a/", "a/b", "a/b/", "a/b/1", "b", "x", "a/b/1/x", "../b", "//", "x/"):
        found = directory.keys_of("b", prefix)
        assert [key for key in found if key.startswith(prefix)] == [
            key for key in keys if key.startswith(prefix)
        ]
        assert found == sorted(found)


def test_a_name_that_is_no_utf8_has_no_key(directory: DirectoryObjects) -> None:
    (directory.root / "b" / os.fsdecode(b"\xff")).touch()
    assert directory.keys_of("b") == ["deep/er/k"]


def test_ranges_are_read_from_the_file_that_was_opened(directory: DirectoryObjects) -> None:
    content = directory.open("b", "deep/er/k")
    (directory.root / "b/deep/er/k").unlink()
    assert content.read(1, 3) == b"at"
    content.close()


def test_nothing_can_be_changed(directory: DirectoryObjects) -> None:
    directory.create_bucket("b")
    with pytest.raises(Refusal, match="405"):
        directory.create_bucket("c")
    with pytest.raises(Refusal, match="405"):
        directory["b/k"] = b""
    with pytest.raises(Refusal, match="405"):
        del directory["b/deep/er/k"]


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
