"""Elasticity by record as well as by shard, with filters and packs in the lanes."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streamrec.config import Pack
from streamrec.errors import DataError
from streamrec.plan.state.resume_point import Beginning, for_rank
from tests.pipeline import user_functions
from tests.pipeline.lane.test_packing_stage import FEATURES, write
from tests.pipeline.small_datasets import identities, write_index
from tests.streams.test_elasticity import ORDERS, WAYS, Reading, _saved, goes_on_for_ever
from tests.support import examples

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamrec.pipeline.batch.batch import Batch
    from streamrec.plan.state.resume_point import ResumePoint

pytestmark = pytest.mark.night

Shards = tuple[tuple[int, ...], ...]

SHARDS = (
    st.lists(st.lists(st.integers(0, 12), max_size=9).map(tuple), min_size=1, max_size=6)
    .map(tuple)
    .filter(any)
)
"""Shards of records with so many tokens each."""
STAGES: dict[str, dict[str, Any]] = {
    "plain": {},
    "filter": {"filter": user_functions.has_even_number},
    "pack": {"pack": Pack(7, bins=3)},
    "buckets": {"length_buckets": 3},
    "filter and buckets": {"filter": user_functions.has_even_number, "length_buckets": 2},
    "filter and split": {"filter": user_functions.has_even_number, "pack": Pack(5, split=True)},
}
PLANS = st.lists(
    st.tuples(st.sampled_from([1, 2, 4, 8]), st.integers(1, 3)), min_size=1, max_size=3
)
"""So many ranks for so many steps."""
BY = pytest.mark.parametrize("by", ["shard", "record"])
ORDER: dict[str, Any] = {"shuffle": True, "seed": 0, "shuffle_window": 0}
FEW = settings(max_examples=examples(8), deadline=None)


def written(directory: str | Path, by: str, shards: Shards) -> str:
    source = write(Path(directory), shards)
    if by == "record":
        write_index(source, 60)
    return source


def settings_by(by: str, stage: str) -> dict[str, Any]:
    index = {"index": True} if by == "record" else {}
    return {"features": FEATURES, **index, **STAGES[stage]}


def rows_of(batch: Batch) -> list[str]:
    """Each row: where it is from, all its columns, and whether it is there."""
    columns = [batch[name] for name in sorted(batch)]
    lists = [c.tolist() if hasattr(c, "tolist") else c.to_list() for c in columns]
    masks = [True] * len(batch) if batch.mask is None else batch.mask.tolist()
    return [str(row) for row in zip(identities([batch]), masks, *lists, strict=True)]


async def global_batches(
    reading: Reading, world_size: int, global_batch: int, starts: Sequence[ResumePoint], most: int
) -> tuple[list[list[str]], list[ResumePoint]]:
    """Return the records that all ranks deliver in each step, and the ranks' last positions."""
    ranks: list[list[Batch]] = []
    for rank in range(world_size):
        start = for_rank(starts, rank, world_size)
        where: Any = {"rank": rank, "world_size": world_size, "global_batch": global_batch}
        ranks.append(await reading.rank(start, most, **where))
    steps = zip(*ranks, strict=True)
    together = [sorted(chain(*map(rows_of, step))) for step in steps]
    return together, [_saved(batches[-1].next_position) for batches in ranks]


@WAYS
@BY
@FEW
@given(
    shards=SHARDS,
    order=ORDERS,
    stage=st.sampled_from(sorted(STAGES)),
    batch_size=st.one_of(st.none(), st.integers(1, 6)),
    ends=st.sampled_from(["keep", "drop", "pad"]),
)
@example(((0, 0, 0, 0, 0, 1, 0, 0),), ORDER, "buckets", 1, "pad")
def test_stop_at_every_k(
    way: str, by: str, shards: Shards, order: Any, stage: str, batch_size: int | None, ends: str
) -> None:
    if "buckets" in stage:
        batch_size = batch_size or 1
    values = {**order, **settings_by(by, stage), "batch_size": batch_size}
    values["lanes"] = min(3, sum(map(len, shards)))
    values["remainder"] = ends if batch_size else "keep"

    async def main(source: str) -> None:
        async with Reading.of(source, way, **values) as reading:
            whole = await reading.rank(Beginning())
            for k, batch in enumerate(whole, 1):
                tail = await reading.rank(_saved(batch.next_position))
                found = [row for batch in whole[:k] + tail for row in rows_of(batch)]
                assert found == [row for batch in whole for row in rows_of(batch)]
                if batch_size:
                    assert [b.next_position for b in tail] == [b.next_position for b in whole[k:]]

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(main(written(directory, by, shards)))


@WAYS
@FEW
@given(
    components=st.lists(SHARDS, min_size=2, max_size=3),
    order=ORDERS,
    stage=st.sampled_from(sorted(STAGES)),
    ends=st.sampled_from([{"exhausted": "rest"}, {"exhausted": "stop"}, {"steps_per_epoch": 7}]),
)
def test_a_mix_stopped_at_every_k(
    way: str, components: list[Shards], order: Any, stage: str, ends: Any
) -> None:
    full = [tuple((*lengths, 8, 2) for lengths in shards) for shards in components]
    names = [str(n) for n in range(len(full))]
    weights = [(0, {name: 1.0 + int(name) for name in names}), (9, dict.fromkeys(names, 1.0))]
    values: Any = {**order, **settings_by("shard", stage), **ends, "weights": weights}

    async def main(source: Any) -> None:
        async with Reading.of(source, way, **values, lanes=2, batch_size=3) as reading:
            whole = await reading.rank(Beginning())
            for k, batch in enumerate(whole, 1):
                tail = await reading.rank(_saved(batch.next_position))
                found = [row for batch in whole[:k] + tail for row in rows_of(batch)]
                assert found == [row for batch in whole for row in rows_of(batch)]
                assert [b.next_position for b in tail] == [b.next_position for b in whole[k:]]

    with tempfile.TemporaryDirectory() as directory:
        each = zip(names, full, strict=True)
        source = {name: write(Path(directory) / name, shards) for name, shards in each}
        asyncio.run(main(source))


