"""A list of names keeps its order and its repeats; a shuffle keeps its repeats alone."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from streamrec.pipeline.dataset import Dataset
from streamrec.plan.state.position import Position
from tests.pipeline.mixes import mix_of
from tests.pipeline.small_datasets import (
    contents,
    payload,
    receive_all,
    settings_of,
    write,
    write_index,
)
from tests.support import asynchronous

if TYPE_CHECKING:
    from pathlib import Path

    from streamrec.config import DatasetSettings
    from streamrec.pipeline.batch.batch import Batch

SHARDS = ((20, 21), (22,), (23, 24, 25))
NUMBERS = [2, 0, 1, 1, 0]


def named(directory: Path, numbers: list[int]) -> list[str]:
    return [f"{directory}/part-{number:05}.tfrecord" for number in numbers]


def records(numbers: list[int]) -> list[bytes]:
    return [payload(n, i, length) for n in numbers for i, length in enumerate(SHARDS[n])]


def read(values: DatasetSettings, position: Position | None = None) -> list[Batch]:
    async def main() -> list[Batch]:
        dataset = await Dataset.open(values)
        batches = await receive_all(dataset, position=position)
        await dataset.aclose()
        return batches

    return asyncio.run(main())


@pytest.mark.parametrize("more", [{}, {"index": True}], ids=["by shard", "by record"])
def test_in_order_it_is_read_as_it_is_listed(tmp_path: Path, more: dict[str, Any]) -> None:
    write_index(write(tmp_path, SHARDS), 30)
    values = settings_of(named(tmp_path, NUMBERS), lanes=1, batch_size=1, **more)
    batches = read(values)
    assert contents(batches) == records(NUMBERS)
    assert [batch.origin.shards.item() for batch in batches] == [0, 0, 0, 1, 1, 2, 3, 4, 4]
    for step in (2, 6):
        position = Position.from_dict(batches[step].next_position.to_dict())
        rest = read(values, position)
        assert contents(rest) == records(NUMBERS)[step + 1 :]


def test_the_matches_of_a_pattern_stand_sorted_in_its_place(tmp_path: Path) -> None:
    source = write(tmp_path, SHARDS)
    values = settings_of([*named(tmp_path, [2]), source, *named(tmp_path, [1])], lanes=1)
    assert contents(read(values)) == records([2, 0, 1, 2, 1])
    assert contents(read(settings_of(source, lanes=1))) == records([0, 1, 2])


@pytest.mark.parametrize("more", [{}, {"index": True}], ids=["by shard", "by record"])
def test_a_shuffle_knows_repeats_and_no_order(tmp_path: Path, more: dict[str, Any]) -> None:
    write_index(write(tmp_path, SHARDS), 30)
    orders: list[list[bytes]] = []
    for numbers in (NUMBERS, sorted(NUMBERS), NUMBERS[::-1]):
        values = settings_of(
            named(tmp_path, numbers), shuffle=True, shuffle_window=400, batch_size=2, **more
        )
        orders.append(contents(read(values)))
    assert orders[0] == orders[1] == orders[2]
    assert Counter(orders[0]) == Counter(records(NUMBERS))


def test_a_component_of_a_mix_keeps_its_repeats(tmp_path: Path) -> None:
    values = mix_of(tmp_path, {"a": SHARDS}, [(0, {"a": 1.0})], lanes=1, exhausted="rest")
    listed = {"a": named(tmp_path / "a", NUMBERS)}
    assert contents(read(values.model_copy(update={"source": listed}))) == records(NUMBERS)


@asynchronous
async def test_other_orders_and_repeats_are_other_datasets(tmp_path: Path) -> None:
    write(tmp_path, SHARDS)
    seen = set()
    for numbers in ([0, 1, 2], [1, 0, 2], [0, 0, 1, 2], [0, 1, 1, 2]):
        dataset = await Dataset.open(settings_of(named(tmp_path, numbers), lanes=1))
        seen.add(dataset.fingerprint(1, 1).names)
        await dataset.aclose()
    assert len(seen) == 4
