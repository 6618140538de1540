"""Streams with a cache of ranges, over the loopback store, which counts its requests."""

from __future__ import annotations

import asyncio
import gzip
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

import streamrec as sr
from streamrec.datasets.verify import check, index_of
from streamrec.devstore import DevStore
from streamrec.formats.shards.index_names import index_url
from streamrec.formats.shards.tfrecord import frame
from tests.by_day import at_night
from tests.pipeline.small_datasets import write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from streamrec.streams.stream import Stream

SHARDS = ((40,) * 13, (), (30,) * 8, (5000,) * 500, (70_000,) * 40)
ORDER: dict[str, Any] = {"batch_size": 4, "shuffle": True, "shuffle_window": 300_000, "seed": 3}
SOURCE = "gs://bucket/part-*.tfrecord"


@pytest.fixture
def local(tmp_path: Path) -> str:
    return write(tmp_path / "raw", SHARDS)


@pytest.fixture
def store(tmp_path: Path, local: str) -> Iterator[DevStore]:
    with DevStore() as devstore:
        for file in (tmp_path / "raw").iterdir():
            devstore.put(f"bucket/{file.name}", file.read_bytes())
        put_index(devstore, SOURCE, 100_000)
        yield devstore


def put_index(store: DevStore, source: str, chunk_bytes: int) -> None:
    options = store.gcs_options
    reports = asyncio.run(check([source], storage_options=options, chunk_bytes=chunk_bytes))
    url = index_url([report.url for report in reports])
    store.put(url.removeprefix("gs://"), index_of(reports).encode())
    store.statistics.clear()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def remote(store: DevStore, cache: Any, source: str = SOURCE, **more: Any) -> Stream:
    settings = {**ORDER, "storage_options": store.gcs_options, "engine": "thread", **more}
    return sr.open(source, cache=cache, **settings)


def epoch(stream: Stream) -> list[list[bytes]]:
    return [batch.records.to_list() for batch in stream]


@pytest.mark.parametrize("index", [None, True])
@pytest.mark.parametrize("kind", ["folder", "memory"])
def test_a_second_epoch_makes_no_request(
    store: DevStore, folder: Path, kind: str, index: bool | None
) -> None:
    expected = remote(store, None, index=index)
    with remote(store, folder if kind == "folder" else "memory", index=index) as stream:
        first, second = epoch(expected), epoch(expected)
        assert epoch(stream) == first
        store.statistics.clear()
        assert epoch(stream) == second
        counts = stream.statistics()
    assert store.statistics.requests == 0
    assert counts["requests"] == 0
    assert counts["cache_hits"] > 0
    assert counts["cache_bytes"] == counts["bytes_read"]


@pytest.mark.parametrize("engine", ["thread", "process", at_night(None, id="default")])
def test_another_stream_asks_for_the_listing_alone(
    store: DevStore, folder: Path, engine: str | None
) -> None:
    with remote(store, folder, engine=engine) as stream:
        first = epoch(stream)
    store.statistics.clear()
    with remote(store, {"folder": folder, "size": "100MiB"}, engine=engine) as stream:
        assert epoch(stream) == first
    assert set(store.statistics.by_kind) == {"objects.list"}


def test_a_resumed_stream_asks_for_the_listing_alone(store: DevStore, folder: Path) -> None:
    with remote(store, folder) as stream:
        whole = epoch(stream)
    with remote(store, folder) as stream:
        assert len(list(sr.take(stream, 5))) == 5
        state = stream.state_dict()
    store.statistics.clear()
    with remote(store, folder) as stream:
        stream.load_state_dict(state)
        assert epoch(stream) == whole[5:]
    assert set(store.statistics.by_kind) == {"objects.list"}


def test_names_without_a_listing_need_none_for_a_second_epoch(
    store: DevStore, folder: Path
) -> None:
    with remote(store, folder, "gs://bucket/part-{00000..00004}.tfrecord") as stream:
        epoch(stream)
        store.statistics.clear()
        epoch(stream)
    assert store.statistics.requests == 0


def test_the_fingerprint_and_the_state_are_those_without_a_cache(
    store: DevStore, folder: Path
) -> None:
    with remote(store, folder) as cached, remote(store, None) as plain:
        assert epoch(cached) == epoch(plain)
        assert cached.fingerprint == plain.fingerprint
        assert cached.state_dict() == plain.state_dict()


def test_a_folder_that_cannot_be_written_is_told_once(
    store: DevStore, tmp_path: Path, local: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("no folder")
    with remote(store, tmp_path / "file" / "cache") as stream:
        assert epoch(stream) == epoch(sr.open(local, **ORDER, engine="thread"))
    assert len([record for record in caplog.records if "cache" in record.message]) == 1


def test_local_files_have_no_cache(local: str, folder: Path) -> None:
    with sr.open(local, **ORDER, cache=folder, engine="thread") as stream:
        epoch(stream)
        assert stream.statistics()["cache_bytes"] == 0
    assert not folder.exists()


@pytest.mark.parametrize("index", [None, True])
def test_a_cache_of_half_the_bytes_answers_almost_half_of_an_epoch(
    store: DevStore, index: bool | None
) -> None:
    random = Random(1)
    for shard in range(20):
        frames = [frame(random.randbytes(40_000)) for _ in range(40)]
        store.put(f"large/part-{shard:05}.tfrecord", b"".join(frames))
    put_index(store, "gs://large/part-*.tfrecord", 1 << 20)
    settings = {"lanes": 4, "memory_budget": "32MiB", "shuffle_window": "2MiB", "index": index}
    cache = {"folder": "memory", "size": "16MiB"}
    with remote(store, cache, "gs://large/part-*.tfrecord", **settings) as stream:
        parts = []
        for _ in range(3):
            for _ in stream:
                pass
            counts = stream.statistics()
            parts.append(counts["cache_bytes"] / counts["bytes_read"])
    assert all(0.35 < part < 0.6 for part in parts[1:]), parts


def test_mixes_and_compressed_shards(store: DevStore, tmp_path: Path, folder: Path) -> None:
    packed = gzip.compress((tmp_path / "raw" / "part-00003.tfrecord").read_bytes())
    store.put("bucket/packed.tfrecord.gz", packed)
    mix = {"raw": (SOURCE, 0.5), "packed": ("gs://bucket/packed.*.gz", 0.5)}
    options = {"storage_options": store.gcs_options, "engine": "thread", **ORDER}

    def taken(cache: Path | None) -> list[list[bytes]]:
        with sr.mix(mix, cache=cache, exhausted="rest", **options) as stream:
            return epoch(stream)

    first = taken(folder)
    assert first == taken(None)
    store.statistics.clear()
    assert taken(folder) == first
    assert set(store.statistics.by_kind) == {"objects.list"}
