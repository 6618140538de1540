"""Shards that were damaged after they were indexed: masked rows keep all places and counts."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamrec.errors import (
    ConfigError,
    CorruptBudgetExceeded,
    CorruptRecord,
    DataError,
    StaleIndex,
)
from streamrec.flow.channel import EndOfStream
from streamrec.formats.shards.tfrecord import frame
from streamrec.pipeline.dataset import Dataset
from tests.pipeline.damaged_index import Damaged, damaged
from tests.pipeline.small_datasets import position_after, receive_all, record_oracle, settings_of
from tests.pipeline.test_damage import ALL, flipped, rows, run_to_the_end
from tests.support import examples

if TYPE_CHECKING:
    from streamrec.pipeline.batch.batch import Batch
    from streamrec.plan.state.position import Position

pytestmark = pytest.mark.both_kernels

ORDERS = st.fixed_dictionaries(
    {
        "shuffle": st.booleans(),
        "seed": st.integers(0, 9),
        "shuffle_window": st.integers(0, 900),
        "epochs": st.integers(1, 2),
    }
)
FEW_PAYLOADS = tuple(bytes([65 + i]) * 20 for i in range(6))
SHARD = b"".join(map(frame, FEW_PAYLOADS))


async def opened(source: str, **values: Any) -> Dataset:
    budget = {"on_corrupt": "skip", "corrupt_budget": ALL, "index": True}
    return await Dataset.open(settings_of(source, **{**budget, **values}))


def of_six(now: bytes, chunk_bytes: int = 72) -> Damaged:
    """Index a shard of six records in chunks of two."""
    return Damaged((FEW_PAYLOADS,), (now,), chunk_bytes)


def read(few: Damaged, directory: Path, **values: Any) -> list[Batch]:
    async def main() -> list[Batch]:
        dataset = await opened(few.write(directory), **values)
        try:
            return await receive_all(dataset)
        finally:
            await dataset.aclose()

    return asyncio.run(main())


@settings(max_examples=examples(40))
@given(damaged(), ORDERS, st.integers(1, 4), st.integers(1, 5))
def test_every_place_holds_what_can_be_proven_or_a_mask(
    few: Damaged, order: dict[str, Any], lanes: int, size: int
) -> None:
    """The oracle knows the order of the intact shards."""
    with tempfile.TemporaryDirectory() as directory:
        source = few.write(Path(directory))
        batches, statistics = asyncio.run(
            run_to_the_end(
                source, lanes=lanes, batch_size=size, index=True,
                on_corrupt="skip", corrupt_budget=ALL, **order,
            )
        )  # fmt: skip
        by_record = record_oracle(few.lengths, settings_of(source, **order), lanes, few.chunk_bytes)
    there = few.rows()
    expected = [(s, i) for _, s, i in by_record.rank(0, 1, range(order["epochs"]))]
    assert rows(batches) == [(place, there[place]) for place in expected]
    assert all(batch.mask is not None for batch in batches)
    assert [len(batch) for batch in batches[:-1]] == [size] * (len(batches) - 1)
    lost = sum(there[place] is None for place in expected)
    assert statistics["skipped_records"] >= lost
    assert few.now != intact(few) or statistics["skipped_records"] == 0


def intact(few: Damaged) -> tuple[bytes, ...]:
    return tuple(b"".join(map(frame, shard)) for shard in few.intact)


@settings(max_examples=examples(25))
@given(damaged(4), ORDERS, st.integers(1, 3), st.sampled_from(["keep", "drop", "pad"]))
def test_stop_at_every_k(few: Damaged, order: dict[str, Any], size: int, ends: str) -> None:
    async def main(source: str) -> None:
        dataset = await opened(source, lanes=4, batch_size=size, remainder=ends, **order)
        whole = await receive_all(dataset)
        assert len(whole) == dataset.length(size, 1)
        for k, batch in enumerate(whole, start=1):
            tail = await receive_all(dataset, position=position_after(batch))
            assert rows(tail) == rows(whole[k:])
        await dataset.aclose()

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(main(few.write(Path(directory))))


@settings(max_examples=examples(40))
@given(damaged(4), ORDERS, st.integers(1, 3), st.sampled_from(["keep", "drop", "pad"]))
def test_where_a_run_ended_with_an_error_one_that_skips_goes_on(
    few: Damaged, order: dict[str, Any], size: int, ends: str
) -> None:
    """Also where payloads are checked as late as can be, in the middle of their window."""
    values: dict[str, Any] = {"lanes": 4, "batch_size": size, "remainder": ends, **order}

    async def main(source: str) -> None:
        skips = await opened(source, **values)
        raises = await opened(source, **values, on_corrupt="raise", corrupt_budget=0)
        run, before = raises.run(rank=0, world_size=1, batch_size=size, position=None), []
        async with run:
            with suppress(DataError, StaleIndex, EndOfStream):
                while True:
                    before.append(await run.receive())
        whole = await receive_all(skips)
        if len(before) < len(whole):
            before += await receive_all(skips, position=run.position)
        assert rows(before) == rows(whole)
        await raises.aclose()
        await skips.aclose()

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(main(few.write(Path(directory))))


@settings(max_examples=examples(25))
@given(damaged(4), ORDERS, st.integers(1, 2), st.sampled_from(["drop", "pad"]), st.data())
def test_all_ranks_have_equal_counts_and_one_state_serves_them(
    few: Damaged, order: dict[str, Any], share: int, ends: str, data: st.DataObject
) -> None:
    async def global_batches(
        source: str, world_size: int, state: Position | None = None
    ) -> tuple[list[Any], list[Batch]]:
        values = {**order, "lanes": 4, "remainder": ends, "batch_size": 4 * share // world_size}
        dataset = await opened(source, **values)
        ranks = [
            await receive_all(dataset, rank=rank, world_size=world_size, position=state)
            for rank in range(world_size)
        ]
        await dataset.aclose()
        steps = zip(*ranks, strict=True)
        return [sorted(chain(rows(list(step))), key=str) for step in steps], ranks[-1]

    async def main(source: str) -> None:
        alone, _ = await global_batches(source, 1)
        for world_size in (2, 4):
            together, batches = await global_batches(source, world_size)
            assert together == alone
            if batches:
                step = data.draw(st.integers(1, len(batches)))
                after = data.draw(st.sampled_from([1, 2, 4]))
                tail, _ = await global_batches(source, after, position_after(batches[step - 1]))
                assert tail == alone[step:]

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(main(few.write(Path(directory))))


@pytest.mark.parametrize("shuffle", [False, True])
def test_what_damage_swallows_ends_with_its_chunk(tmp_path: Path, shuffle: bool) -> None:
    """A length and its CRC that are zeros hide where the record ends; the next chunk is known."""
    values: Any = {"batch_size": 6, "lanes": 1, "shuffle": shuffle, "shuffle_window": 500}
    (whole,) = read(of_six(SHARD), tmp_path / "intact", **values)
    hole = SHARD[:36] + bytes(36) + SHARD[72:]
    (batch,) = read(of_six(hole), tmp_path / "hole", **values)
    assert batch.origin.records.tolist() == whole.origin.records.tolist()
    assert batch.mask is not None
    lost = np.flatnonzero(~batch.mask)
    assert batch.origin.records[lost].tolist() == [1]
    for there, row in enumerate(batch.mask.tolist()):
        assert not row or batch.records[there] == whole.records[there]


def test_a_hole_counts_as_the_records_that_it_swallowed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The bytes do not tell how many they were; the index does."""
    hole = of_six(SHARD[:20] + bytes(130) + SHARD[150:], chunk_bytes=999)
    values: Any = {"batch_size": 6, "lanes": 1}
    with caplog.at_level(logging.WARNING, "streamrec.pipeline"):
        (batch,) = read(hole, tmp_path, corrupt_budget=5, **values)
    assert batch.mask is not None
    assert batch.mask.tolist() == [False, True, False, False, False, False]
    assert batch.records[1] == FEW_PAYLOADS[5]
    assert "lacks 3 more records" in caplog.records[-1].getMessage()
    with pytest.raises(CorruptBudgetExceeded, match="3 more are missing from the chunk") as caught:
        read(hole, tmp_path, corrupt_budget=4, **values)
    assert (caught.value.offset, caught.value.record) == (0, 0)
    assert caught.value.skipped_records == 5