@WAYS
@BY
@FEW
@given(
    shards=SHARDS,
    order=ORDERS,
    stage=st.sampled_from(sorted(STAGES)),
    plan=PLANS,
)
def test_resized_again_and_again(
    way: str, by: str, shards: Shards, order: Any, stage: str, plan: list[tuple[int, int]]
) -> None:
    full = tuple((*lengths, 8, 2) for lengths in shards)  # so that each lane keeps some, in the end
    if by == "record" and sum(map(len, full)) < 8:
        return  # the lanes cannot share them

    async def main(source: str) -> None:
        values = {**order, **settings_by(by, stage), "lanes": 8, "epochs": None}
        async with Reading.of(source, way, **values) as reading:
            total = sum(steps for _, steps in plan)
            try:
                whole, _ = await global_batches(reading, 1, 8, [Beginning()], total)
            except DataError:
                assert by == "record"  # a lane's piece holds nothing but what the filter leaves out
                return
            starts: list[ResumePoint] = [Beginning()]
            resized: list[list[str]] = []
            for world_size, steps in plan:
                some, starts = await global_batches(reading, world_size, 8, starts, steps)
                resized += some
            assert resized == whole

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(main(written(directory, by, full)))


@BY
@pytest.mark.parametrize("stage", ["filter", "pack", "filter and split", "buckets"])
def test_the_same_rows_on_eight_to_48_ranks(tmp_path: Path, by: str, stage: str) -> None:
    """Uneven shards: more than lanes are there by shard, and far fewer by record."""
    count = 53 if by == "shard" else 7
    shards = tuple(
        tuple((3 * shard + 5 * i) % 13 for i in range(2 + 400 // count + shard % 3))
        for shard in range(count)
    )
    source = written(tmp_path, by, shards)
    ends: Any = {"lanes": 48, "epochs": 1, "steps_per_epoch": 2}

    async def main() -> None:
        values = {**settings_by(by, stage), **ends, "shuffle": True, "shuffle_window": 5000}
        async with Reading.of(source, "in process", **values) as reading:
            whole, _ = await global_batches(reading, 1, 96, [Beginning()], 3)
            assert [len(rows) for rows in whole] == [96, 96]
            for world_size in (8, 12, 48):
                there, _ = await global_batches(reading, world_size, 96, [Beginning()], 3)
                assert there == whole, world_size

    asyncio.run(main())


@BY
@pytest.mark.parametrize("stage", ["filter", "pack"])
def test_every_rank_gets_the_steps_that_were_said(tmp_path: Path, by: str, stage: str) -> None:
    """Nobody knows what is left of a lane, and no rank waits for ever."""
    shards = tuple(tuple((7 * s + i) % 13 for i in range(5 + 7 * s % 11)) for s in range(19))

    source = written(tmp_path, by, shards)

    async def main() -> None:
        values: Any = {**settings_by(by, stage), "lanes": 16, "epochs": 2, "steps_per_epoch": 9}
        async with Reading.of(source, "feeder", **values) as reading:
            ranks = [
                await reading.rank(Beginning(), rank=rank, world_size=8, global_batch=40)
                for rank in range(8)
            ]
        assert [len(batches) for batches in ranks] == [18] * 8
        assert {len(batch) for batch in chain(*ranks)} == {5}

    asyncio.run(main())


@BY
@FEW
@given(
    shards=SHARDS,
    order=ORDERS,
    world_size=st.sampled_from([1, 2, 3, 6]),
    first=st.integers(0, 2),
)
def test_every_kept_record_once_an_epoch(
    by: str, shards: Shards, order: Any, world_size: int, first: int
) -> None:
    """Over all ranks together, in whichever epoch they begin, as long as all lanes have some."""
    # One of two neighbours is kept, and each lane has two: a lane that keeps none is refused.
    pairs = (chain(*((n, 2) for n in lengths)) for lengths in shards)
    full = tuple((*some, *[2, 4, 6, 8, 2, 4] * 2) for some in pairs)
    if by == "shard" and not goes_on_for_ever(full, 6, shuffle=order["shuffle"]):
        return

    async def one(reading: Reading, rank: int) -> list[tuple[int, int]]:
        run = reading._dataset.run(
            rank=rank, world_size=world_size, batch_size=1, position=Beginning(first)
        )
        found = []
        async with run:
            while run.position.epoch <= first:
                batch = await run.receive()
                found += identities([batch]) if batch.epoch == first else []
        return found

    async def main(source: str) -> None:
        values = {**order, **settings_by(by, "filter"), "lanes": 6, "epochs": None}
        async with Reading.of(source, "in process", **values) as reading:
            found = [await one(reading, rank) for rank in range(world_size)]
        kept = {
            (s, i) for s, lengths in enumerate(full) for i, n in enumerate(lengths) if not n % 2
        }
        assert Counter(chain(*found)) == Counter(kept)

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(main(written(directory, by, full)))
