from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

from streamrec.errors import ConfigError, DataError, MalformedPosition, OtherDataset, OtherOrder
from streamrec.flow.channel import EndOfStream
from streamrec.pipeline.dataset import Dataset
from streamrec.pipeline.lane.mix_source import DrawnPlaces
from streamrec.plan.order.shard_order import Extent
from streamrec.plan.state.position import Position
from streamrec.plan.state.resume_point import Beginning
from tests.pipeline import user_functions
from tests.pipeline.mixes import Lengths, MixOracle, mix_of
from tests.pipeline.small_datasets import (
    contents,
    global_batches,
    identities,
    payload,
    position_after,
    receive_all,
    receive_ranks,
)
from tests.pipeline.test_run import FEW
from tests.support import asynchronous, examples

if TYPE_CHECKING:
    from pathlib import Path

    from streamrec.config import DatasetSettings

SHARDS: Any = st.lists(
    st.lists(st.integers(0, 300), min_size=1, max_size=9).map(tuple), min_size=1, max_size=4
).map(tuple)
WEIGHTS = st.floats(0.05, 1)
MIXES = st.fixed_dictionaries(
    {name: st.tuples(SHARDS, WEIGHTS) for name in "ab"}, optional={"c": st.tuples(SHARDS, WEIGHTS)}
)
ORDERS = st.fixed_dictionaries(
    {
        "lanes": st.integers(1, 4),
        "shuffle": st.booleans(),
        "seed": st.integers(0, 9),
        "shuffle_window": st.integers(0, 3000),
        "batch_size": st.one_of(st.none(), st.integers(1, 12)),
    }
)
ENDS: Any = st.sampled_from(
    [
        {"exhausted": "repeat", "steps_per_epoch": 7},
        {"exhausted": "repeat", "steps_per_epoch": 4, "epochs": 2},
        {"exhausted": "stop"},
        {"exhausted": "rest"},
    ]
)
ENDLESS: dict[str, Any] = {"epochs": None, "lanes": 2, "batch_size": 6}
WEB, CODE = ((5,) * 7, (60, 7), (1, 2, 3)), ((200,) * 4, (9,))


FEWER = effort(FEW, max_examples=examples(10))
"""Each example opens some tens of runs."""


def written(tmp_path: Path, mix: Any, order: dict[str, Any]) -> tuple[Any, DatasetSettings]:
    """Write components, and return them with the settings of their mix."""
    components = {name: shards for name, (shards, _) in mix.items()}
    weights = {name: weight for name, (_, weight) in mix.items()}
    directory = tmp_path / str(hash((str(mix), str(order))))
    return components, mix_of(directory, components, weights, **order)


def expected(components: dict[str, Lengths], dataset: Dataset, **more: Any) -> list[Any]:
    """Return the records that one rank must deliver in a run."""
    settings = dataset.settings
    steps = (settings.steps_per_epoch or 1 << 20) * (settings.epochs or 1)
    oracle = MixOracle(components, settings, dataset.lanes, **more)
    return oracle.rank(0, 1, steps * (settings.batch_size or 1))


@FEW
@given(MIXES, ORDERS, ENDS)
def test_delivers_what_the_oracle_says(
    tmp_path: Path, mix: Any, order: dict[str, Any], ends: dict[str, Any]
) -> None:
    async def main() -> None:
        components, settings = written(tmp_path, mix, {**order, **ends})
        dataset = await Dataset.open(settings)
        batches = await receive_all(dataset)
        pairs = expected(components, dataset)
        shards = MixOracle(components, settings, 1).shards
        assert identities(batches) == pairs
        records = [payload(shard, i, shards[shard][i]) for shard, i in pairs]
        lengths = [len(record) for record in contents(batches)]
        assert lengths == [len(record) for record in records]
        names = [name for name in sorted(mix) for _ in mix[name][0]]
        sources = [name for batch in batches for name in batch.source.tolist()]
        assert sources == [names[shard] for shard, _ in pairs]
        await dataset.aclose()

    asyncio.run(main())


@FEWER
@given(MIXES, ORDERS, ENDS)
def test_stop_at_every_k_and_resume(
    tmp_path: Path, mix: Any, order: dict[str, Any], ends: dict[str, Any]
) -> None:
    async def main() -> None:
        dataset = await Dataset.open(written(tmp_path, mix, {**order, **ends})[1])
        whole = await receive_all(dataset)
        for k, batch in enumerate(whole, start=1):
            tail = await receive_all(dataset, position=position_after(batch))
            assert identities(whole[:k] + tail) == identities(whole)
            if order["batch_size"]:
                assert [len(b) for b in whole[:k] + tail] == [len(b) for b in whole]
                assert [b.next_position for b in tail] == [b.next_position for b in whole[k:]]
        await dataset.aclose()

    asyncio.run(main())


