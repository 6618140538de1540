from __future__ import annotations

import asyncio
import threading
import tracemalloc
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from streamrec.errors import ConfigError, ObjectNotFound
from streamrec.formats.shards.index import Index
from streamrec.pipeline import dataset_identity
from streamrec.pipeline.dataset import Dataset
from streamrec.plan.order.record_order import RecordOrder
from streamrec.plan.order.shard_order import DealtShards
from streamrec.stores.base.protocol import ObjectInfo
from streamrec.stores.open import Stores
from tests.pipeline import user_functions
from tests.pipeline.small_datasets import (
    contents,
    identities,
    receive_all,
    settings_of,
    write,
    write_index,
)
from tests.support import asynchronous

if TYPE_CHECKING:
    from pathlib import Path


@asynchronous
async def test_a_list_keeps_its_order_and_lanes_follow_its_number(tmp_path: Path) -> None:
    write(tmp_path, ((1,),) * 3)
    names = [str(tmp_path / f"part-0000{i}.tfrecord") for i in (2, 0, 1)]
    dataset = await Dataset.open(settings_of(names))
    assert list(dataset.shards) == names
    assert dataset.lanes == 3
    assert repr(dataset) == "<Dataset of 3 shards, 3 lanes>"
    await dataset.aclose()


@pytest.mark.parametrize(
    ("values", "lanes", "at_once"),
    [
        ({}, 48, 1),
        ({"length_buckets": 2}, 48, 1),
        ({"shuffle": True}, 48, 3),
        ({"shuffle": True, "index": True}, 48, 1),
        ({"shuffle": True, "index": True, "filter": user_functions.is_short}, 48, 1),
        ({"shuffle": True, "lanes": 7}, 7, 15),
        ({"shuffle": True, "lanes": 64}, 64, 2),
        ({"shuffle": True, "lanes": 73}, 73, 1),
    ],
)
def test_whole_shards_are_shuffled_several_at_once(
    tmp_path: Path, values: dict[str, Any], lanes: int, at_once: int
) -> None:
    source = write(tmp_path, ((1,),) * 100)
    write_index(source, 200)

    async def main() -> None:
        memory = {"shuffle_window": "72MiB", "memory_budget": "256MiB"}
        dataset = await Dataset.open(settings_of(source, batch_size=2, **memory, **values))
        assert dataset.lanes == lanes
        (batch,) = await receive_all(dataset, most=1)
        assert batch.next_position.components == at_once
        order = dataset.fingerprint(2, 1).order
        assert order.endswith(f", {at_once} at once") == (at_once > 1)
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


async def names_of(*urls: str) -> str:
    dataset = await Dataset.open(settings_of(list(urls)), objects=[ObjectInfo(url) for url in urls])
    await dataset.aclose()
    return dataset.fingerprint(4, 1).names


@asynchronous
async def test_a_signature_and_an_archive_are_no_part_of_the_fingerprint() -> None:
    plain = await names_of("/d/x", "/d/y")
    assert await names_of("https://h/d/x?sig=1", "https://h/d/y?sig=2") == plain
    assert await names_of("https://h/d/x?sig=3", "https://h/d/y?sig=3") == plain
    assert await names_of("zip://in/x::/1/a.zip", "zip://in/y::/1/a.zip") == plain
    assert await names_of("zip://in/y::/1/a.zip", "zip://in/x::/1/a.zip") != plain
    two = [await names_of(f"zip://x::{d}/a.zip", f"zip://x::{d}/b.zip") for d in ("/1", "/2")]
    assert two[0] == two[1] != plain


@asynchronous
async def test_queries_that_tell_shards_apart_are_part_of_the_fingerprint() -> None:
    one = await names_of("https://h/get?id=1", "https://h/get?id=2")
    assert one != await names_of("https://h/get?id=3", "https://h/get?id=4")
    assert one == await names_of("https://i/get?id=1", "https://i/get?id=2")


@asynchronous
async def test_a_pattern_without_a_match(tmp_path: Path) -> None:
    with pytest.raises(ObjectNotFound):
        await Dataset.open(settings_of(str(tmp_path / "*.none")))


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"shuffle": True, "shuffle_window": "64KiB"},
        {"shuffle": True, "index": True, "shuffle_window": "64KiB"},
        {"shuffle": True, "length_buckets": 2, "shuffle_window": "64KiB"},
    ],
)
def test_a_smaller_budget_of_a_run_changes_no_batch(tmp_path: Path, values: dict[str, Any]) -> None:
    source = write(tmp_path, tuple(tuple(range(1, 9 + shard)) for shard in range(12)))
    write_index(source, 200)
    settings = settings_of(source, batch_size=4, seed=3, lanes=6, memory_budget="256MiB", **values)

    async def main() -> None:
        dataset = await Dataset.open(settings)
        least = dataset.least_budget(1)
        assert least < 16 << 20
        whole, thrifty = [await receive_all(dataset, budget=budget) for budget in (None, least)]
        assert contents(thrifty) == contents(whole)
        assert identities(thrifty) == identities(whole)
        positions = [[b.next_position.to_dict() for b in batches] for batches in (whole, thrifty)]
        assert positions[0] == positions[1]
        await dataset.aclose()

    asyncio.run(main())


