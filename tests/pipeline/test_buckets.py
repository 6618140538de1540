"""Buckets of records of like length, from shards on disk to batches."""

from __future__ import annotations

import asyncio
import gzip
import json
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamrec.errors import ConfigError, MalformedPosition, OtherOrder
from streamrec.pipeline.dataset import Dataset
from streamrec.plan.state.position import Position
from streamrec.plan.state.resume_point import Beginning
from tests.by_day import stops
from tests.pipeline import user_functions
from tests.pipeline.damaged_index import Damaged, damaged
from tests.pipeline.mixes import mix_of
from tests.pipeline.small_datasets import (
    contents,
    identities,
    oracle,
    payload,
    receive_all,
    record_oracle,
    settings_of,
    write,
    write_index,
)
from tests.pipeline.strategies import Shards, orders, shards_of
from tests.pipeline.test_damage import ALL, rows
from tests.support import asynchronous, examples

if TYPE_CHECKING:
    from streamrec.pipeline.batch.batch import Batch

SHARDS = shards_of(6, 12, 300)
ORDERS = orders(
    9000,
    3,
    length_buckets=st.integers(2, 5),
    batch_size=st.integers(1, 9),
    filter=st.sampled_from([None, user_functions.is_short]),
)
FEW = settings(max_examples=examples(40), deadline=None)
BY = pytest.mark.parametrize("by", ["shard", "record"])


def position_after(batch: Batch) -> Position:
    return Position.from_dict(json.loads(json.dumps(batch.next_position.to_dict())))


def written(directory: str | Path, shards: Shards, by: str) -> str:
    source = write(Path(directory), shards)
    if by == "record":
        write_index(source, 400)
    return source


def expected(shards: Shards, dataset: Dataset, by: str) -> list[tuple[int, int]]:
    values, lanes = dataset.settings, dataset.lanes
    keep = None if values.filter is None else lambda length: length % 3 != 0
    order: Any = (
        oracle(shards, values, lanes, keep or (lambda length: True))
        if by == "shard"
        else record_oracle(shards, values, lanes, 400, keep)
    )
    return [(s, i) for _, s, i in order.rank(0, 1, range(values.epochs or 1))]


@BY
@FEW
@given(SHARDS, ORDERS, st.integers(1, 5))
def test_delivers_what_the_oracle_says_wherever_it_is_resumed(
    by: str, shards: Shards, order: dict[str, Any], lanes: int
) -> None:
    async def main(source: str) -> None:
        index = by == "record"
        dataset = await Dataset.open(settings_of(source, **order, lanes=lanes, index=index))
        whole = await receive_all(dataset)
        pairs = expected(shards, dataset, by)
        assert identities(whole) == pairs
        assert contents(whole) == [payload(s, i, shards[s][i]) for s, i in pairs]
        for k, batch in enumerate(whole, start=1):
            tail = await receive_all(dataset, position=position_after(batch))
            assert identities(tail) == identities(whole[k:])
            assert [b.next_position for b in tail] == [b.next_position for b in whole[k:]]
        await dataset.aclose()

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(main(written(directory, shards, by)))


async def ranks_of(source: str, world_size: int, **values: Any) -> list[list[Batch]]:
    dataset = await Dataset.open(settings_of(source, **values))
    try:
        return [
            await receive_all(dataset, rank=rank, world_size=world_size)
            for rank in range(world_size)
        ]
    finally:
        await dataset.aclose()


def lengths_of(batches: list[Batch]) -> list[int]:
    return [len(record) for record in contents(batches)]


def padding(steps: list[list[int]]) -> float:
    """Return the fraction of padding in dense batches of these lengths."""
    return 1 - sum(map(sum, steps)) / sum(len(step) * max(step) for step in steps)


DRAWN = tuple(
    tuple(np.random.default_rng(shard).integers(1, 1000, 90 + 7 * shard % 60).tolist())
    for shard in range(16)
)


@BY
def test_every_world_size_has_the_same_batches_of_like_length(tmp_path: Path, by: str) -> None:
    source = written(tmp_path, DRAWN, by)
    values: Any = {"shuffle": True, "shuffle_window": "4MB", "lanes": 8, "index": by == "record"}
    values |= {"steps_per_epoch": 40}

    def global_batches(world_size: int, **more: Any) -> list[list[bytes]]:
        size = 32 // world_size
        ranks = asyncio.run(ranks_of(source, world_size, **values, **more, batch_size=size))
        return [sorted(contents(list(step))) for step in zip(*ranks, strict=True)]

    plain, alone = global_batches(1), global_batches(1, length_buckets=8)
    for world_size in stops((2, 4, 8)):
        assert global_batches(world_size, length_buckets=8) == alone
    without, with_buckets = ([list(map(len, s)) for s in steps] for steps in (plain, alone))
    assert padding(without) > 0.45
    assert padding(with_buckets) < 0.2


@asynchronous
async def test_without_shuffle_records_of_one_bucket_keep_their_order(tmp_path: Path) -> None:
    lengths = (10, 20, 11, 21, 12, 22, 13, 23)
    source = write(tmp_path, (lengths,))
    values: Any = {"batch_size": 2, "shuffle_window": "1MiB", "length_buckets": 2}
    (batches,) = await ranks_of(source, 1, **values)
    pairs = [lengths_of([batch]) for batch in batches]
    assert sorted(pairs) == [[10, 11], [12, 13], [20, 21], [22, 23]]
    assert [pair[0] < 20 for pair in pairs] == [False, True, False, True]


