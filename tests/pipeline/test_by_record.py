"""The order by record, from shards on disk to batches."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamrec.errors import ConfigError, OtherOrder
from streamrec.pipeline.dataset import Dataset
from streamrec.plan.order import window
from streamrec.stores.base.protocol import in_thread
from tests.pipeline.small_datasets import (
    contents,
    identities,
    payload,
    position_after,
    receive_all,
    record_oracle,
    settings_of,
    write,
    write_index,
)
from tests.pipeline.strategies import Shards, orders, shards_of
from tests.support import asynchronous, examples

if TYPE_CHECKING:
    from pathlib import Path

    from streamrec.pipeline.batch.batch import Batch
    from streamrec.plan.state.position import Position

SHARDS = shards_of(6, 12, 300)
ORDERS = orders(6000, 3)
CHUNKS = st.integers(1, 900)
FEW = settings(
    max_examples=examples(25),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def written(tmp_path: Path, shards: Shards, chunk_bytes: int, order: object = None) -> str:
    source = write(tmp_path / str(hash((shards, chunk_bytes, str(order)))), shards)
    write_index(source, chunk_bytes)
    return source


def delivered(batches: list[Batch]) -> list[tuple[int, int]]:
    """Return the (shard, record) pairs of the rows that are not padding."""
    return [pair for pair in identities(batches) if pair[0] >= 0]


def in_global_batches(ranks: list[list[Batch]]) -> list[Counter[tuple[int, int]]]:
    """Join the ranks' batches of each step, and check that they take as many steps."""
    return [Counter(delivered(list(step))) for step in zip(*ranks, strict=True)]


@pytest.mark.parametrize("length", [10, 500], ids=["small chunks", "large chunks"])
@asynchronous
async def test_a_window_has_few_small_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    shards = ((length,),) * 60
    source = write(tmp_path, shards)
    await in_thread(write_index, source, 1)
    values = {"lanes": 1, "shuffle": True, "shuffle_window": 1600, "index": True}
    usual = await Dataset.open(settings_of(source, **values))
    monkeypatch.setattr(window, "MOST_SHARDS", 8)  # each counts for 200 bytes
    dataset = await Dataset.open(settings_of(source, **values))
    oracle = record_oracle(shards, dataset.settings, 1, 1)
    assert oracle.windows is not None
    if length == 10:
        oracle = replace(oracle, windows=replace(oracle.windows, shard_bytes=200))
        assert [len(each) for each in oracle.windowed(0, 0)] == [4, 4, *[8] * 6, 4]
    batches = await receive_all(dataset)
    assert identities(batches) == [(s, i) for _, s, i in oracle.rank(0, 1, range(1))]
    one, other = (each.fingerprint(1, 1) for each in (usual, dataset))
    if length == 10:
        with pytest.raises(OtherOrder, match="few shards a window"):
            other.check(one)
    else:
        other.check(one)


@FEW
@given(SHARDS, CHUNKS, ORDERS, st.integers(1, 6), st.one_of(st.none(), st.integers(1, 12)))
def test_delivers_what_the_oracle_says(
    tmp_path: Path, shards: Shards, chunk: int, order: dict[str, Any], lanes: int, size: int | None
) -> None:
    source = written(tmp_path, shards, chunk, (order, lanes, size))

    async def main() -> None:
        values = {**order, "lanes": lanes, "batch_size": size, "index": True}
        dataset = await Dataset.open(settings_of(source, **values))
        batches = await receive_all(dataset)
        oracle = record_oracle(shards, dataset.settings, lanes, chunk)
        pairs = [(s, i) for _, s, i in oracle.rank(0, 1, range(order["epochs"]))]
        assert identities(batches) == pairs
        assert contents(batches) == [payload(s, i, shards[s][i]) for s, i in pairs]
        if size:
            assert [len(batch) for batch in batches[:-1]] == [size] * (len(batches) - 1)
        await dataset.aclose()

    asyncio.run(main())


@FEW
@given(SHARDS, CHUNKS, ORDERS, st.integers(1, 12), st.sampled_from(["keep", "drop", "pad", None]))
def test_stop_at_every_k_and_resume(
    tmp_path: Path, shards: Shards, chunk: int, order: dict[str, Any], size: int, ends: str | None
) -> None:
    """``None`` stands for single records."""
    source = written(tmp_path, shards, chunk, (order, size, ends))
    lanes = min(4, sum(map(len, shards)))

    async def main() -> None:
        values = {**order, "lanes": lanes, "remainder": ends, "index": True}
        batch_size = size if ends else None
        dataset = await Dataset.open(settings_of(source, **{**values, "batch_size": batch_size}))
        whole = await receive_all(dataset)
        for k, batch in enumerate(whole, start=1):
            tail = await receive_all(dataset, position=position_after(batch))
            assert identities(whole[:k]) + identities(tail) == identities(whole)
            if ends:
                assert [len(b) for b in whole[:k] + tail] == [len(b) for b in whole]
                assert [b.next_position for b in tail] == [b.next_position for b in whole[k:]]
        await dataset.aclose()

    asyncio.run(main())