@FEWER
@given(MIXES, ORDERS, st.integers(0, 3), st.permutations([1, 2, 4]), st.booleans())
def test_every_world_size_goes_on_with_the_same_global_batches(
    tmp_path: Path,
    mix: Any,
    order: dict[str, Any],
    stop: int,
    sizes: list[int],
    filtered: bool,
) -> None:
    """The world size changes in the middle of an epoch, for instance from 4 to 2, then to 1."""
    mix = {
        name: (tuple((*shard, 10) for shard in shards), w) for name, (shards, w) in mix.items()
    }  # a filter keeps some of each
    order = {
        **order,
        "lanes": 4,
        "steps_per_epoch": 9,
        "filter": user_functions.is_short if filtered else None,
    }

    settings = written(tmp_path, mix, order)[1]

    async def main() -> None:
        whole = global_batches(await receive_ranks(settings, 2, 12, most=9))
        positions: list[Position] = []
        seen: list[Any] = []
        for world_size, most in zip(sizes, [stop, 3, 6 - stop], strict=True):
            batches = await receive_ranks(settings, world_size, 12, positions, most=most)
            seen += global_batches(batches)
            positions = [
                position_after(own_batches[-1]) for own_batches in batches if own_batches
            ] or []
        assert seen == whole

    asyncio.run(main())


@FEWER
@given(MIXES, ORDERS, st.sampled_from(["stop", "rest"]))
def test_a_run_after_a_run_goes_on_with_the_next_epoch(
    tmp_path: Path, mix: Any, order: dict[str, Any], exhausted: str
) -> None:
    """With ``"rest"`` an epoch holds every record of each component once."""

    async def main() -> None:
        components, settings = written(tmp_path, mix, {**order, "exhausted": exhausted})
        dataset = await Dataset.open(settings)
        oracle = MixOracle(components, settings, dataset.lanes)
        everything = [(s, i) for s, shard in enumerate(oracle.shards) for i in range(len(shard))]
        position = None
        for epoch in range(3):
            run = dataset.run(
                rank=0, world_size=1, batch_size=settings.batch_size, position=position
            )
            received = []
            async with run:
                with contextlib.suppress(EndOfStream):
                    while True:
                        received.append(await run.receive())
            assert identities(received) == oracle.rank(0, 1, 1 << 20, epoch)
            if exhausted == "rest":
                assert sorted(identities(received)) == everything
            assert {batch.epoch for batch in received} <= {epoch}
            position = Position.from_dict(run.position.to_dict())
            begun = await receive_all(dataset, position=Beginning(epoch), most=1)
            assert identities(begun) == identities(received[:1])
        await dataset.aclose()

    asyncio.run(main())


