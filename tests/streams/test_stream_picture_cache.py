"""Streams with a cache of decoded pictures, over the loopback store, which counts its requests."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import streamrec as sr
from streamrec.devstore import DevStore
from streamrec.errors import ConfigError, MalformedImage
from streamrec.formats.images import picture as pictures
from tests.pipeline.cached_batches import equal
from tests.streams.test_stream_batch_cache import ENGINES, FEATURES, RECORDS, SOURCE, example, put

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from streamrec.streams.stream import Stream

PER_RECORD = 2
PICTURES = PER_RECORD * 4 * RECORDS
SMALL_WINDOWS = {"shuffle": True, "shuffle_window": "8KiB"}


def darker(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Change a picture in place, as a program may."""
    columns["picture"][...] //= 2
    return {"picture": columns["picture"], "label": columns["label"], "any": columns["any"]}


def noisy(columns: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    noise = rng.integers(0, 9, columns["picture"].shape)
    return {"picture": columns["picture"] + noise, "label": columns["label"]}


def even(columns: Mapping[str, Any]) -> Any:
    return columns["label"] % 2 == 0


@pytest.fixture
def store() -> Iterator[DevStore]:
    with DevStore() as store:
        for shard in range(4):
            put(store, shard)
        yield store


@pytest.fixture
def cache(tmp_path: Path) -> dict[str, Any]:
    return {"of": "pictures", "folder": str(tmp_path / "cache"), "size": "64MiB"}


def remote(store: DevStore, cache: Any, **more: Any) -> Stream:
    settings: dict[str, Any] = {"batch_size": 8, "storage_options": store.gcs_options, **more}
    return sr.open(SOURCE, FEATURES, cache=cache, **settings)


def test_a_mix_has_it_too(tmp_path: Path, cache: dict[str, Any]) -> None:
    sources: dict[str, Any] = {}
    for number, name in enumerate(("web", "code")):
        sources[name] = (tmp_path / f"{name}.tfrecord", 1)
        with sr.TFRecordWriter(sources[name][0]) as writer:
            for record in range(20):
                writer.write(example(number, record)[12:-4])
    settings: dict[str, Any] = {
        "batch_size": 8,
        "engine": "thread",
        "exhausted": "rest",
        "shuffle": True,
    }
    with (
        sr.mix(sources, FEATURES, cache=cache, **settings) as kept,
        sr.mix(sources, FEATURES, **settings) as plain,
    ):
        for _ in range(2):
            equal(list(kept), list(plain))
        assert kept.statistics()["cached_pictures"] == PER_RECORD * 40


@pytest.mark.parametrize("engine", ENGINES)
def test_a_shuffled_second_epoch_neither_asks_nor_decodes(
    store: DevStore, cache: dict[str, Any], engine: str | None
) -> None:
    settings = {"map": darker, **SMALL_WINDOWS}
    with (
        remote(store, None, engine="thread", **settings) as plain,
        remote(store, cache, engine=engine, **settings) as kept,
    ):
        first = list(plain)
        batches = list(kept)
        equal(batches, first)
        for batch in batches:
            batch["picture"][...] = 0
            batch["any"].values[...] = 0
        store.statistics.clear()
        second = list(kept)
        assert store.statistics.requests == 0
        assert kept.statistics()["cached_pictures"] == PICTURES
        expected = list(plain)
        equal(second, expected)
        assert [batch["label"].tolist() for batch in expected] != [
            batch["label"].tolist() for batch in first
        ]


@pytest.mark.parametrize(
    "settings",
    [
        {"seed": 3, **SMALL_WINDOWS},
        {"map": noisy, **SMALL_WINDOWS},
        {"filter": even, "epochs": 2},
        {"ordered": False, "lanes": 1},
        {"transform": darker, "lanes": 3, "epochs": 2},
        {"batch_size": 5, "remainder": "drop"},
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
        delivered = 2 * sum(map(len, batches))
        assert kept.statistics()["cached_pictures"] >= delivered > 0


def test_it_resumes_from_any_state(store: DevStore, cache: dict[str, Any]) -> None:
    settings = {"engine": "thread", "epochs": 2, "map": noisy, **SMALL_WINDOWS}
    with remote(store, cache, **settings) as stream:
        whole = list(stream)
    with remote(store, cache, **settings) as stream:
        for k in range(1, len(whole), 7):
            state = whole[k - 1].next_position.to_dict()
            stream.load_state_dict(json.loads(json.dumps(state)))
            equal(list(stream), whole[k:])


def test_single_records_in_memory(store: DevStore) -> None:
    cache = {"of": "pictures", "folder": "memory", "size": "16MiB"}
    with remote(store, cache, batch_size=None, shuffle=True, engine="thread") as stream:
        first = {record["name"]: record["any"] for record in stream}
        for record in stream:
            np.testing.assert_array_equal(record["any"], first[record["name"]])
        assert stream.statistics()["cached_pictures"] == PICTURES


def test_local_files_gain_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with sr.TFRecordWriter(tmp_path / "a.tfrecord") as writer:
        for record in range(5):
            writer.write(example(0, record)[12:-4])
    settings: dict[str, Any] = {"batch_size": 5, "engine": "thread"}
    cache = {"of": "pictures", "folder": tmp_path / "cache", "size": "16MiB"}
    with sr.open(tmp_path / "a.tfrecord", FEATURES, cache=cache, **settings) as stream:
        (expected,) = stream
        monkeypatch.setattr(pictures.Picture, "fill", lambda *_: pytest.fail("it was decoded"))
        (batch,) = stream
        np.testing.assert_array_equal(batch["picture"], expected["picture"])


def test_another_spec_has_pictures_of_its_own(store: DevStore, cache: dict[str, Any]) -> None:
    forms = [sr.Image((4, 6, 3)), sr.Image(channels=1), sr.Image(resize=(4, 6)), sr.Image()]
    for form in [*forms, *forms]:
        settings: dict[str, Any] = {
            "features": {"picture": form},
            "batch_size": 8,
            "engine": "thread",
            "storage_options": store.gcs_options,
        }
        with sr.open(SOURCE, cache=cache, **settings) as kept, sr.open(SOURCE, **settings) as plain:
            equal(list(kept), list(plain))


def test_a_changed_picture_is_decoded_anew(store: DevStore, cache: dict[str, Any]) -> None:
    with remote(store, cache, engine="thread") as stream:
        list(stream)
    for shard in range(4):
        put(store, shard, RECORDS - 2 * shard)
    with remote(store, None, engine="thread") as plain, remote(store, cache) as kept:
        equal(list(kept), list(plain))


def test_a_damaged_piece_is_decoded_anew(
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
        assert stream.statistics()["cached_pictures"] == 0


def test_a_picture_that_cannot_be_decoded_is_never_kept(
    tmp_path: Path, cache: dict[str, Any]
) -> None:
    png = sr.encode_png(np.zeros((4, 6, 3), np.uint8))
    with sr.TFRecordWriter(tmp_path / "a.tfrecord") as writer:
        writer.write({"picture": png[:-20]})
    features = {"picture": sr.Image((4, 6, 3))}
    for _ in range(2):
        with sr.open(
            tmp_path / "a.tfrecord", features, batch_size=1, cache=cache, engine="thread"
        ) as stream:
            with pytest.raises(MalformedImage):
                next(stream)


@pytest.mark.parametrize("features", [None, {"label": sr.FixedLenFeature((), "int64")}])
def test_without_a_picture_it_is_refused(
    store: DevStore, cache: dict[str, Any], features: Any
) -> None:
    options = store.gcs_options
    stream = sr.open(SOURCE, features, batch_size=4, cache=cache, storage_options=options)
    with pytest.raises(ConfigError, match=r"keeps what sr\.Image decodes, and no feature has"):
        next(stream)
