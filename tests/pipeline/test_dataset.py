from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from streamrec.errors import ConfigError, ObjectNotFound, StoreUnavailable
from streamrec.formats.example import encode_example
from streamrec.formats.tfrecord import frame
from streamrec.pipeline.dataset import Dataset
from streamrec.stores.base import ObjectInfo
from streamrec.stores.open import Stores
from tests.pipeline.shards import settings_of, write, write_index
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@asynchronous
async def test_shards_are_sorted_and_lanes_follow_their_number(tmp_path: Path) -> None:
    write(tmp_path, ((1,),) * 3)
    names = [str(tmp_path / f"part-0000{i}.tfrecord") for i in (2, 0, 1)]
    dataset = await Dataset.open(settings_of(names))
    assert list(dataset.shards) == sorted(names)
    assert dataset.lanes == 3
    assert repr(dataset) == "<Dataset of 3 shards, 3 lanes>"
    await dataset.aclose()


@pytest.mark.parametrize(
    ("values", "lanes"),
    [
        ({}, 48),
        ({"shuffle": True}, 96),
        ({"shuffle": True, "index": True}, 48),
        ({"shuffle": True, "lanes": 7}, 7),
    ],
)
def test_whole_shards_are_shuffled_over_more_lanes(
    tmp_path: Path, values: dict[str, Any], lanes: int
) -> None:
    source = write(tmp_path, ((1,),) * 100)
    write_index(source, 200)

    async def main() -> None:
        dataset = await Dataset.open(settings_of(source, **values))
        assert dataset.lanes == lanes
        await dataset.aclose()

    asyncio.run(main())


@asynchronous
async def test_of_a_mix_each_lane_has_several_shards(tmp_path: Path) -> None:
    source = write(tmp_path, ((1,),) * 100)
    weights = {"a": 0.5, "b": 0.5}
    values = {"weights": weights, "steps_per_epoch": 1, "shuffle": True}
    both: Any = {"a": source, "b": source}
    dataset = await Dataset.open(settings_of(both, **values))
    assert dataset.lanes == 48
    await dataset.aclose()


@asynchronous
async def test_the_fingerprint_names_what_determines_the_order(tmp_path: Path) -> None:
    source = write(tmp_path, ((1,),) * 4)
    plain = await Dataset.open(settings_of(source, epochs=None, seed=5, shuffle_window="1MiB"))
    same = await Dataset.open(settings_of(source, epochs=3, prefetch=2))
    shuffled = await Dataset.open(settings_of(source, shuffle=True, shuffle_window="1MiB"))
    assert plain.fingerprint(4, 2) == same.fingerprint(8, 1)
    assert plain.fingerprint(4, 2) != plain.fingerprint(4, 1)
    assert plain.fingerprint(4, 1) != shuffled.fingerprint(4, 1)
    for dataset in (plain, same, shuffled):
        await dataset.aclose()


@asynchronous
async def test_a_pattern_without_a_match(tmp_path: Path) -> None:
    with pytest.raises(ObjectNotFound):
        await Dataset.open(settings_of(str(tmp_path / "*.none")))


@asynchronous
async def test_features_are_inferred_from_the_first_records(tmp_path: Path) -> None:
    (tmp_path / "a.tfrecord").touch()
    (tmp_path / "b.tfrecord").write_bytes(frame(encode_example({"x": [1, 2], "y": b"z"})))
    dataset = await Dataset.open(settings_of(str(tmp_path / "*"), features="infer"))
    features = dataset.settings.features
    assert isinstance(features, dict)
    assert sorted(features) == ["x", "y"]
    assert list(features["x"]["shape"]) == [2]
    await dataset.aclose()


class Silent:
    """A store that never answers."""

    @asynccontextmanager
    async def open_range(self, *_: Any, **__: Any) -> AsyncIterator[None]:
        await asyncio.Event().wait()
        yield

    async def list(self, *_: Any, **__: Any) -> AsyncIterator[ObjectInfo]:
        await asyncio.Event().wait()
        yield ObjectInfo("")

    async def aclose(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize(
    ("source", "settings", "words"),
    [
        ("memory://x/*", {}, r"memory://x/\*: listing stalls: .* after 0 names"),
        ("memory://x/a", {"features": "infer"}, "memory://x/a: opening stalls: inferring"),
        ("memory://x/a", {"index": True}, "memory://x/.*: opening stalls: reading the index"),
        ("memory://x/a", {"index": "memory://i"}, "memory://i: opening stalls"),
    ],
    ids=["listing", "features", "an index beside the shards", "an index elsewhere"],
)
@asynchronous
async def test_a_store_that_never_answers(
    source: str, settings: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Stores, "store_for", lambda *_: Silent())
    with pytest.raises(StoreUnavailable, match=words):
        await Dataset.open(settings_of(source, stall_timeout=0.01, **settings))


@asynchronous
async def test_nothing_to_infer_features_from(tmp_path: Path) -> None:
    (tmp_path / "a.tfrecord").touch()
    with pytest.raises(ConfigError, match="no shard holds a record"):
        await Dataset.open(settings_of(str(tmp_path / "*"), features="infer"))
