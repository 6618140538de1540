"""The arguments of the public functions, and the errors for wrong ones."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import streamrec as sr
from streamrec.config.habits import METHODS
from streamrec.datasets.verify import check
from streamrec.errors import ConfigError
from streamrec.stores.local_store import LocalStore
from tests.by_day import each_once

if TYPE_CHECKING:
    from pathlib import Path

RECORDS = [b"%d" % n for n in range(9)]
ADDRESS = "tcp://127.0.0.1:1/d"


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    path = tmp_path / "x.tfrecord"
    with sr.TFRecordWriter(path) as writer:
        writer.write_many(RECORDS)
    return path


def read(stream: sr.Stream) -> list[bytes]:
    with stream:
        return [record for batch in stream for record in batch.records.to_list()]


def test_paths_are_sources(shard: Path) -> None:
    settings: dict[str, Any] = {"batch_size": 3, "engine": "thread"}
    assert read(sr.open(shard, **settings)) == RECORDS
    assert read(sr.open([shard, str(shard)], lanes=1, **settings)) == RECORDS * 2
    mixed = sr.mix({"a": (shard, 1)}, exhausted="stop", **settings)
    assert read(mixed) == RECORDS
    assert list(sr.read_records(shard)) == RECORDS
    assert [report.records for report in asyncio.run(check(shard))] == [9]
    assert [report.records for report in asyncio.run(check([shard]))] == [9]


def test_paths_are_settings(shard: Path) -> None:
    index = shard.parent / "index"
    texts = sr.open(str(shard), index=str(index))
    assert sr.open(shard, index=index)._description == texts._description


@pytest.mark.parametrize("source", [None, 5, b"/x", [5], {"a": "x"}])
def test_no_source(source: Any) -> None:
    calls: list[Any] = [sr.open, sr.read_records, sr.TFRecordWriter, sr.start_engine]
    for call in calls:
        with pytest.raises(ConfigError, match=r"give a URL or a path|streamrec\.mix"):
            list(call(source))
    with pytest.raises(ConfigError, match="give a URL or a path"):
        asyncio.run(check(source))
    with pytest.raises(ConfigError, match="give a URL or a path"):
        sr.mix({"web": (source, 1)})


@pytest.mark.parametrize("components", [None, [("url", 1)], "url"])
def test_no_mix(components: Any) -> None:
    with pytest.raises(ConfigError, match="give a mapping, as in"):
        sr.mix(components)


@pytest.mark.parametrize("weights", [5, [1], [(0, 5)]])
def test_no_weights(weights: Any) -> None:
    with pytest.raises(ConfigError, match=r"the setting 'weights' is .* but must be"):
        sr.mix({"web": "url"}, weights=weights)


@pytest.mark.parametrize("address", [None, 5, b"tcp://h:1/d", ["tcp://h:1/d"]])
def test_no_address(address: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"is not an address of a feeder; give one, as text: tcp://"
    ):
        sr.connect(address)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"rank": "x", "world_size": 2}, "'rank' is 'x' but must be"),
        ({"rank": 0, "world_size": 0}, "'world_size' is 0 but must be greater than 0"),
        ({"batch_size": "many"}, "'batch_size' is 'many' but must be"),
        ({"token": 5}, "'token' is int but must be a valid string"),
        ({"connect_timeout": 0}, "'connect_timeout' is 0 but must be greater than 0"),
        ({"retry_for": -1}, "'retry_for' is -1 but must be greater than or equal to 0"),
        ({"engine": "fork"}, "'engine' is 'fork' but must be"),
        ({"fingerprint": {}}, "'fingerprint' is {} but must be an instance of Fingerprint"),
    ],
)
def test_arguments_for_a_feeder_are_checked_at_once(arguments: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        sr.connect(ADDRESS, **arguments)


MISSPELT = [
    ("s3://b/a", "kye", "s3fs has no option 'kye'; did you mean 'key'?"),
    ("s3://b/*", "kye", "s3fs has no option 'kye'; did you mean 'key'?"),
    ("gs://b/a", "tokn", "gcsfs has no option 'tokn'; did you mean 'token'?"),
    ("http://h/a", "headrs", "has no option 'headrs'; did you mean 'headers'?"),
]


@pytest.mark.parametrize(("case", "engine"), each_once(MISSPELT, ["thread", "process", None]))
def test_a_misspelt_storage_option_is_named(case: tuple[str, str, str], engine: Any) -> None:
    url, option, words = case
    with pytest.raises(ConfigError) as caught:
        read(sr.open(url, batch_size=1, engine=engine, storage_options={option: "x"}))
    assert type(caught.value) is ConfigError
    assert words in str(caught.value)


def test_a_defect_leaves_as_itself(shard: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KeyError("a defect")

    monkeypatch.setattr(LocalStore, "open_range", fail)
    with pytest.raises(KeyError, match="a defect"):
        read(sr.open(shard, batch_size=1, engine="thread"))


def test_what_else_is_refused(shard: Path) -> None:
    stream = sr.open(shard)
    for count in (-1, "2", None):
        with pytest.raises(ConfigError, match="give a number from 0 up"):
            sr.take(stream, count)  # type: ignore[arg-type]
    for offset in (-1, "2"):
        with pytest.raises(ConfigError, match="give a number from 0 up"):
            list(sr.read_records(shard, offset))  # type: ignore[arg-type]
    for options in (5, "key=x"):
        with pytest.raises(ConfigError, match="storage_options is"):
            list(sr.read_records(shard, storage_options=options))  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="storage_options is"):
            sr.TFRecordWriter("s3://b/a", storage_options=options)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="there is no compression 5"):
        sr.TFRecordWriter(shard, compression=5)  # type: ignore[arg-type]


def test_methods_of_other_libraries_are_answered_with_the_settings(shard: Path) -> None:
    stream: Any = sr.open(shard)
    with pytest.raises(AttributeError, match="no attribute 'map'; give map="):
        stream.map(len)
    with pytest.raises(AttributeError, match=r"no attribute 'other'$"):
        _ = stream.other
    assert not any(hasattr(stream, name) for name in METHODS)
