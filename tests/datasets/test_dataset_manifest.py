from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

import streamrec as sr
from streamrec.datasets.dataset_manifest import (
    IndexedShard,
    Manifest,
    ShardFacts,
    TaskPart,
    WriteSettings,
)
from streamrec.devstore import DevStore
from streamrec.errors import ConfigError
from streamrec.plan.order.shard_names import ShardNames, Task
from tests.cli.support import streamrec
from tests.sources.folders import CLASSES, picture_folder
from tests.stores.http_server import serving
from tests.support import asynchronous

if TYPE_CHECKING:
    from pathlib import Path


PETS = {"cat": 0, "dog": 1}
FINE = {"fine": {"tabby": 0, "husky": 1}, "coarse": {"dog": 0, "cat": 1}}


def write(place: object, labels: Any = None, **settings: Any) -> None:
    with sr.ShardedWriter(str(place), shards=2, labels=labels, **settings) as writer:
        writer.write_many({"fine": n % 2, "coarse": n % 2} for n in range(4))


@pytest.mark.parametrize("suffix", ["", ".tfrecord", ".tfrecord.gz"])
def test_what_the_writer_was_given_comes_back(tmp_path: Path, suffix: str) -> None:
    write(tmp_path / f"x{suffix}", PETS)
    assert sr.labels(f"{tmp_path}/x-*{suffix}") == PETS
    assert sr.labels(sr.shards(f"{tmp_path}/x-*{suffix}")) == PETS
    assert sr.labels((tmp_path / f"x-00001-of-00002{suffix}").as_uri(), "fine") == PETS


def test_in_any_filesystem(tmp_path: Path) -> None:
    write(f"memory://{tmp_path.name}/x", PETS)
    assert sr.labels(f"memory://{tmp_path.name}/x-*") == PETS


def test_in_s3() -> None:
    with DevStore() as store:
        options = store.storage_options
        store.put("pets/keep", b"")
        write("s3://pets/x", PETS, storage_options=options)
        assert sr.labels("s3://pets/x-*", storage_options=options) == PETS


@asynchronous
async def test_by_http(tmp_path: Path) -> None:
    await asyncio.to_thread(write, tmp_path / "x", PETS)

    async def answer(request: web.Request) -> web.FileResponse:
        return web.FileResponse(tmp_path / request.match_info["name"])

    async with serving(answer) as url:
        source = f"{url}/x-{{00000..00001}}-of-00002"
        assert await asyncio.to_thread(sr.labels, source) == PETS


SHARDS = ["x-00000-of-00002", "x-00001-of-00002"]


@asynchronous
async def test_the_manifest_is_read_with_a_signature_that_all_shards_share(tmp_path: Path) -> None:
    await asyncio.to_thread(write, tmp_path / "x", PETS)

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.query_string != "policy=a/b&signature=c":
            return web.Response(status=403)
        return web.FileResponse(tmp_path / request.match_info["name"])

    async with serving(answer) as url:
        source = [f"{url}/{name}?policy=a/b&signature=c" for name in SHARDS]
        assert await asyncio.to_thread(sr.labels, source) == PETS


