"""An index as a source: it names the shards beside it, in place of a listing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import streamrec as sr
from streamrec.config import DatasetSettings, validate
from streamrec.errors import ConfigError, MalformedIndex, ObjectNotFound, StaleIndex
from streamrec.pipeline.dataset import Dataset
from streamrec.stores import ObjectInfo, Stores

if TYPE_CHECKING:
    from pathlib import Path

FEATURES: dict[str, Any] = {"id": sr.FixedLenFeature((), "int64")}


def named_by(source: str | list[str], stores: Stores | None = None) -> list[ObjectInfo]:
    return asyncio.run((stores or Stores()).list_named(source))


def write(directory: Path, shards: int = 5) -> str:
    """Write a dataset with its index; return the URL of the index."""
    directory.mkdir(exist_ok=True)
    with sr.ShardedWriter(directory / "train.tfrecord", shards=shards) as writer:
        writer.write_many({"id": number} for number in range(100))
    return str(directory / "train.streamrec-index")


def test_it_names_what_a_listing_finds(tmp_path: Path) -> None:
    index = write(tmp_path / "a[b]")  # a name that is a pattern
    listed = named_by(str(tmp_path / "a[[]b]" / "train-*"))
    for text in (index, index.replace("[", "[[]"), f"file://{index}"):
        named = [(info.url.removeprefix("file://"), info.size) for info in named_by(text)]
        assert named == [(info.url, info.size) for info in listed]
    both = named_by([write(tmp_path / "c"), write(tmp_path / "d", 2)])
    assert len(both) == 7
    assert both == sorted(both, key=lambda info: info.url)


def test_it_takes_one_request_and_no_listing(tmp_path: Path) -> None:
    index = write(tmp_path)
    asked: list[int] = []
    stores = Stores(before_request=asked.append)
    for shard in tmp_path.glob("*.tfrecord"):
        shard.unlink()  # shards are not looked for
    assert len(named_by(index, stores)) == 5
    assert len(asked) == 1
    assert not stores.timings.to_dict()  # of listings


def test_an_index_that_names_the_shards_is_read_once(tmp_path: Path) -> None:
    settings = validate(DatasetSettings, {"source": write(tmp_path), "index": True})
    asked: list[int] = []

    async def opened() -> None:
        await (await Dataset.open(settings, before_request=asked.append)).aclose()

    asyncio.run(opened())
    assert len(asked) == 1


@pytest.mark.parametrize("shuffle", [False, True])
def test_the_stream_and_its_states_are_those_of_the_shards(tmp_path: Path, shuffle: bool) -> None:
    index = write(tmp_path)
    settings: dict[str, Any] = {"batch_size": 8, "shuffle": shuffle, "engine": "thread"}
    for by_index in (False, True):
        streams = [
            sr.open(source, FEATURES, index=by_index, **settings)
            for source in (str(tmp_path / "train-*.tfrecord"), index)
        ]
        with streams[0] as shards, streams[1] as named:
            assert next(shards)["id"].tolist() == next(named)["id"].tolist()
            named.load_state_dict(shards.state_dict())
            rest = [[batch["id"].tolist() for batch in stream] for stream in (shards, named)]
            assert rest[0] == rest[1]


def test_what_is_not_an_index_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "train.streamrec-index"
    place.write_bytes(b"something else")
    with pytest.raises(MalformedIndex, match="does not begin like an index") as caught:
        named_by(str(place))
    assert caught.value.url == str(place)
    with pytest.raises(ObjectNotFound):
        named_by(str(tmp_path / "none.streamrec-index"))
    with pytest.raises(ConfigError, match="an index does not know the signatures of its shards"):
        named_by("https://host/train.streamrec-index?signature=x")


def test_a_shard_that_is_missing_is_named_when_it_is_read(tmp_path: Path) -> None:
    index = write(tmp_path)
    (tmp_path / "train-00000-of-00005.tfrecord").unlink()
    with (
        pytest.raises(ObjectNotFound, match="train-00000-of-00005"),
        sr.open(index, FEATURES, batch_size=8, engine="thread") as stream,
    ):
        list(stream)


def test_a_shard_that_has_another_size_is_stale(tmp_path: Path) -> None:
    index = write(tmp_path)
    shard = tmp_path / "train-00001-of-00005.tfrecord"
    shard.write_bytes(shard.read_bytes() + b"more")
    with (
        pytest.raises(StaleIndex, match="train-00001-of-00005"),
        sr.open(index, FEATURES, index=True, batch_size=8, engine="thread") as stream,
    ):
        list(stream)
