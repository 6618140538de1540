"""Streams with a cache of batches, over the loopback store, which counts its requests."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import streamrec as sr
from streamrec.config import DatasetSettings, validate
from streamrec.devstore import DevStore
from streamrec.errors import ConfigError
from streamrec.formats.examples.descriptions import describe
from streamrec.formats.shards.tfrecord import frame
from streamrec.stores.cache.shelves import CacheFolder
from tests.by_day import at_night
from tests.feeder.support import serving
from tests.pipeline.batch.test_payload import arrays_of, same
from tests.pipeline.cached_batches import equal
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from streamrec.streams.stream import Stream

SOURCE = "gs://bucket/part-*.tfrecord"
FEATURES: dict[str, Any] = {
    "label": sr.FixedLenFeature((), "int64"),
    "words": sr.RaggedFeature("int64"),
    "name": sr.FixedLenFeature((), bytes),
    "picture": sr.Image((4, 6, 3)),
    "any": sr.Image(channels=3),
}
RECORDS = 23
ENGINES = ["thread", "process", at_night(None, id="default")]


def example(shard: int, record: int) -> bytes:
    random = np.random.default_rng((shard, record))
    sides = 1 + record % 3, 2
    values = {
        "label": record,
        "words": list(range(record % 4)),
        "name": f"{shard}/{record}",
        "picture": sr.encode_png(random.integers(0, 256, (4, 6, 3), np.uint8)),
        "any": sr.encode_png(random.integers(0, 256, (*sides, 3), np.uint8)),
    }
    return frame(sr.encode_example(values))


def put(store: DevStore, shard: int, records: int = RECORDS) -> None:
    data = b"".join(example(shard, record) for record in range(records))
    store.put(f"bucket/part-{shard:05}.tfrecord", data)


@pytest.fixture
def store() -> Iterator[DevStore]:
    with DevStore() as store:
        for shard in range(4):
            put(store, shard)
        yield store


@pytest.fixture
def cache(tmp_path: Path) -> dict[str, Any]:
    return {"of": "batches", "folder": str(tmp_path / "cache"), "size": "64MiB"}


def remote(store: DevStore, cache: Any, **more: Any) -> Stream:
    options: dict[str, Any] = {"batch_size": 8, "storage_options": store.gcs_options, **more}
    return sr.open(SOURCE, FEATURES, cache=cache, **options)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_second_epoch_makes_no_request(
    store: DevStore, cache: dict[str, Any], engine: str | None
) -> None:
    with remote(store, None, engine="thread") as plain, remote(store, cache, engine=engine) as kept:
        equal(list(kept), list(plain))
        store.statistics.clear()
        second = list(kept)
        assert store.statistics.requests == 0
        assert kept.statistics()["cached_batches"] == len(second)
        equal(second, list(plain))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_shuffled_evaluation_that_is_rewound_makes_no_request(
    store: DevStore, cache: dict[str, Any], engine: str | None
) -> None:
    with remote(store, cache, shuffle=True, shuffle_window="4MiB", engine=engine) as stream:
        first = list(stream)
        stream.rewind()
        store.statistics.clear()
        second = list(stream)
        assert store.statistics.by_kind.keys() <= {"objects.list"}
    equal(second, first)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_same_job_again_asks_for_the_listing_alone(
    store: DevStore, cache: dict[str, Any], engine: str | None
) -> None:
    with remote(store, cache, engine="thread") as stream:
        first = list(stream)
    store.statistics.clear()
    with remote(store, cache, engine=engine) as stream:
        batches = list(stream)
    assert set(store.statistics.by_kind) == {"objects.list"}
    equal(batches, first)


def test_it_resumes_from_any_state(store: DevStore, cache: dict[str, Any]) -> None:
    with remote(store, cache, engine="thread") as stream:
        whole = list(stream)
    with remote(store, cache, engine="thread") as stream:
        for k, batch in enumerate(whole, start=1):
            stream.load_state_dict(json.loads(json.dumps(batch.next_position.to_dict())))
            equal(list(stream), whole[k:])


@asynchronous
async def test_an_asynchronous_loop(store: DevStore, cache: dict[str, Any]) -> None:
    async with remote(store, cache) as stream:
        first = [batch async for batch in stream]
        store.statistics.clear()
        second = [batch async for batch in stream]
        assert store.statistics.requests == 0
    for one, other in zip(first, second, strict=True):
        for name in one:
            same(one[name], other[name])


def test_a_feeder_serves_its_clients_from_it(store: DevStore, cache: dict[str, Any]) -> None:
    settings = validate(
        DatasetSettings,
        {
            "source": SOURCE,
            "features": describe(FEATURES),
            "batch_size": 8,
            "storage_options": store.gcs_options,
            "cache": cache,
        },
    )
    with serving(settings) as address:
        with sr.connect(f"{address}/data") as stream:
            first = list(stream)
        store.statistics.clear()
        with sr.connect(f"{address}/data") as stream:
            equal(list(stream), first)
            assert stream.statistics()["cached_batches"] == len(first)
    assert store.statistics.requests == 0


def test_a_changed_shard_is_read_anew(store: DevStore, cache: dict[str, Any]) -> None:
    open_thread = partial(remote, store, engine="thread")
    with open_thread(cache) as stream:
        list(stream)
    put(store, 2, RECORDS - 5)
    with open_thread(cache) as stream, open_thread(None) as plain:
        equal(list(stream), list(plain))
        assert stream.statistics()["cached_batches"] == 0


@pytest.mark.parametrize(
    "change", [{"batch_size": 7}, {"shuffle": True}, {"remainder": "pad"}, {"dtypes": "int32"}]
)
def test_a_changed_setting_is_not_answered_by_old_batches(
    store: DevStore, cache: dict[str, Any], change: dict[str, Any]
) -> None:
    with remote(store, cache, engine="thread") as stream:
        list(stream)
    changed = {"engine": "thread", "shuffle_window": "4MiB", **change}
    with remote(store, cache, **changed) as stream, remote(store, None, **changed) as plain:
        equal(list(stream), list(plain))
        assert stream.statistics()["cached_batches"] == 0


def test_damaged_pieces_are_read_anew(
    store: DevStore, cache: dict[str, Any], tmp_path: Path
) -> None:
    with remote(store, cache, engine="thread") as stream:
        first = list(stream)
    files = sorted(path for path in (tmp_path / "cache").rglob("*") if path.is_file())
    for file in files[::3]:
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    with remote(store, cache, engine="thread") as stream:
        equal(list(stream), first)
        assert stream.statistics()["cached_batches"] < len(first)
    with remote(store, cache, engine="thread") as stream:
        equal(list(stream), first)
        assert stream.statistics()["cached_batches"] == len(first)


def test_a_small_budget_holds(store: DevStore, tmp_path: Path) -> None:
    folder, size = tmp_path / "cache", 16 << 20
    features = {"x": sr.FixedLenFeature((1 << 16,), "float32")}
    value = np.zeros(1 << 16, np.float32)
    data = b"".join(frame(sr.encode_example({"x": value + i})) for i in range(50))
    store.put("large/one.tfrecord", data)
    stored = {"folder": folder, "size": size, "of": "batches"}
    options: dict[str, Any] = {"storage_options": store.gcs_options, "engine": "thread"}
    with sr.open(
        "gs://large/*.tfrecord", features, batch_size=10, cache=stored, **options
    ) as stream:
        for _ in range(3):
            for i, batch in enumerate(stream):
                assert batch["x"][:, 0].tolist() == [*range(10 * i, 10 * i + 10)]
                held = sum(entry.piece.nbytes for entry in CacheFolder(folder).entries())
                assert 0 < held <= size


@pytest.mark.parametrize("engine", ENGINES)
def test_columns_are_the_users_own(
    store: DevStore, cache: dict[str, Any], engine: str | None
) -> None:
    for is_cached in (False, True, True):
        with remote(store, cache, engine=engine) as stream:
            for batch in stream:
                assert batch["label"].any()
                for name in batch:
                    for array in arrays_of(batch[name]):
                        assert array.flags.writeable
                        assert array.ctypes.data % 64 == 0 or not (array.size and is_cached)
                        array[...] = 0


def test_local_files_are_cached_too(store: DevStore, cache: dict[str, Any], tmp_path: Path) -> None:
    for shard in range(2):
        data = b"".join(example(shard, record) for record in range(RECORDS))
        (tmp_path / f"part-{shard}").write_bytes(data)
    with sr.open(
        f"{tmp_path}/part-*", FEATURES, batch_size=8, cache=cache, engine="thread"
    ) as stream:
        first = [batch["name"].to_list() for batch in stream]
        assert [batch["name"].to_list() for batch in stream] == first
        assert stream.statistics()["cached_batches"] == len(first)


def test_names_without_versions_are_refused(store: DevStore, cache: dict[str, Any]) -> None:
    options: dict[str, Any] = {"storage_options": store.gcs_options, "engine": "thread"}
    names = "gs://bucket/part-{00000..00003}.tfrecord"
    with (
        pytest.raises(ConfigError, match=r"part-00000.* has none; name the shards by"),
        sr.open(names, FEATURES, batch_size=8, cache=cache, **options) as stream,
    ):
        next(iter(stream))


def test_single_records_are_refused(store: DevStore, cache: dict[str, Any]) -> None:
    with (
        pytest.raises(ConfigError, match=r"cannot keep single records; set batch_size"),
        remote(store, cache, batch_size=None, engine="thread") as stream,
    ):
        next(iter(stream))