@asynchronous
async def test_a_run_has_the_budget_that_it_is_given(tmp_path: Path) -> None:
    dataset = await Dataset.open(settings_of(write(tmp_path, ((1,),))))
    arguments: Any = {"rank": 0, "world_size": 1, "batch_size": 1, "position": None}
    async with dataset.run(**arguments, budget=20 << 20) as run:
        await run.receive()
        assert run.statistics()["bytes_budgeted"] <= 15 << 20
    with pytest.raises(ConfigError, match="too small"):
        dataset.run(**arguments, budget=64 << 10)
    await dataset.aclose()


@asynchronous
async def test_the_memory_of_a_rank_with_one_lane_must_suffice(tmp_path: Path) -> None:
    source = write(tmp_path, ((5,) * 9, (5,) * 4))
    for window, fits in (("64MiB", True), ("1GiB", False)):
        values: dict[str, Any] = {"shuffle": True, "shuffle_window": window}
        dataset = await Dataset.open(settings_of(source, lanes=2, memory_budget="64MiB", **values))
        with nullcontext() if fits else pytest.raises(ConfigError, match="memory_budget of 64 MiB"):
            dataset.check_memory()
        await dataset.aclose()


@pytest.mark.parametrize("by_record", [True, False])
def test_a_large_dataset_is_made_apart_from_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, by_record: bool
) -> None:
    source = write(tmp_path, ((10,) * 4,) * 2)
    write_index(source, 16)
    made: dict[str, int] = {}

    def noting(name: str, function: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            made[name] = threading.get_ident()
            return function(*arguments, **named)

        return call

    monkeypatch.setattr(Dataset, "__init__", noting("dataset", Dataset.__init__))
    monkeypatch.setattr(Index, "parse", noting("index", Index.parse))
    monkeypatch.setattr(RecordOrder, "_permute", noting("order", RecordOrder._permute))
    monkeypatch.setattr(DealtShards, "_draw", noting("order", DealtShards._draw))

    async def main() -> None:
        index = True if by_record else None
        shuffle: dict[str, Any] = {"shuffle": True, "shuffle_window": "1MiB"}
        dataset = await Dataset.open(settings_of(source, index=index, lanes=2, **shuffle))
        dataset.run(rank=0, world_size=1, batch_size=4, position=None)
        await dataset.aclose()

    asyncio.run(main())
    assert sorted(made) == ["dataset", *["index"] * by_record, "order"]
    assert threading.get_ident() not in made.values()


@asynchronous
async def test_the_names_of_a_million_shards_are_digested_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = await Dataset.open(settings_of(write(tmp_path, ((10,) * 4,) * 2)))

    def again(_: Any) -> str:
        raise AssertionError

    monkeypatch.setattr(dataset_identity, "names_digest", again)
    dataset.fingerprint(2, 1)
    dataset.run(rank=0, world_size=1, batch_size=2, position=None)
    await dataset.aclose()


@asynchronous
async def test_a_run_copies_nothing_of_what_is_known_of_the_shards(tmp_path: Path) -> None:
    settings = settings_of(str(tmp_path), lanes=2, shuffle=False)
    listed = [ObjectInfo(f"{tmp_path}/{shard:06}", 100, str(shard)) for shard in range(20_000)]
    dataset = Dataset(settings, Stores({}, stall_timeout=10.0), listed)
    part: dict[str, Any] = {"rank": 0, "world_size": 1, "batch_size": 4, "position": None}
    dataset.run(**part)
    tracemalloc.start()
    try:
        run = dataset.run(**part)
        assert tracemalloc.get_traced_memory()[1] < 20_000
    finally:
        tracemalloc.stop()
    assert run.position.step == 0
    await dataset.aclose()


@asynchronous
async def test_the_settings_stay_those_of_which_the_order_was_derived(tmp_path: Path) -> None:
    dataset = await Dataset.open(settings_of(write(tmp_path, ((10,) * 4,) * 2)))
    with pytest.raises(AttributeError, match="settings"):
        dataset.settings = dataset.settings.model_copy()  # type: ignore[misc]
    await dataset.aclose()
