"""Mixes whose components have indexes: their records are divided evenly over the lanes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

from streamrec.errors import MalformedPosition, ObjectNotFound, OtherOrder
from streamrec.pipeline.dataset import Dataset
from streamrec.plan.state.resume_point import Beginning, change_from
from tests.pipeline.mixes import write_mix
from tests.pipeline.small_datasets import (
    global_batches,
    identities,
    position_after,
    receive_all,
    receive_ranks,
    settings_of,
    write_index,
)
from tests.pipeline.test_run import FEW
from tests.support import asynchronous, examples

if TYPE_CHECKING:
    from pathlib import Path

    from streamrec.config import DatasetSettings
    from streamrec.plan.state.position import Position

FEWER = effort(FEW, max_examples=examples(6))
SHARDS: Any = st.lists(
    st.lists(st.integers(0, 300), min_size=8, max_size=20).map(tuple), min_size=1, max_size=2
).map(tuple)
MIXES = st.fixed_dictionaries({name: st.tuples(SHARDS, st.floats(0.05, 1)) for name in "ab"})
ORDERS = st.fixed_dictionaries(
    {
        "lanes": st.sampled_from([4, 8]),
        "shuffle": st.booleans(),
        "seed": st.integers(0, 9),
        "shuffle_window": st.integers(0, 6000),
    }
)
WEB: Any = ((5,) * 9, (60, 7, 8))
CODE: Any = ((200,) * 9,)
PLAIN: dict[str, Any] = {
    "index": True, "lanes": 4, "batch_size": 4, "shuffle": True, "shuffle_window": 2000,
}  # fmt: skip


def written(tmp_path: Path, mix: Any, **order: Any) -> DatasetSettings:
    """Write components with an index each; there are few shards for many lanes."""
    parts = {name: shards for name, (shards, _) in mix.items()}
    source: Any = write_mix(tmp_path / str(hash((str(mix), str(order)))), parts)
    for part in source.values():
        write_index(part, 400)
    weights = {name: weight for name, (_, weight) in mix.items()}
    return settings_of(source, weights=weights, **{**PLAIN, **order})


async def opened(tmp_path: Path, mix: Any, **order: Any) -> Dataset:
    return await Dataset.open(await asyncio.to_thread(written, tmp_path, mix, epochs=None, **order))


def everything(mix: Any) -> list[tuple[int, int]]:
    shards = [shard for name in sorted(mix) for shard in mix[name][0]]
    return [(number, i) for number, shard in enumerate(shards) for i in range(len(shard))]


@FEWER
@given(MIXES, ORDERS, st.sampled_from(["keep", "drop", "pad"]))
def test_an_epoch_has_every_record_once_and_a_length(
    tmp_path: Path, mix: Any, order: dict[str, Any], remainder: str
) -> None:
    settings = written(tmp_path, mix, **order, exhausted="rest", remainder=remainder)

    async def main() -> None:
        dataset = await Dataset.open(settings)
        batches = await receive_all(dataset)
        assert len(batches) == dataset.length(4, 1)
        seen = [pair for pair in identities(batches) if pair[0] >= 0]
        whole = everything(mix)
        if remainder == "drop":
            assert len(seen) == len(whole) // 4 * 4
            assert len({*seen}) == len(seen)
        else:
            assert sorted(seen) == whole
        await dataset.aclose()

    asyncio.run(main())


@FEWER
@given(MIXES, ORDERS, st.integers(0, 3), st.permutations([2, 4]))
def test_several_ranks_end_an_epoch_at_one_step(
    tmp_path: Path, mix: Any, order: dict[str, Any], stop: int, sizes: list[int]
) -> None:
    settings = written(tmp_path, mix, **order, exhausted="rest")

    async def main() -> None:
        dataset = await Dataset.open(settings.model_copy(update={"batch_size": 8}))
        whole = global_batches([await receive_all(dataset)])
        first, second = sizes
        ranks = await receive_ranks(settings, first, 8, most=stop or 99)
        states = [position_after(batches[-1]) for batches in ranks] if ranks[0] else []
        if stop and states:
            rest = await receive_ranks(settings, second, 8, states, most=99)
            ranks = [batches + rest[0] for batches in ranks]
            assert len({len(batches) for batches in rest}) == 1
            seen = global_batches(rest)
            assert seen == whole[stop : stop + len(seen)]
        steps = len(ranks[0])
        assert steps == dataset.length(8 // first, first) == dataset.length(8 // second, second)
        # Less than a record of each component in each lane, and less than a batch of all ranks.
        lanes = dataset.lanes
        lost = -(dataset.surplus(8 // first, first) or 0)
        assert lost == len(everything(mix)) - 8 * steps < len(mix) * lanes + 8
        if not stop:
            assert global_batches(ranks) == whole[:steps]
        await dataset.aclose()

    asyncio.run(main())


@FEWER
@given(MIXES, ORDERS, st.integers(1, 5), st.permutations([1, 2, 4]), st.integers(0, 8))
def test_any_stops_ranks_and_changes(
    tmp_path: Path, mix: Any, order: dict[str, Any], stop: int, sizes: list[int], step: int
) -> None:
    settings = written(tmp_path, mix, **order, steps_per_epoch=9)
    changes = change_from("", step, {"a": 0.2, "b": 1.0})

    async def main() -> None:
        dataset = await Dataset.open(settings.model_copy(update={"batch_size": 8}))
        start = Beginning(mix_changes=changes)
        whole = global_batches([await receive_all(dataset, position=start)])
        positions: list[Position] = [dataset.position(8, 0, 1, start)]
        seen: list[Any] = []
        for world_size, most in zip(sizes, [stop, 2, 7 - stop], strict=True):
            ranks = await receive_ranks(settings, world_size, 8, positions, most=most)
            seen += global_batches(ranks)
            positions = [position_after(batches[-1]) for batches in ranks]
        assert seen == whole
        await dataset.aclose()

    asyncio.run(main())


@asynchronous
async def test_a_component_joins(tmp_path: Path) -> None:
    two = {"web": (WEB, 0.5), "code": (CODE, 0.5)}
    before = await opened(tmp_path / "two", two)
    batches = await receive_all(before, most=6)
    after = await opened(tmp_path / "three", {**two, "books": (CODE, 0)})
    rest = await receive_all(after, position=position_after(batches[2]), most=3)
    assert [(shard - 1, record) for shard, record in identities(rest)] == identities(batches[3:])
    await before.aclose()
    await after.aclose()


@asynchronous
async def test_another_index_is_another_order(tmp_path: Path) -> None:
    mix = {"web": (WEB, 0.5), "code": (CODE, 0.5)}
    dataset = await opened(tmp_path, mix)
    state = position_after((await receive_all(dataset, most=2))[-1])
    by_shard = await Dataset.open(dataset.settings.model_copy(update={"index": None}))
    with pytest.raises(OtherOrder, match="order was 'record, as drawn:"):
        by_shard.position(4, 0, 1, state)
    sources = state.sources.copy()
    sources["offset"] = 1 << 30
    with pytest.raises(MalformedPosition, match="where the index has no chunk"):
        await receive_all(dataset, position=replace(state, sources=sources), most=1)
    await dataset.aclose()
    await by_shard.aclose()


@asynchronous
async def test_each_component_needs_an_index(tmp_path: Path) -> None:
    source: Any = write_mix(tmp_path, {"web": WEB, "code": CODE})
    await asyncio.to_thread(write_index, source["web"], 400)
    weights = {"web": 0.5, "code": 0.5}
    told = r"there is no index; write one with `streamrec index .*/code/.*`$"
    with pytest.raises(ObjectNotFound, match=told):
        await Dataset.open(settings_of(source, weights=weights, **PLAIN, epochs=None))


@asynchronous
async def test_lanes_are_as_few_as_the_records_of_the_smallest(tmp_path: Path) -> None:
    mix = {"web": (WEB, 0.5), "code": (CODE, 0.5), "books": (((1, 2),), 0)}
    dataset = await opened(tmp_path, mix, lanes="auto")
    assert dataset.lanes == 9
    await dataset.aclose()