@FEW
@given(SHARDS, CHUNKS, ORDERS, st.integers(1, 4), st.sampled_from(["drop", "pad"]), st.data())
def test_one_state_serves_every_rank_of_every_world_size(
    tmp_path: Path,
    shards: Shards,
    chunk: int,
    order: dict[str, Any],
    share: int,
    ends: str,
    data: st.DataObject,
) -> None:
    """Every world size gives the same global batches to the end, whichever went before."""
    source = written(tmp_path, shards, chunk, (order, share, ends))
    lanes = 12
    if sum(map(len, shards)) < lanes:
        return

    async def read(world_size: int, state: Position | None = None) -> list[list[Batch]]:
        values = {**order, "lanes": lanes, "remainder": ends, "index": True}
        size = 12 * share // world_size
        dataset = await Dataset.open(settings_of(source, **{**values, "batch_size": size}))
        ranks = [
            await receive_all(dataset, rank=rank, world_size=world_size, position=state)
            for rank in range(world_size)
        ]
        await dataset.aclose()
        return ranks

    async def main() -> None:
        alone = await read(1)
        expected = in_global_batches(alone)
        _check_ends(shards, order["epochs"], lanes, 12 * share, ends, alone[0])
        for world_size in (2, 3, 4, 6, 12):
            ranks = await read(world_size)
            assert in_global_batches(ranks) == expected
            if not expected:
                continue
            step = data.draw(st.integers(1, len(expected)))
            rank = data.draw(st.integers(0, world_size - 1))
            state = position_after(ranks[rank][step - 1])
            after = data.draw(st.sampled_from([1, 2, 3, 4, 6, 12]))
            assert in_global_batches(await read(after, state)) == expected[step:]

    asyncio.run(main())


def _check_ends(
    shards: Shards, epochs: int, lanes: int, size: int, ends: str, batches: list[Batch]
) -> None:
    """Check that less than one record a lane is lost or added, beside the last, short batch."""
    every = sum(map(len, shards)) * epochs
    found = len(delivered(batches))
    assert all(len(batch) == size for batch in batches)
    if ends == "drop":
        assert 0 <= every - found < lanes + size
        assert len(batches) == every // lanes * lanes // size
    else:
        assert found == every
        assert len(batches) * size - every < lanes + size
        masked = sum(int((~batch.mask).sum()) for batch in batches if batch.mask is not None)
        assert masked == len(batches) * size - every


@pytest.mark.parametrize("ends", ["drop", "pad"])
def test_eight_ranks_with_uneven_shards_end_together(tmp_path: Path, ends: str) -> None:
    shards = ((20,) * 333, (), (20,) * 7, (20,) * 61, (), (20,) * 2)
    source = written(tmp_path, shards, 200)

    async def main() -> None:
        values = {
            "lanes": 48,
            "shuffle": True,
            "shuffle_window": 9999,
            "batch_size": 6,
            "index": True,
            "remainder": ends,
        }
        dataset = await Dataset.open(settings_of(source, **values))
        ranks = [await receive_all(dataset, rank=rank, world_size=8) for rank in range(8)]
        assert len({len(batches) for batches in ranks}) == 1
        every = Counter(pair for batches in ranks for pair in delivered(batches))
        assert set(every.values()) == {1}
        assert len(every) == (384 if ends == "drop" else 403)
        rows = {sum(len(batch) for batch in batches) for batches in ranks}
        assert rows == ({48} if ends == "drop" else {54})
        await dataset.aclose()

    asyncio.run(main())


