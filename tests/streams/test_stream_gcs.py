"""Streams over gs://, from writing to resuming, against the loopback store."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import streamrec as sr
from streamrec.devstore import DevStore, FaultRule
from streamrec.errors import AccessDenied, ObjectChanged
from tests.pipeline.small_datasets import write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from streamrec.streams.stream import Stream

SHARDS = ((40,) * 13, (), (30,) * 8, (5000,) * 50)
ORDER: dict[str, Any] = {"batch_size": 4, "shuffle": True, "shuffle_window": 30_000, "seed": 3}


@pytest.fixture
def local(tmp_path: Path) -> str:
    return write(tmp_path / "raw", SHARDS)


@pytest.fixture
def store(tmp_path: Path, local: str) -> Iterator[DevStore]:
    with DevStore() as devstore:
        for file in (tmp_path / "raw").iterdir():
            devstore.put(f"bucket/{file.name}", file.read_bytes())
        yield devstore


def remote(store: DevStore, source: str = "gs://bucket/part-*.tfrecord", **more: Any) -> Stream:
    settings = {**ORDER, "storage_options": store.gcs_options, "engine": "thread", **more}
    return sr.open(source, **settings)


def batches(stream: Stream, most: int | None = None) -> list[list[bytes]]:
    taken = []
    for batch in stream:
        taken.append(batch.records.to_list())
        if len(taken) == most:
            break
    return taken


@pytest.mark.parametrize("engine", ["thread", "process"])
def test_batches_equal_those_of_local_files(local: str, store: DevStore, engine: str) -> None:
    expected = batches(sr.open(local, **ORDER, engine="thread"))
    assert sum(map(len, expected)) == sum(map(len, SHARDS))
    with remote(store, engine=engine) as stream:
        assert batches(stream) == expected
    kinds = store.statistics.by_kind
    assert set(kinds) == {"objects.list", "objects.get media"}
    assert kinds["objects.list"] == 1


def test_a_list_of_names_needs_no_listing(local: str, store: DevStore) -> None:
    expected = batches(sr.open(local, **ORDER, engine="thread"))
    with remote(store, "gcs://bucket/part-{00000..00003}.tfrecord") as stream:
        assert batches(stream) == expected
        assert stream.shards[0] == "gs://bucket/part-00000.tfrecord"
    assert store.statistics.by_kind["objects.list"] == 0


def test_resumed(local: str, store: DevStore) -> None:
    expected = batches(sr.open(local, **ORDER, engine="thread"))
    for stop in (0, 1, 7, len(expected) - 1):
        with remote(store) as stream:
            head = batches(stream, stop) if stop else []
            state = stream.state_dict()
        tail = remote(store)
        tail.load_state_dict(state)
        with tail:
            assert head + batches(tail) == expected


def test_async_for(local: str, store: DevStore) -> None:
    async def take() -> list[list[bytes]]:
        async with remote(store) as stream:
            return [batch.records.to_list() async for batch in stream]

    assert asyncio.run(take()) == batches(sr.open(local, **ORDER, engine="thread"))


def test_faults_on_the_way_change_nothing(local: str, store: DevStore) -> None:
    expected = batches(sr.open(local, **ORDER, engine="thread"))
    store.faults = [
        FaultRule(ranged=True, nth=1, status=503, retry_after=0),
        FaultRule(ranged=True, nth=2, status=429, retry_after=0),
        FaultRule(ranged=True, nth=3, reset_after=10),
        FaultRule(ranged=True, nth=4, truncate_after=10),
        FaultRule(ranged=True, nth=5, refuse=True),
    ]
    with remote(store) as stream:
        assert batches(stream) == expected
    assert store.faults.applied == [1] * 5


def test_an_object_that_changes_in_the_epoch(store: DevStore) -> None:
    name = "part-00003.tfrecord"
    before = str(asyncio.run(store.objects.describe("bucket", name)).generation)
    store.faults = [
        FaultRule(path=name, ranged=True, etag="7"),  # the generation from now on, but that
        FaultRule(path=name, ranged=True, nth=1, etag=None, truncate_after=20_000),
    ]
    with remote(store, shuffle=False) as stream, pytest.raises(ObjectChanged) as caught:
        batches(stream)
    assert caught.value.url == f"gs://bucket/{name}"
    assert f"reads version {before}, but the store now has 7;" in str(caught.value)


def test_a_token_that_nobody_accepts(store: DevStore) -> None:
    options = {**store.gcs_options, "token": "other"}
    with (
        pytest.raises(AccessDenied, match="log in again"),
        remote(store, storage_options=options) as stream,
    ):
        batches(stream)


def test_written_and_read_again(store: DevStore) -> None:
    with sr.TFRecordWriter("gcs://bucket/a b.tfrecord", storage_options=store.gcs_options) as out:
        out.write_many([b"one", b"two"])
        assert "bucket/a b.tfrecord" not in store.objects
    with remote(store, "gs://bucket/a b.tfrecord", shuffle=False) as stream:
        assert batches(stream) == [[b"one", b"two"]]


def test_what_fails_is_not_written(store: DevStore) -> None:
    with pytest.raises(ZeroDivisionError):
        with sr.TFRecordWriter("gs://bucket/x", storage_options=store.gcs_options) as out:
            out.write(b"one")
            raise ZeroDivisionError
    store.faults = [FaultRule(method="POST", status=403)]
    out = sr.TFRecordWriter("gs://bucket/x", storage_options=store.gcs_options)
    with pytest.raises(AccessDenied, match="gs://bucket/x"):
        out.close()
    assert "bucket/x" not in store.objects
