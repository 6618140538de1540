"""Names with special characters: each function reads and writes the object of that very name."""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import fsspec
import pytest

import streamrec as sr
from streamrec.datasets.shard_source import ShardSource
from streamrec.devstore import DevStore
from streamrec.errors import ConfigError
from streamrec.formats.shards.tfrecord import frame
from tests.by_day import each_once
from tests.cli.support import streamrec

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FEATURES = {"id": sr.FixedLenFeature((), "int64")}
SIBLINGS = {
    "run[1]/x": ["run1/x"],
    "a{1,2}": ["a1", "a2"],
    "b@2": ["b-00000-of-00002", "b-00001-of-00002"],
    "c?": ["cx"],
    "d*": ["d1", "d"],
    "[!e]*{0..1}@1.r": ["f0-00000-of-00001.r"],
    " e ": ["e"],
    "%41": ["A"],
    "#h": ["h"],
    "ü": ["u"],
    "i+j": ["i j"],
}
"""Names, and those that a pattern or a decoder would take them for."""
NAMES = list(SIBLINGS)
NOT_OF_HTTP = ("c?", "%41", "#h")
"""In a URL of http these have a meaning of their own."""
EXPECTED = [b"of the name"]
WRITABLE = ["path", "file", "memory", "s3", "gs"]
CASES = each_once([*WRITABLE, "http"], NAMES)
each_case = pytest.mark.parametrize(
    ("kind", "name"), [c for c in CASES if c[0] != "http" or c[1] not in NOT_OF_HTTP]
)


@dataclass
class Place:
    """A directory of some store, with an object of each name and its siblings."""

    base: str
    options: dict[str, Any] = field(default_factory=dict)
    is_writable: bool = True

    def url(self, name: str) -> str:
        return f"{self.base}{name}"

    def cli(self) -> list[str]:
        return [f"--storage-option={name}={text}" for name, text in self.options.items()]


def contents(name: str) -> Iterator[tuple[str, bytes]]:
    yield name, frame(EXPECTED[0])
    yield from ((other, frame(b"of a sibling")) for other in SIBLINGS[name])


@pytest.fixture(scope="module")
def devstore() -> Iterator[DevStore]:
    with DevStore(anonymous=True) as store:
        store.put("names/of-no-test", b"")  # makes the bucket
        yield store


@pytest.fixture
def place(kind: str, tmp_path: Path, devstore: DevStore) -> Place:
    own = uuid.uuid4().hex
    places = {
        "path": Place(f"{tmp_path}/{own}/"),
        "file": Place(f"file://{tmp_path}/{own}/"),
        "memory": Place(f"memory://{own}/"),
        "s3": Place(f"s3://names/{own}/", devstore.storage_options),
        "gs": Place(f"gs://names/{own}/", devstore.gcs_options),
        "http": Place(devstore.url(f"names/{own}/"), is_writable=False),
    }
    return places[kind]


@pytest.fixture
def filled(place: Place, name: str, devstore: DevStore) -> Place:
    """Return the place when it has the object of the name, and its siblings."""
    own = place.base.rstrip("/").rpartition("/")[2]
    for other, data in contents(name):
        if place.options or not place.is_writable:
            devstore.put(f"names/{own}/{other}", data)
        else:
            files, path = fsspec.url_to_fs(place.base)
            files.makedirs(f"{path}/{other}".rpartition("/")[0], exist_ok=True)
            files.pipe_file(f"{path}/{other}", data)
    return place


@each_case
def test_functions_that_read(filled: Place, name: str) -> None:
    url, options = filled.url(name), filled.options
    for source in (url, [url], sr.escape(url)):
        with sr.open(source, engine="thread", storage_options=options) as stream:
            assert list(stream) == EXPECTED
    siblings = [filled.url(other) for other in SIBLINGS[name]]
    with sr.open([url, *siblings], engine="thread", storage_options=options) as stream:
        assert sorted(stream) == [b"of a sibling"] * len(siblings) + EXPECTED
    assert list(sr.read_records(url, storage_options=options)) == EXPECTED
    assert sr.shards(url, storage_options=options) == [url]
    found = ShardSource.find(url, options)
    assert [record for block in found.blocks() for record in block.to_list()] == EXPECTED