def test_a_rank_without_a_record_in_the_last_batch_still_gets_one(tmp_path: Path) -> None:
    """Four lanes, five records: three of the ranks have padding alone at the end."""
    source = written(tmp_path, ((20,) * 5,), 1)

    async def main() -> None:
        values = {"lanes": 4, "batch_size": 1, "index": True, "remainder": "pad"}
        dataset = await Dataset.open(settings_of(source, **values))
        ranks = [await receive_all(dataset, rank=rank, world_size=4) for rank in range(4)]
        assert [len(batches) for batches in ranks] == [2, 2, 2, 2]
        masks = [[batch.mask.tolist() for batch in batches] for batches in ranks]  # type: ignore[union-attr]
        assert masks == [[[True], [True]], *[[[True], [False]]] * 3]
        for rank in (1, 2, 3):
            first, second = ranks[rank]
            assert contents([second]) == contents([first])
            tail = await receive_all(
                dataset, rank=rank, world_size=4, position=position_after(first)
            )
            assert contents(tail) == contents([second])
            assert tail[0].mask is not None
            assert tail[0].mask.tolist() == [False]
        await dataset.aclose()

    asyncio.run(main())


@FEW
@given(SHARDS, CHUNKS, ORDERS, st.integers(1, 9))
def test_endless_streams_go_on_over_epochs(
    tmp_path: Path, shards: Shards, chunk: int, order: dict[str, Any], size: int
) -> None:
    source = written(tmp_path, shards, chunk, (order, size))
    every = sum(map(len, shards))

    async def main() -> None:
        values = {**order, "epochs": None, "lanes": 3, "batch_size": size, "index": True}
        dataset = await Dataset.open(settings_of(source, **values))
        most = -(-3 * every // size) + 2
        whole = await receive_all(dataset, most=most)
        oracle = record_oracle(shards, dataset.settings, 3, chunk)
        expected = oracle.rank(0, 1, range(3 + most * size // every))[: most * size]
        assert identities(whole) == [(s, i) for _, s, i in expected]
        for k in (1, most // 2, most - 1):
            tail = await receive_all(dataset, position=position_after(whole[k - 1]), most=most - k)
            assert identities(tail) == identities(whole[k:])
        epochs = [batch.next_position.epoch for batch in whole]
        assert epochs == sorted(epochs)
        await dataset.aclose()

    asyncio.run(main())


def test_the_next_run_is_the_next_epoch(tmp_path: Path) -> None:
    shards = ((9,) * 20, (9,) * 5)
    source = written(tmp_path, shards, 60)

    async def main() -> None:
        values = {
            "lanes": 4,
            "batch_size": 4,
            "shuffle": True,
            "shuffle_window": 999,
            "index": True,
        }
        dataset = await Dataset.open(settings_of(source, **values))
        first = await receive_all(dataset)
        run = dataset.run(rank=0, world_size=1, batch_size=4, position=position_after(first[-1]))
        async with run:
            assert [batch async for batch in _rest(run)] == []
        second = await receive_all(dataset, position=run.position)
        assert Counter(identities(first)) == Counter(identities(second))
        assert identities(first) != identities(second)
        tail = await receive_all(dataset, position=position_after(second[2]))
        assert identities(second[:3]) + identities(tail) == identities(second)
        assert {batch.epoch for batch in second} == {1}
        await dataset.aclose()

    asyncio.run(main())


async def _rest(run: Any) -> Any:
    from streamrec.flow.channel import EndOfStream

    while True:
        try:
            yield await run.receive()
        except EndOfStream:
            return


def test_states_of_another_index_or_order_are_refused(tmp_path: Path) -> None:
    source = written(tmp_path, ((9,) * 20,), 60)

    async def main() -> None:
        values = {"lanes": 2, "batch_size": 4}
        dataset = await Dataset.open(settings_of(source, index=True, **values))
        (batch,) = await receive_all(dataset, most=1)
        by_shard = await Dataset.open(settings_of(source, **values))
        with pytest.raises(OtherOrder, match="order was 'record:"):
            await receive_all(by_shard, position=position_after(batch))
        await by_shard.aclose()
        await dataset.aclose()
        await asyncio.to_thread(write_index, source, 90)
        other = await Dataset.open(settings_of(source, index=True, **values))
        with pytest.raises(OtherOrder, match="order was 'record:"):
            await receive_all(other, position=position_after(batch))
        await other.aclose()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"remainder": "pad", "batch_size": 2}, "9 lanes share 5 records"),
        ({"compression": "gzip"}, "not compressed"),
        ({"ordered": False, "batch_size": 2}, "keeps no order"),
    ],
)
def test_what_an_index_cannot_serve_is_refused(
    tmp_path: Path, values: dict[str, Any], words: str
) -> None:
    source = written(tmp_path, ((9,) * 5,), 60)

    async def main() -> None:
        dataset = await Dataset.open(settings_of(source, lanes=9, index=True, **values))
        try:
            await receive_all(dataset)
        finally:
            await dataset.aclose()

    with pytest.raises(ConfigError, match=words):
        asyncio.run(main())