@asynchronous
async def test_weights_change_with_that_record_of_all_ranks(tmp_path: Path) -> None:
    """Whatever the world size: the 31st record is the first of the other component."""
    weights = [(0, {"code": 0, "web": 1}), (30, {"code": 1, "web": 0})]
    for world_size in (1, 2, 4):
        settings = mix_of(
            tmp_path / str(world_size),
            {"web": WEB, "code": CODE},
            weights,
            **{**ENDLESS, "lanes": 4, "batch_size": 12 // world_size},
        )
        dataset = await Dataset.open(settings)
        ranks = [
            await receive_all(dataset, rank=rank, world_size=world_size, most=5)
            for rank in range(world_size)
        ]
        shares = [
            sum((batch.source == "web").sum() for batch in step)
            for step in zip(*ranks, strict=True)
        ]
        assert shares == [12, 12, 6, 0, 0]
        await dataset.aclose()


@asynchronous
async def test_each_component_goes_through_its_own_epochs(tmp_path: Path) -> None:
    """One lane: of each component every record comes once before one comes again."""
    values = {**ENDLESS, "lanes": 1, "shuffle": True, "shuffle_window": 0}
    settings = mix_of(tmp_path, {"web": WEB, "code": CODE}, {"web": 0.3, "code": 0.7}, **values)
    dataset = await Dataset.open(settings)
    pairs = identities(await receive_all(dataset, most=40))
    for shards in (range(2), range(2, 5)):  # of code and of web
        own_pairs = [pair for pair in pairs if pair[0] in shards]
        size = sum(len((CODE + WEB)[shard]) for shard in shards)
        for begin in range(0, len(own_pairs) - size, size):
            assert len(set(own_pairs[begin : begin + size])) == size
    await dataset.aclose()


@asynchronous
async def test_counts_of_each_component(tmp_path: Path) -> None:
    settings = mix_of(tmp_path, {"web": WEB, "code": CODE}, {"web": 2, "code": 1}, **ENDLESS)
    dataset = await Dataset.open(settings)
    run = dataset.run(rank=0, world_size=1, batch_size=6, position=None)
    seen: Counter[str] = Counter()
    async with run:
        for _ in range(20):
            seen.update((await run.receive()).source.tolist())
        assert run.statistics()["components"] == dict(seen)
    assert sum(seen.values()) == 120
    assert 60 < seen["web"] < 100
    await dataset.aclose()


@asynchronous
async def test_padding_is_of_no_component(tmp_path: Path) -> None:
    values = {"exhausted": "rest", "remainder": "pad", "batch_size": 100}
    settings = mix_of(tmp_path, {"web": WEB, "code": CODE}, {"web": 2, "code": 1}, **values)
    dataset = await Dataset.open(settings)
    (batch,) = await receive_all(dataset)
    assert Counter(batch.source.tolist()) == {"web": 12, "code": 5, "": 83}
    await dataset.aclose()


class TestRefusals:
    async def dataset(self, directory: Path, weights: Any = None, **values: Any) -> Dataset:
        weights = weights or {"web": 0.5, "code": 0.5}
        components = values.pop("components", {"web": WEB, "code": CODE})
        return await Dataset.open(mix_of(directory, components, weights, **{**ENDLESS, **values}))

    @asynchronous
    async def test_positions_of_another_mix(self, tmp_path: Path) -> None:
        here = await self.dataset(tmp_path / "here")
        state = position_after((await receive_all(here, most=1))[-1])
        others: list[tuple[Any, str, dict[str, Any]]] = [
            (OtherOrder, "mix was", {"weights": {"web": 0.4, "code": 0.6}}),
            (OtherOrder, "mix was", {"exhausted": "stop", "epochs": 1}),
            (OtherOrder, "seed was 0 and is 4", {"seed": 4}),
            (OtherDataset, "shards", {"components": {"web": WEB, "code": WEB}}),
            (OtherDataset, "shards", {"components": {"web": CODE, "code": WEB}}),
        ]
        for number, (error, message, values) in enumerate(others):
            other = await self.dataset(tmp_path / str(number), **values)
            with pytest.raises(error, match=message):
                other.run(rank=0, world_size=1, batch_size=6, position=state)
            await other.aclose()
        await here.aclose()

    @asynchronous
    async def test_a_position_of_as_many_components_as_the_mix_has(self, tmp_path: Path) -> None:
        dataset = await self.dataset(tmp_path)
        fingerprint = dataset.fingerprint(6, 1)
        forged = Position.start(fingerprint, [0] * 6, rank=0, world_size=1)
        with pytest.raises(MalformedPosition, match="a different number of components"):
            dataset.run(rank=0, world_size=1, batch_size=6, position=forged)
        await dataset.aclose()

    @asynchronous
    async def test_places_that_a_mix_does_not_know(self, tmp_path: Path) -> None:
        dataset = await self.dataset(tmp_path)
        with pytest.raises(ConfigError, match="components that repeat; load a state"):
            await receive_all(dataset, position=Beginning(2))
        with pytest.raises(ConfigError, match="a step is unknown in a mix; load a state"):
            await receive_all(dataset, position=Beginning(step=2))
        await dataset.aclose()

    @asynchronous
    async def test_several_ranks_and_components_that_end(self, tmp_path: Path) -> None:
        dataset = await self.dataset(tmp_path, exhausted="stop", epochs=1)
        with pytest.raises(ConfigError, match='set exhausted to "repeat", and steps_per_epoch'):
            dataset.fingerprint(6, 2)
        await dataset.aclose()

    @asynchronous
    async def test_a_component_of_nothing_that_is_to_repeat(self, tmp_path: Path) -> None:
        dataset = await self.dataset(tmp_path, components={"web": WEB, "code": ((), ())})
        with pytest.raises(DataError, match="all shards of the component 'code'"):
            await receive_all(dataset, most=40)
        await dataset.aclose()

    @asynchronous
    async def test_lanes_are_as_few_as_the_shards_of_the_smallest(self, tmp_path: Path) -> None:
        dataset = await self.dataset(tmp_path, lanes="auto")
        assert dataset.lanes == len(CODE)
        await dataset.aclose()


@given(st.lists(st.integers(0, 2), min_size=1, max_size=20), st.integers(0, 2**40))
def test_where_a_lane_stands_behind_draws_is_where_it_stands_after_as_many(
    choices: list[int], first: int
) -> None:
    """All at once, as one by one."""
    count = len(choices)
    points = np.arange(3 * (3 + count)).reshape(3 + count, 3)
    drawn = DrawnPlaces(first, np.array(choices), points, np.zeros(3 + count, np.int64))
    draws, extent = np.arange(count)[::2], Extent(0, 5, -1)
    expected = [drawn.after(number, extent).numbers for number in draws.tolist()]
    assert drawn.ends(draws, extent).tolist() == expected
