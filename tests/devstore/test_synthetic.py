from __future__ import annotations

import asyncio
import hashlib
import json
from typing import TYPE_CHECKING, Any
from unittest import mock

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.devstore import DevStore, Recipe, SyntheticObjects, synthetic
from streamrec.devstore.errors import Refusal
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
def objects(templates: list[Path]) -> SyntheticObjects:
    recipe = Recipe(templates=templates, name="s-{:02}", objects=3, copies=4)
    return SyntheticObjects({"b": recipe})


def read_all(objects: SyntheticObjects, key: str, start: int, stop: int) -> bytes:
    """Read all as the server does: again from the end of the last piece."""
    content = objects.open("b", key)
    pieces = []
    while start < stop:
        pieces.append(bytes(content.read(start, stop)))
        assert 0 < len(pieces[-1]) <= stop - start
        start += len(pieces[-1])
    content.close()
    return b"".join(pieces)


def test_objects_take_turns_with_the_templates(objects: SyntheticObjects) -> None:
    assert objects.buckets() == ["b"]
    assert objects.keys_of("b") == ["s-00", "s-01", "s-02"]
    assert dict(objects) == {"b/s-00": FIRST * 4, "b/s-01": SECOND * 4, "b/s-02": FIRST * 4}


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


def test_one_read_gives_no_more_than_a_piece(objects: SyntheticObjects) -> None:
    with mock.patch.object(synthetic, "LARGEST_PIECE", 2):
        assert bytes(objects.open("b", "s-01").read(1, 9)) == SECOND[1:3]
        assert read_all(objects, "s-01", 3, 27) == (SECOND * 4)[3:27]


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
async def test_a_template_is_hashed_once(objects: SyntheticObjects) -> None:
    with mock.patch.object(hashlib, "md5", side_effect=hashlib.md5) as md5:
        first = await objects.describe("b", "s-00")
        third = await objects.describe("b", "s-02")
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
        lambda objects: objects.write("b", "k", b""),
        lambda objects: objects.__delitem__("b/s-00"),
        lambda objects: objects.create_bucket("c"),
    ],
    ids=["write", "remove", "create bucket"],
)
def test_nothing_can_be_changed(
    objects: SyntheticObjects, change: Callable[[SyntheticObjects], object]
) -> None:
    with pytest.raises(Refusal) as caught:
        change(objects)
    assert (caught.value.status, caught.value.code) == (405, "MethodNotAllowed")
    assert len(objects) == 3


def test_a_bucket_that_is_there_may_be_created(objects: SyntheticObjects) -> None:
    objects.create_bucket("b")


@pytest.mark.parametrize("name", ["b/s-03", "b/other", "c/s-00"])
@asynchronous
async def test_what_is_missing_is_not_found(objects: SyntheticObjects, name: str) -> None:
    bucket, _, key = name.partition("/")
    with pytest.raises(KeyError):
        await objects.describe(bucket, key)
    with pytest.raises(KeyError):
        objects.open(bucket, key)
    with pytest.raises(KeyError):
        objects[name]


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


def test_a_store_serves_them(objects: SyntheticObjects, client_of: Callable[..., Any]) -> None:
    with DevStore(objects=objects) as store:
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
    objects = SyntheticObjects({"b": Recipe(templates=[path], name="{}", objects=1, copies=10)})
    store = DevStore(
        objects=objects, anonymous=True, bandwidth=10e6, sleep=sleep, clock=lambda: 0.0
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