def test_a_number_of_damaged_records_counts_each_once(tmp_path: Path) -> None:
    few = of_six(flipped(SHARD, 50))
    batches = read(few, tmp_path, batch_size=6, lanes=1, epochs=4, corrupt_budget=1)
    assert [batch.mask.tolist().count(False) for batch in batches if batch.mask is not None] == [
        1, 1, 1, 1,
    ]  # fmt: skip


def test_nothing_intact_is_nothing_but_masks(tmp_path: Path) -> None:
    """A lane that delivers rows comes to its end, however few of them hold a record."""
    batches = read(of_six(bytes(len(SHARD)), 1), tmp_path, batch_size=4, lanes=2, epochs=3)
    assert [len(batch) for batch in batches] == [4, 4, 4, 4, 2]
    assert not any(batch.mask.any() for batch in batches if batch.mask is not None)


def test_what_is_skipped_is_kept(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    values: Any = {"on_corrupt": "quarantine", "quarantine": str(kept), "batch_size": 6, "lanes": 2}
    read(of_six(flipped(SHARD, 50)), tmp_path / "data", **values)
    assert [path.name for path in kept.iterdir()] == [
        "part-00000.tfrecord.000000000000036-000000000000072.tfrecord"
    ]


def test_damage_still_ends_the_run_where_it_is_not_skipped(tmp_path: Path) -> None:
    few = of_six(flipped(SHARD, 50))
    with pytest.raises(CorruptRecord):
        read(few, tmp_path, on_corrupt="raise", corrupt_budget=0, batch_size=1)


def test_single_records_have_no_mask(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="single records have no mask; set batch_size"):
        read(of_six(SHARD), tmp_path)