@asynchronous
async def test_beside_shards_with_signatures_of_their_own_the_error_says_why(
    tmp_path: Path,
) -> None:
    await asyncio.to_thread(write, tmp_path / "x", PETS)

    async def answer(request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        if request.query_string != f"signature=s3cret{name}":
            return web.Response(status=403)
        return web.FileResponse(tmp_path / name)

    async with serving(answer) as url:
        for names in (SHARDS, SHARDS[:1]):
            source = [f"{url}/{name}?signature=s3cret{name}" for name in names]
            with pytest.raises(ConfigError, match="a URL opens one object") as caught:
                await asyncio.to_thread(sr.labels, source)
            assert "s3cret" not in str(caught.value)


def test_of_several_features(tmp_path: Path) -> None:
    write(tmp_path / "x", FINE)
    found = {name: sr.labels(f"{tmp_path}/x-*", name) for name in FINE}
    assert found == FINE
    with pytest.raises(ConfigError, match="several features have label names; name one of 'coar"):
        sr.labels(f"{tmp_path}/x-*")
    with pytest.raises(ConfigError, match="'fin' has no label names; name one of 'coarse', 'fine"):
        sr.labels(f"{tmp_path}/x-*", "fin")


def test_one_feature_need_not_be_named(tmp_path: Path) -> None:
    write(tmp_path / "x", {"fine": PETS})
    assert sr.labels(f"{tmp_path}/x-*") == PETS
    with pytest.raises(ConfigError, match="'coarse' has no label names; name one of 'fine'"):
        sr.labels(f"{tmp_path}/x-*", "coarse")


def test_a_feature_that_the_records_lack(tmp_path: Path) -> None:
    write(tmp_path / "x", PETS)
    with pytest.raises(ConfigError, match="'nose' has no label names; name one of 'coarse', 'fi"):
        sr.labels(f"{tmp_path}/x-*", "nose")


def test_several_datasets(tmp_path: Path) -> None:
    write(tmp_path / "a", PETS)
    write(tmp_path / "b", {"fish": 2})
    write(tmp_path / "c", {"cat": 1})
    both = [f"{tmp_path}/a-*", f"{tmp_path}/b-*"]
    assert sr.labels(both) == {**PETS, "fish": 2}
    with pytest.raises(ConfigError, match=r"class 'cat' is 0 in one, and 1 in .*/c\.st"):
        sr.labels([*both, f"{tmp_path}/c-*"])


@pytest.mark.parametrize("given", [None, {}])
def test_a_dataset_without_label_names(tmp_path: Path, given: Any) -> None:
    write(tmp_path / "x", given)
    with pytest.raises(ConfigError, match=r"x.streamrec-manifest.json: the manifest has no label"):
        sr.labels(f"{tmp_path}/x-*")


def test_without_a_manifest(tmp_path: Path) -> None:
    write(tmp_path / "x", PETS)
    manifest = tmp_path / "x.streamrec-manifest.json"
    manifest.write_bytes(b"{")
    with pytest.raises(ConfigError, match="this manifest is damaged; write the dataset anew"):
        sr.labels(f"{tmp_path}/x-*")
    manifest.unlink()
    with pytest.raises(ConfigError, match="there is no manifest, so no label names; streamrec wr"):
        sr.labels(f"{tmp_path}/x-*")


def test_shards_with_other_names(tmp_path: Path) -> None:
    (tmp_path / "y").write_bytes(b"")
    with pytest.raises(ConfigError, match="not all shards have names such as x-00000-of-00004"):
        sr.labels(str(tmp_path / "y"))


def test_of_a_folder_of_pictures(tmp_path: Path) -> None:
    picture_folder(tmp_path / "pictures")
    outcome = streamrec("write", f"{tmp_path}/pictures", f"{tmp_path}/out/", "--shards", "1")
    assert outcome.code == 0, outcome
    found = sr.labels(f"{tmp_path}/out/*-of-*", "image/class/label")
    assert found == {name: number for number, name in enumerate(CLASSES)}


SETTINGS = WriteSettings(
    shards=2, shard_bytes=None, tasks=1, compression="none", index=True, labels={"a": 0}, source="v"
)
SHARD = IndexedShard(
    name="x", records=3, bytes=90, begins=[0, 60], first_records=[0, 2], crcs=[7, 8]
)
PART = TaskPart(settings=SETTINGS, features={"id": "int64"}, shards=[SHARD])
MANIFEST = Manifest(
    written_by="streamrec", records=3, bytes=90, features={"id": "int64"}, settings=SETTINGS,
    tasks=[3], shards=[ShardFacts(name="x", records=3, bytes=90)],
)  # fmt: skip


@pytest.mark.parametrize("document", [PART, MANIFEST, SETTINGS, SHARD], ids=repr)
def test_round_trip(document: Any) -> None:
    data = document.encode()
    assert type(document).parse(data) == document
    assert data == document.encode()


@given(data=st.binary(max_size=30), at=st.integers(0, 200))
def test_damaged_bytes_are_none(data: bytes, at: int) -> None:
    assert TaskPart.parse(data) is None
    whole = PART.encode()
    assert TaskPart.parse(whole[: min(at, len(whole) - 2)]) is None


def changed(document: Any, *path: str | int, to: Any) -> bytes:
    """Return a document with another value at a place."""
    data = json.loads(document.encode())
    parent = data
    for name in path[:-1]:
        parent = parent[name]
    parent[path[-1]] = to
    return json.dumps(data).encode()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("version",), True),
        (("records",), "3"),
        (("records",), 4),
        (("bytes",), 91),
        (("bytes",), 90.0),
        (("tasks",), []),
        (("tasks",), [2, 1]),
        (("tasks",), [4]),
        (("shards",), []),
        (("shards", 0, "records"), -3),
        (("settings", "shards"), 10**12),
        (("settings", "tasks"), 0),
        (("features", "id"), "int32"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_none(path: Any, value: Any) -> None:
    assert Manifest.parse(changed(MANIFEST, *path, to=value)) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("records", 1),
        ("records", 9),
        ("bytes", 60),
        ("begins", [0, 80]),
        ("begins", [0, 1 << 64]),
        ("first_records", [0]),
        ("crcs", [7, 1 << 32]),
        ("crcs", [7]),
    ],
)
def test_a_record_of_a_shard_that_no_index_could_tell_is_none(name: str, value: Any) -> None:
    assert TaskPart.parse(changed(PART, "shards", 0, name, to=value)) is None