@asynchronous
async def test_a_mix_is_sorted_into_buckets_after_it_was_drawn(tmp_path: Path) -> None:
    components = {"long": (tuple(range(500, 560)),) * 2, "short": (tuple(range(60)),) * 2}
    order: Any = {"shuffle_window": "1MiB", "lanes": 2, "batch_size": 6, "length_buckets": 2}
    weights = {"long": 1.0, "short": 1.0}
    mixed = mix_of(tmp_path, components, weights, **order, exhausted="rest")
    dataset = await Dataset.open(mixed)
    whole = await receive_all(dataset)
    every = {(shard, record) for shard in range(4) for record in range(60)}
    assert Counter(identities(whole)) == Counter(every)
    assert padding([lengths_of([batch]) for batch in whole]) < 0.2
    for k, batch in enumerate(whole, start=1):
        tail = await receive_all(dataset, position=position_after(batch))
        assert identities(tail) == identities(whole[k:])
    await dataset.aclose()


@BY
@settings(max_examples=examples(25))
@given(damaged(4), ORDERS, st.sampled_from(["keep", "drop", "pad"]))
def test_damage_is_left_out_or_masked_and_resumed(
    by: str, few: Damaged, order: dict[str, Any], ends: str
) -> None:
    values: Any = {**order, "filter": None, "on_corrupt": "skip", "corrupt_budget": ALL}
    values |= {"lanes": min(4, len(few.rows())), "remainder": ends, "index": by == "record"}

    async def main(source: str) -> None:
        dataset = await Dataset.open(settings_of(source, **values))
        whole = await receive_all(dataset)
        if by == "record":
            assert len(whole) == dataset.length(order["batch_size"], 1)
        for k, batch in enumerate(whole, start=1):
            assert rows(await receive_all(dataset, position=position_after(batch))) == rows(
                whole[k:]
            )
        await dataset.aclose()

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(main(few.write(Path(directory))))


@asynchronous
async def test_compressed_shards_come_in_the_same_order(tmp_path: Path) -> None:
    plain, packed = tmp_path / "plain", tmp_path / "packed"
    values: Any = {"shuffle": True, "shuffle_window": 90_000, "batch_size": 16, "length_buckets": 4}
    source = write(plain, DRAWN)
    packed.mkdir()
    for path in sorted(plain.iterdir()):
        (packed / path.name).write_bytes(gzip.compress(path.read_bytes()))
    (expected_batches,) = await ranks_of(source, 1, **values)
    (batches,) = await ranks_of(f"{packed}/part-*", 1, **values)
    assert contents(batches) == contents(expected_batches)


def test_by_record_the_length_is_known_and_a_step_is_found_without_reading(
    tmp_path: Path,
) -> None:
    values: Any = {
        "shuffle": True,
        "batch_size": 16,
        "lanes": 6,
        "length_buckets": 4,
        "index": True,
    }

    async def main(source: str) -> None:
        dataset = await Dataset.open(settings_of(source, **values, shuffle_window=90_000))
        whole = await receive_all(dataset)
        assert len(whole) == dataset.length(16, 1)
        for step in (1, 17, len(whole) - 1):
            tail = await receive_all(dataset, position=Beginning(step=step))
            assert identities(tail) == identities(whole[step:])
        assert len(json.dumps(whole[9].next_position.to_dict())) < 400
        await dataset.aclose()

    asyncio.run(main(written(tmp_path, DRAWN, "record")))


@asynchronous
async def test_states_of_another_number_of_buckets_are_refused(tmp_path: Path) -> None:
    source = write(tmp_path, ((1, 2, 3), (4, 5, 6)))
    saved = {}
    for buckets in (None, 2, 3):
        values: Any = {"batch_size": 2, "shuffle_window": 90, "length_buckets": buckets}
        dataset = await Dataset.open(settings_of(source, **values))
        saved[buckets] = position_after((await receive_all(dataset))[0])
        for other, position in saved.items():
            if other != buckets:
                with pytest.raises(OtherOrder, match=f"'{buckets} length buckets'"):
                    await receive_all(dataset, position=position)
        await dataset.aclose()
    plain = saved[None].fingerprint
    assert "stages" not in plain.to_dict()
    assert (plain.seed, plain.shuffle_window, plain.shuffle) == (0, 0, False)


@asynchronous
async def test_a_position_behind_its_window_is_refused(tmp_path: Path) -> None:
    source = write(tmp_path, ((1, 2, 3), (4, 5, 6)))
    values: Any = {"batch_size": 2, "shuffle_window": 900, "lanes": 2, "length_buckets": 2}
    dataset = await Dataset.open(settings_of(source, **values))
    position = (await receive_all(dataset))[0].next_position
    for row, taken in ((9, 0), (9, 1 << 47), (1 << 40, 1)):
        lanes = position.lanes.copy()
        lanes["row"], lanes["taken"] = row, taken
        hostile = Position.from_dict(replace(position, lanes=lanes).to_dict())
        with pytest.raises(MalformedPosition, match="records of a window were delivered"):
            await receive_all(dataset, position=hostile)
    await dataset.aclose()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"batch_size": None}, "length_buckets sort records into whole batches; set batch_size"),
        ({"memory_budget": "8MiB", "shuffle_window": "16MiB"}, "16 MiB shuffle windows"),
    ],
)
@asynchronous
async def test_what_cannot_be_is_refused_at_open(
    tmp_path: Path, values: dict[str, Any], message: str
) -> None:
    source = write(tmp_path, ((1, 2, 3),))
    dataset = await Dataset.open(
        settings_of(source, **{"batch_size": 2, "length_buckets": 2, **values})
    )
    with pytest.raises(ConfigError, match=message):
        dataset.fingerprint(dataset.settings.batch_size, 1)
    await dataset.aclose()