@each_case
def test_commands(filled: Place, name: str) -> None:
    place, url = filled, filled.url(name)
    told = streamrec("cat", "--raw", url, *place.cli())
    assert (told.code, len(told.out.splitlines())) == (0, 1), told.err
    told = streamrec("verify", "--json", url, *place.cli())
    assert (told.code, told.object["shards"], told.object["records"]) == (0, 1, 1), told.err
    assert streamrec("info", "--json", url, *place.cli()).object["first_shard"] == url
    if place.is_writable:
        assert streamrec("index", "--json", url, *place.cli()).object["records"] == 1
        with sr.open(url, index=True, engine="thread", storage_options=place.options) as stream:
            assert list(stream) == EXPECTED


@pytest.mark.parametrize("kind", WRITABLE)
def test_writers(place: Place) -> None:
    if place.options == {} and "memory" not in place.base:
        files, path = fsspec.url_to_fs(place.base)
        files.makedirs(f"{path}/run[1]")
    options = place.options
    for number, name in enumerate(NAMES):
        url = place.url(name)
        with sr.TFRecordWriter(url, storage_options=options) as writer:
            writer.write(b"%d" % number)
    found = [list(sr.read_records(place.url(name), storage_options=options)) for name in NAMES]
    assert found == [[b"%d" % number] for number in range(len(NAMES))]
    with sr.open(list(map(place.url, NAMES)), engine="thread", storage_options=options) as stream:
        assert len(list(stream)) == len(NAMES)


@pytest.mark.parametrize(
    ("kind", "name", "way"),
    each_once(WRITABLE, [n.replace("/", "-") for n in NAMES], [{"shards": 2}, {"shard_bytes": 64}]),
)
def test_writers_of_datasets(place: Place, name: str, way: dict[str, Any]) -> None:
    options, directory = place.options, place.url(name)
    for task in range(2):
        with sr.ShardedWriter(
            f"{directory}/x.tfrecord", task=(task, 2), storage_options=options, **way
        ) as writer:
            writer.write_many([{"id": 10 * task + number} for number in range(4)])
    sr.merge_index(f"{directory}/x.tfrecord", storage_options=options)
    source = f"{sr.escape(directory)}/x-*.tfrecord"
    settings: dict[str, Any] = {"engine": "thread", "storage_options": options}
    with sr.open(source, FEATURES, index=True, **settings) as stream:
        assert len(stream) == 8
        assert sorted(int(row["id"]) for row in stream) == [0, 1, 2, 3, 10, 11, 12, 13]


def test_a_name_without_special_characters_is_not_asked_for(devstore: DevStore) -> None:
    options = devstore.storage_options
    devstore.put("names/plain", frame(b"1"))
    before = devstore.statistics.requests
    sr.shards(
        ["s3://names/plain", "s3://names/a@host", sr.escape("s3://names/b[1]")],
        storage_options=options,
    )
    assert devstore.statistics.requests == before
    sr.shards("s3://names/pl*", storage_options=options)
    assert devstore.statistics.requests == before + 1


def test_escapes_are_names() -> None:
    name = "s3://b/[a]{1,2}*?@3"
    assert json.loads(json.dumps(sr.escape(name))) == "s3://b/[[]a[]][{]1,2[}][*][?][@]3"
    assert sr.shards(sr.escape(name)) == [name]
    assert sr.shards(sr.escape("http://[::1]/x?y={1,2}&z=[*]")) == ["http://[::1]/x?y={1,2}&z=[*]"]


NOT_UTF8 = os.fsdecode(b"caf\xe9")


@pytest.mark.parametrize("engine", ["thread", "process"])
def test_a_files_name_need_not_be_utf8(tmp_path: Path, engine: Any) -> None:
    with sr.ShardedWriter(tmp_path / NOT_UTF8 / f"{NOT_UTF8}.tfrecord", shards=2) as writer:
        writer.write_many([{"id": number} for number in range(4)])
    assert [os.fsencode(path.name) for path in tmp_path.iterdir()] == [b"caf\xe9"]
    source = f"{tmp_path}/{NOT_UTF8}/*.tfrecord"
    settings: dict[str, Any] = {"batch_size": 1, "index": True, "engine": engine}
    with sr.open(source, FEATURES, **settings) as stream:
        next(iter(stream))
        state = json.loads(json.dumps(stream.state_dict()))
    with sr.open(source, FEATURES, **settings) as stream:
        stream.load_state_dict(state)
        assert sorted(int(batch["id"][0]) for batch in stream) == [1, 2, 3]
    with sr.open(sr.shards(source), FEATURES, batch_size=4, engine=engine) as stream:
        assert sum(len(batch) for batch in stream) == 4
    missing = f"{tmp_path}/{NOT_UTF8}/none"
    with pytest.raises(sr.ObjectNotFound) as caught, sr.open(missing, engine=engine) as stream:
        next(iter(stream))
    assert f"{tmp_path}/caf\\xe9/none" in str(caught.value)