NAMES = ShardNames.parse("x.tfrecord")
FREE = SETTINGS.model_copy(update={"shards": None})


@pytest.mark.parametrize(
    ("settings", "complete", "names", "is_own"),
    [
        (SETTINGS, True, [NAMES.shard(0, 2), NAMES.shard(1, 2)], True),
        (SETTINGS, True, [NAMES.shard(0, 2)], False),
        (SETTINGS, False, [NAMES.shard(0, 2)], True),
        (SETTINGS, False, [NAMES.shard(0, 2), NAMES.shard(0, 2)], False),
        (SETTINGS, False, [NAMES.shard(0, 3)], False),
        (FREE, True, [NAMES.staged(Task(0, 1), n) for n in (0, 1)], True),
        (FREE, True, [NAMES.staged(Task(0, 1), n) for n in (0, 0)], False),
        (FREE, True, [NAMES.staged(Task(0, 2), 0)], False),
    ],
)
def test_a_task_names_each_of_its_shards_once(
    settings: WriteSettings, complete: bool, names: list[str], is_own: bool
) -> None:
    shards = [SHARD.model_copy(update={"name": name}) for name in names]
    part = TaskPart(settings=settings, complete=complete, shards=shards)
    assert part.has_own_names(NAMES, Task(0, 1)) == is_own


def test_the_shards_of_a_split_are_called_so() -> None:
    mine = SETTINGS.model_copy(update={"source": {"name": "n", "split": "train"}})
    there = mine.model_copy(update={"shards": 6})
    assert mine.difference(there).startswith(
        "the part of shards that the split 'train' gets is 6 in that one, and 2 in this one"
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        (
            {"shards": 3, "index": False},
            "shards is 3 in that one, and 2 in this one; index is False in that one, ",
        ),
        ({"labels": None}, "it has other labels"),
        ({"source": "w"}, "it has another source"),
    ],
)
def test_differences(changes: dict[str, Any], words: str) -> None:
    found = SETTINGS.difference(SETTINGS.model_copy(update=changes))
    assert found.startswith(words)
    assert bool(found) == bool(words)


def test_differences_of_sources() -> None:
    here, there = (
        SETTINGS.model_copy(update={"source": source})
        for source in ({"table": "a", "digest": 1, "key": None}, {"table": "a", "digest": 2})
    )
    assert here.difference(there) == "its source differs in digest"


@pytest.mark.parametrize("sizes", [{}, {"x": 89}, {"y": 90}])
def test_a_shard_that_is_damaged(sizes: dict[str, int]) -> None:
    assert MANIFEST.find_damaged(sizes) == "x"
    assert MANIFEST.find_damaged({"x": 90}) is None


def test_another_version_is_none() -> None:
    assert Manifest.parse(MANIFEST.encode().replace(b'"version": 1', b'"version": 2')) is None
    assert Manifest.parse(None) is None
