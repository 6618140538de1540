"""Streams with a cache of what the user's map makes, over the loopback store."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import streamrec as sr
from streamrec.config import DatasetSettings, validate
from streamrec.devstore import DevStore
from streamrec.errors import ConfigError, FunctionFailed
from streamrec.feeder.functions.map_identity import with_identity
from streamrec.formats.examples.descriptions import describe
from tests.feeder.support import serving
from tests.pipeline.cached_batches import equal
from tests.streams.test_stream_batch_cache import ENGINES, FEATURES, RECORDS, SOURCE, example, put
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from streamrec.streams.stream import Stream

ALL = 4 * RECORDS
SMALL_WINDOWS = {"shuffle": True, "shuffle_window": "8KiB"}
VOCABULARY = {b"0": 5, b"1": 6}


def prepared(columns: Mapping[str, Any], calls: Path | None = None) -> dict[str, Any]:
    """Make a column of each kind, and count the records."""
    if calls is not None:
        with calls.open("a") as file:
            file.write("x" * len(columns["label"]))
    names = columns["name"].to_list()
    return {
        "scaled": columns["picture"].astype(np.float32) / 255,
        "label": columns["label"],
        "words": columns["words"],
        "any": columns["any"],
        "token": np.array([VOCABULARY.get(name[:1], 0) for name in names]),
        "upper": sr.BytesColumn.of([name.upper() for name in names]),
    }


def even(columns: Mapping[str, Any]) -> Any:
    return columns["label"] % 2 == 0


def brighter(batch: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**batch, "scaled": batch["scaled"] + rng.random()}


@pytest.fixture
def store() -> Iterator[DevStore]:
    with DevStore() as store:
        for shard in range(4):
            put(store, shard)
        yield store


@pytest.fixture
def cache(tmp_path: Path) -> dict[str, Any]:
    return {"of": "mapped", "folder": str(tmp_path / "cache"), "size": "64MiB"}


def remote(store: DevStore, cache: Any, **more: Any) -> Stream:
    settings = {"batch_size": 8, "storage_options": store.gcs_options, "map": prepared, **more}
    return sr.open(SOURCE, FEATURES, cache=cache, **settings)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_shuffled_second_epoch_neither_asks_nor_maps(
    store: DevStore, cache: dict[str, Any], tmp_path: Path, engine: str | None
) -> None:
    calls = tmp_path / "calls"
    counted = partial(prepared, calls=calls)
    anew = {"map": partial(prepared), "engine": "thread", **SMALL_WINDOWS}
    with (
        remote(store, None, **anew) as plain,
        remote(store, cache, map=counted, engine=engine, **SMALL_WINDOWS) as kept,
    ):
        first = list(kept)
        equal(first, list(plain))
        assert len(calls.read_text()) == ALL
        for batch in first:
            batch["scaled"][...] = 0
        store.statistics.clear()
        second = list(kept)
        assert store.statistics.requests == 0
        equal(second, list(plain))
        assert len(calls.read_text()) == ALL
        assert kept.statistics()["cached_mapped"] == ALL


@pytest.mark.parametrize(
    "settings",
    [
        {"seed": 3, **SMALL_WINDOWS},
        {"filter": even, "epochs": 2},
        {"ordered": False, "lanes": 1},
        {"transform": brighter, "lanes": 3, "epochs": 2},
        {"batch_size": 5, "remainder": "pad"},
        {"length_buckets": 2, **SMALL_WINDOWS},
    ],
    ids="-".join,
)
def test_what_one_job_kept_gives_another_one_the_same(
    store: DevStore, cache: dict[str, Any], settings: dict[str, Any]
) -> None:
    with remote(store, cache, engine="thread") as stream:
        list(stream)
    with (
        remote(store, None, engine="thread", **settings) as plain,
        remote(store, cache, engine="thread", **settings) as kept,
    ):
        batches = list(kept)
        equal(batches, list(plain))
        assert kept.statistics()["cached_mapped"] >= sum(map(len, batches)) > 0


def test_it_resumes_from_any_state(store: DevStore, cache: dict[str, Any]) -> None:
    settings = {"engine": "thread", "epochs": 2, **SMALL_WINDOWS}
    with remote(store, cache, **settings) as stream:
        whole = list(stream)
    with remote(store, cache, **settings) as stream:
        for k in range(1, len(whole), 7):
            state = whole[k - 1].next_position.to_dict()
            stream.load_state_dict(json.loads(json.dumps(state)))
            equal(list(stream), whole[k:])


def test_single_records_in_memory(store: DevStore) -> None:
    cache = {"of": "mapped", "folder": "memory", "size": "16MiB"}
    with remote(store, cache, batch_size=None, shuffle=True, engine="thread") as stream:
        first = {record["upper"]: record["scaled"] for record in stream}
        for record in stream:
            np.testing.assert_array_equal(record["scaled"], first[record["upper"]])
        assert stream.statistics()["cached_mapped"] == ALL


def test_a_feeder_serves_its_clients_from_it(store: DevStore, cache: dict[str, Any]) -> None:
    values = {
        "source": SOURCE,
        "features": describe(FEATURES),
        "batch_size": 8,
        "cache": cache,
        "storage_options": store.gcs_options,
        "map": f"{__name__}:prepared",
        **SMALL_WINDOWS,
    }
    with serving(with_identity(validate(DatasetSettings, values))) as address:
        with sr.connect(f"{address}/data") as stream:
            first = list(stream)
        with sr.connect(f"{address}/data") as stream:
            equal(list(stream), first)
            assert stream.statistics()["cached_mapped"] == ALL


@asynchronous
async def test_async_for_has_it_too(store: DevStore, cache: dict[str, Any]) -> None:
    async with remote(store, cache) as stream:
        first = [batch["token"].tolist() async for batch in stream]
        assert first
        async for _ in stream:
            pass
        assert stream.statistics()["cached_mapped"] == ALL


@pytest.mark.parametrize("engine", ["thread", "process"])
def test_a_changed_vocabulary_is_another_map(
    store: DevStore, cache: dict[str, Any], engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with remote(store, cache, engine=engine) as stream:
        tokens = {token for batch in stream for token in batch["token"].tolist()}
        assert tokens == {0, 5, 6}
        monkeypatch.setitem(VOCABULARY, b"0", 9)
        tokens = {token for batch in stream for token in batch["token"].tolist()}
        assert tokens == {0, 6, 9}


def test_a_key_of_ones_own_stands_for_the_map(
    store: DevStore, cache: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, number, expected in [("a", 5, 5), ("a", 9, 5), ("b", 9, 9)]:
        monkeypatch.setitem(VOCABULARY, b"0", number)
        with remote(store, cache | {"key": key}, engine="thread") as stream:
            batches = list(stream)
        assert {t for batch in batches for t in batch["token"].tolist()} == {0, 6, expected}


def test_a_changed_record_is_mapped_anew(store: DevStore, cache: dict[str, Any]) -> None:
    with remote(store, cache, engine="thread") as stream:
        list(stream)
    for shard in range(4):
        put(store, shard, RECORDS - 2 * shard)
    with remote(store, None, engine="thread") as plain, remote(store, cache) as kept:
        equal(list(kept), list(plain))


def test_other_specs_have_records_of_their_own(store: DevStore, cache: dict[str, Any]) -> None:
    def same(columns: Mapping[str, Any]) -> Mapping[str, Any]:
        return columns

    for dtype in ("int64", "int32", "int64"):
        features = {"label": sr.FixedLenFeature((), dtype)}
        options: dict[str, Any] = {"features": features, "map": same, "engine": "thread"}
        with sr.open(
            SOURCE, batch_size=8, cache=cache, storage_options=store.gcs_options, **options
        ) as stream:
            assert next(stream)["label"].dtype == dtype


def test_a_damaged_piece_is_made_anew(
    store: DevStore, cache: dict[str, Any], tmp_path: Path
) -> None:
    with remote(store, cache, engine="thread") as stream:
        expected = list(stream)
    for file in (tmp_path / "cache").glob("*/*"):
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    with remote(store, cache, engine="thread") as stream:
        equal(list(stream), expected)
        assert stream.statistics()["cached_mapped"] == 0


def test_a_padded_feature_keeps_the_form_of_its_batch(tmp_path: Path) -> None:
    """The values of a sparse row have the width of the longest row beside it."""
    with sr.TFRecordWriter(tmp_path / "a.tfrecord") as writer:
        for record in range(20):
            writer.write({"id": record, "v": list(range(record % 7))})
    features = {"id": sr.FixedLenFeature((), "int64"), "v": sr.VarLenFeature("int64")}
    settings: dict[str, Any] = {"batch_size": 3, "map": dict, "engine": "thread", **SMALL_WINDOWS}
    cache = {"of": "mapped", "folder": "memory", "size": "16MiB"}
    path = tmp_path / "a.tfrecord"
    with (
        sr.open(path, features, cache=cache, **settings) as kept,
        sr.open(path, features, **settings) as plain,
    ):
        for _ in range(3):
            equal(list(kept), list(plain))
        assert kept.statistics()["cached_mapped"] == 20


def test_a_dense_feature_of_many_widths_is_told(tmp_path: Path) -> None:
    with sr.TFRecordWriter(tmp_path / "a.tfrecord") as writer:
        for record in range(4):
            writer.write({"v": list(range(record))})
    features = {"v": sr.FixedLenSequenceFeature((), "int64", allow_missing=True)}
    cache = {"of": "mapped", "folder": "memory", "size": "16MiB"}
    with (
        sr.open(
            tmp_path / "a.tfrecord",
            features,
            batch_size=4,
            map=dict,
            cache=cache,
            engine="thread",
        ) as stream,
        pytest.raises(FunctionFailed, match=r"return sr\.Arrays or sr\.Ragged if shapes differ"),
    ):
        next(stream)


def test_packs_of_mapped_records(tmp_path: Path) -> None:
    with sr.TFRecordWriter(tmp_path / "a.tfrecord") as writer:
        for record in range(30):
            writer.write({"text": "ab" * (record % 5)})

    calls = tmp_path / "calls"

    def tokens(columns: Mapping[str, Any]) -> dict[str, Any]:
        with calls.open("a") as file:
            file.write("x" * len(columns["text"]))
        texts = columns["text"].to_list()
        values = np.frombuffer(b"".join(texts), np.uint8).astype(np.int64)
        return {"tokens": sr.Ragged(values, np.cumsum([0, *map(len, texts)]))}

    settings: dict[str, Any] = {
        "features": {"text": sr.FixedLenFeature((), bytes)},
        "batch_size": 1,
        "map": tokens,
        "pack": sr.Pack(16),
        "engine": "thread",
    }
    cache = {"of": "mapped", "folder": "memory", "size": "16MiB"}
    with sr.open(tmp_path / "a.tfrecord", cache=cache, **settings) as stream:
        first = [batch["tokens"].tolist() for batch in stream]
        # Equal records are found by each other, so they may be mapped once.
        count = len(calls.read_text())
        assert [batch["tokens"].tolist() for batch in stream] == first
        assert len(calls.read_text()) == count > 0


def test_a_mix_has_it_too(tmp_path: Path, cache: dict[str, Any]) -> None:
    sources: dict[str, Any] = {}
    for number, name in enumerate(("web", "code")):
        sources[name] = (tmp_path / f"{name}.tfrecord", 1)
        with sr.TFRecordWriter(sources[name][0]) as writer:
            for record in range(20):
                writer.write(example(number, record)[12:-4])
    settings: dict[str, Any] = {
        "batch_size": 8,
        "map": prepared,
        "engine": "thread",
        "shuffle": True,
        "exhausted": "rest",
    }
    with (
        sr.mix(sources, FEATURES, cache=cache, **settings) as kept,
        sr.mix(sources, FEATURES, **settings) as plain,
    ):
        for _ in range(2):
            equal(list(kept), list(plain))
        assert kept.statistics()["cached_mapped"] == 40


def draws(columns: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {"noise": rng.random(len(columns["label"]))}


def draws_by_itself(columns: Mapping[str, Any]) -> dict[str, Any]:
    return {"noise": np.random.rand(len(columns["label"]))}  # noqa: NPY002 - as programs do


def looks_up(columns: Mapping[str, Any]) -> dict[str, Any]:
    return {"label": columns["label"] + globals()["OFFSET"]}


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (draws, "takes rng, to give others in each epoch; draw in transform, which runs after"),
        (draws_by_itself, r"draws from .*; draw in transform, which runs after the cache"),
        (looks_up, "reads what its code does not name.*; mend that, or set key in the cache"),
    ],
)
def test_what_could_not_be_found_again_is_refused(
    store: DevStore, cache: dict[str, Any], function: Any, says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        next(remote(store, cache, map=function))