def test_tools_take_names_that_are_not_utf8(tmp_path: Path) -> None:
    shard = tmp_path / f"{NOT_UTF8}.tfrecord"
    with sr.TFRecordWriter(shard) as writer:
        writer.write({"id": 7})
    assert streamrec("cat", shard).object == {"id": [7]}
    for command in ("verify", "info", "index"):
        assert streamrec(command, "--json", shard).object["records"] == 1
    assert streamrec("reshard", shard, f"{tmp_path}/{NOT_UTF8}-new/", "--shards", 1).code == 0
    found = sr.open(f"{tmp_path}/{NOT_UTF8}-new/*.tfrecord", FEATURES, index=True, engine="thread")
    assert [int(row["id"]) for row in found] == [7]


@pytest.mark.parametrize("scheme", ["s3", "gs", "https", "memory"])
def test_a_url_must_be_utf8(scheme: str) -> None:
    url = f"{scheme}://bucket/{NOT_UTF8}"
    for call in (
        lambda: sr.shards(url),
        lambda: next(sr.read_records(url)),
        lambda: sr.ShardedWriter(f"{url}/x", shards=1),
        lambda: sr.TFRecordWriter(url),
    ):
        with pytest.raises(ConfigError, match=r"bucket/caf\\xe9.*not UTF-8"):
            call()


def test_places_are_bound_when_they_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run[1]").mkdir()
    one = sr.TFRecordWriter("one.tfrecord")
    several = [
        sr.ShardedWriter("run[1]/shards.tfrecord", shards=90),
        sr.ShardedWriter("run[1]/shard_bytes.tfrecord", shard_bytes=90),
    ]
    monkeypatch.chdir("run[1]")
    records = [{"id": number} for number in range(180)]
    one.write_many(records)
    one.close()
    for writer in several:
        writer.write_many(records)
        writer.close()
    names = {path.name for path in (tmp_path / "run[1]").iterdir()}
    assert {"shards.streamrec-index", "shard_bytes.streamrec-index"} < names
    assert (tmp_path / "one.tfrecord").exists()
    stream = sr.open("shards-*.tfrecord", FEATURES, index=True, epochs=2, engine="thread")
    monkeypatch.chdir("/")
    assert len(list(stream)) == 360


def test_one_shard_finds_its_index(tmp_path: Path) -> None:
    for shards in (1, 3):
        with sr.ShardedWriter(tmp_path / f"x{shards}.tfrecord", shards=shards) as writer:
            writer.write_many([{"id": number} for number in range(6)])
    for name, length in {
        "x1-*": 6,
        "x1-00000-of-00001.tfrecord": 6,
        "x1@1.tfrecord": 6,
        "x3-*": 6,
        "x3-00001-of-00003.tfrecord": 2,
        "x3-0000[12]-*": 4,
    }.items():
        with sr.open(f"{tmp_path}/{name}", FEATURES, index=True, engine="thread") as stream:
            assert len(list(stream)) == length, name
    (tmp_path / "x3.streamrec-index").unlink()
    with pytest.raises(sr.ObjectNotFound, match="x3-00001-of-00003"):
        len(sr.open(f"{tmp_path}/x3-00001-of-00003.tfrecord", FEATURES, index=True))


@pytest.mark.parametrize("pattern", ["*", "**", ".*", "*.part", "**/.*", ".x*"])
def test_unfinished_shards_are_hidden(tmp_path: Path, pattern: str) -> None:
    for name in ("x", ".x.part", ".x.1.part", ".x.task-00000-of-00001.streamrec-part", "d/.y.part"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(frame(b"1"))
    found: list[str] = []
    with contextlib.suppress(sr.ObjectNotFound):
        found = sr.shards(f"{tmp_path}/{pattern}")
    assert found in ([], [f"{tmp_path}/x"])
    assert sr.shards(f"{tmp_path}/.x.part") == [f"{tmp_path}/.x.part"], "who names it, means it"
