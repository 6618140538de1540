from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamrec.errors import ConfigError, CorruptRecord, DataError, ObjectChanged, TruncatedShard
from streamrec.flow.channel import EndOfStream
from streamrec.flow.cleanup import end as end_task
from streamrec.flow.stages import STAGES, WaitClock
from streamrec.pipeline.dataset import Dataset
from streamrec.pipeline.terms.memory_needs import MOST_WAITING_BATCHES
from tests.feeder.support import eventually
from tests.pipeline.small_datasets import (
    contents,
    global_batches,
    identities,
    oracle,
    payload,
    position_after,
    receive_all,
    receive_ranks,
    settings_of,
    write,
)
from tests.support import asynchronous, examples

if TYPE_CHECKING:
    from pathlib import Path

    from streamrec.pipeline.batch.batch import Batch
    from streamrec.plan.state.position import Position

SHARDS = st.lists(st.lists(st.integers(0, 300), max_size=9).map(tuple), min_size=1, max_size=7).map(
    tuple
)
ORDERS = st.fixed_dictionaries(
    {
        "lanes": st.integers(1, 6),
        "shuffle": st.booleans(),
        "seed": st.integers(0, 9),
        "shuffle_window": st.integers(0, 3000),
        "batch_size": st.one_of(st.none(), st.integers(1, 12)),
        "epochs": st.integers(1, 2),
        "remainder": st.sampled_from(["keep", "drop"]),
    }
)
FEW = settings(
    max_examples=examples(25),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def expected_pairs(
    shards: tuple[tuple[int, ...], ...], dataset: Dataset, epochs: range
) -> list[tuple[int, int]]:
    order = oracle(shards, dataset.settings, dataset.lanes)
    return [(shard, record) for _, shard, record in order.rank(0, 1, epochs)]


@FEW
@given(SHARDS, ORDERS)
def test_delivers_what_the_oracle_says(
    tmp_path: Path, shards: tuple[tuple[int, ...], ...], order: dict[str, Any]
) -> None:
    async def main() -> None:
        source = write(tmp_path / str(hash((shards, str(order)))), shards)
        dataset = await Dataset.open(settings_of(source, **order))
        batches = await receive_all(dataset)
        pairs = expected_pairs(shards, dataset, range(order["epochs"]))
        size = order["batch_size"]
        if size and order["remainder"] == "drop":
            pairs = pairs[: len(pairs) // size * size]
        assert identities(batches) == pairs
        assert contents(batches) == [payload(s, i, shards[s][i]) for s, i in pairs]
        if size:
            assert [len(batch) for batch in batches[:-1]] == [size] * (len(batches) - 1)
        await dataset.aclose()

    asyncio.run(main())


@FEW
@given(SHARDS, ORDERS)
def test_stop_at_every_k_and_resume(
    tmp_path: Path, shards: tuple[tuple[int, ...], ...], order: dict[str, Any]
) -> None:
    async def main() -> None:
        source = write(tmp_path / str(hash((shards, str(order)))), shards)
        dataset = await Dataset.open(settings_of(source, **order))
        whole = await receive_all(dataset)
        for k, batch in enumerate(whole, start=1):
            tail = await receive_all(dataset, position=position_after(batch))
            assert identities(whole[:k]) + identities(tail) == identities(whole)
            if order["batch_size"]:
                assert [len(b) for b in whole[:k] + tail] == [len(b) for b in whole]
                assert [b.next_position for b in tail] == [b.next_position for b in whole[k:]]
        await dataset.aclose()

    asyncio.run(main())


@FEW
@given(SHARDS, ORDERS, st.integers(1, 3))
def test_what_follows_a_halt_is_behind_what_was_ready(
    tmp_path: Path, shards: tuple[tuple[int, ...], ...], order: dict[str, Any], prefetch: int
) -> None:
    async def main() -> None:
        source = write(tmp_path / str(hash((shards, str(order)))), shards)
        dataset = await Dataset.open(settings_of(source, **order, prefetch=prefetch))
        whole = await receive_all(dataset)
        for k in range(len(whole)):
            taken, end = await halted(dataset, k)
            rest = [] if end is None else await receive_all(dataset, position=end)
            assert identities(taken) + identities(rest) == identities(whole)
        await dataset.aclose()

    asyncio.run(main())


@asynchronous
async def test_few_tiny_batches_wait_for_the_consumer(tmp_path: Path) -> None:
    """The budget would hold millions of them, which take far more than their bytes."""
    endless = settings_of(write(tmp_path, ((9,) * 4,)), batch_size=1, epochs=None)
    dataset = await Dataset.open(endless)
    async with dataset.run(rank=0, world_size=1, batch_size=1, position=None) as run:
        channel, after_full = run._assembler.channel, 1000  # turns of the loop
        while after_full:
            after_full -= len(channel) >= MOST_WAITING_BATCHES
            await asyncio.sleep(0)
        assert len(channel) == MOST_WAITING_BATCHES
    await dataset.aclose()


@asynchronous
async def test_a_run_that_ends_while_it_is_halted_has_nothing_behind_it(tmp_path: Path) -> None:
    dataset = await Dataset.open(settings_of(write(tmp_path, ((9,) * 4,)), batch_size=4))
    async with dataset.run(rank=0, world_size=1, batch_size=4, position=None) as run:
        assert run._task is not None
        await end_task(run._task)
        run._task = asyncio.create_task(run._assembler.channel.close())  # the last step of a run
        assert await run.halt() is None
    await dataset.aclose()


async def halted(dataset: Dataset, k: int) -> tuple[list[Batch], Position | None]:
    """Halt a run after ``k`` batches; return its batches and where another goes on."""
    size = dataset.settings.batch_size
    async with dataset.run(rank=0, world_size=1, batch_size=size, position=None) as run:
        batches = []
        with contextlib.suppress(EndOfStream):  # single records travel in groups of any size
            for _ in range(k):
                batches.append(await run.receive())  # noqa: PERF401 - those before the end stay
        end = await run.halt()
        assert await run.halt() == end
        with contextlib.suppress(EndOfStream):
            while end is None or run.position.step < end.step:
                batches.append(await run.receive())
        return batches, end


@FEW
@given(SHARDS, ORDERS, st.sampled_from([(2, 4), (4, 2), (1, 4), (4, 1), (2, 2)]), st.integers(0, 6))
def test_another_world_size_goes_on_with_the_same_global_batches(
    tmp_path: Path,
    shards: tuple[tuple[int, ...], ...],
    order: dict[str, Any],
    sizes: tuple[int, int],
    stop: int,
) -> None:
    if not _rounds_are_full(shards, order["shuffle"]):
        return  # by shard the claim ends with the first lane that ends for ever

    async def main() -> None:
        source = write(tmp_path / str(hash((shards, str(order)))), shards)
        values = {**order, "lanes": 4, "epochs": 1, "steps_per_epoch": 9, "remainder": "drop"}
        settings = settings_of(source, **{**values, "batch_size": 1})
        before, after = sizes
        whole = global_batches(await receive_ranks(settings, before, 12, most=9))
        first = await receive_ranks(settings, before, 12, most=stop)
        positions = [batches[-1].next_position for batches in first] if stop else []
        rest = await receive_ranks(settings, after, 12, positions, most=9 - stop)
        assert global_batches(first) + global_batches(rest) == whole

    asyncio.run(main())


def _rounds_are_full(shards: tuple[tuple[int, ...], ...], shuffle: bool) -> bool:
    """Return whether every lane has records in the long run."""
    if shuffle:
        return any(shards)
    n = len(shards)
    return all(any(shards[(lane + 4 * k) % n] for k in range(n)) for lane in range(4))


@pytest.mark.parametrize("compression", ["none", "auto"])
@pytest.mark.parametrize("shuffle", [False, True])
@asynchronous
async def test_a_run_that_is_left_leaves_no_memory(
    tmp_path: Path, compression: str, shuffle: bool
) -> None:
    """Also what was read ahead goes, for which the collector of cycles cannot look into arrays."""
    source = write(tmp_path, ((50_000,) * 20,) * 4)
    values = {"batch_size": 4, "lanes": 2, "shuffle": shuffle, "shuffle_window": "1MiB"}
    settings = settings_of(source, compression=compression, epochs=None, **values)
    dataset = await Dataset.open(settings)
    run = dataset.run(rank=0, world_size=1, batch_size=4, position=None)
    async with run:
        kept = await run.receive()
    pool = weakref.ref(run._assembler.fetcher.pool)
    assert run._assembler.fetcher.pool.idle == 0
    del run, kept
    # A thread that has read for it may still hold its last work.
    await eventually(lambda: gc.collect() >= 0 and pool() is None)
    await dataset.aclose()


@asynchronous
async def test_epochs_follow_each_other_without_a_seam(tmp_path: Path) -> None:
    source = write(tmp_path, ((5,) * 7, (5,) * 3))
    dataset = await Dataset.open(settings_of(source, batch_size=4, epochs=2))
    batches = await receive_all(dataset)
    assert [len(batch) for batch in batches] == [4, 4, 4, 4, 4]
    assert [batch.epoch for batch in batches] == [0, 0, 0, 0, 1]
    await dataset.aclose()


@asynchronous
async def test_pad_fills_the_last_batch_and_masks_it(tmp_path: Path) -> None:
    dataset = await Dataset.open(
        settings_of(write(tmp_path, ((3,) * 5,)), batch_size=3, remainder="pad")
    )
    batches = await receive_all(dataset)
    assert [len(batch) for batch in batches] == [3, 3]
    masks = [batch.mask.tolist() for batch in batches if batch.mask is not None]
    assert masks == [[True, True, True], [True, True, False]]
    assert batches[1].origin.records.tolist() == [3, 4, -1]
    await dataset.aclose()


@asynchronous
async def test_steps_per_epoch_repeats_the_records(tmp_path: Path) -> None:
    dataset = await Dataset.open(
        settings_of(write(tmp_path, ((3,) * 5,)), batch_size=2, steps_per_epoch=4, epochs=2)
    )
    batches = await receive_all(dataset)
    assert len(batches) == 8
    assert [record for _, record in identities(batches)] == [i % 5 for i in range(16)]
    run = dataset.run(rank=0, world_size=1, batch_size=2, position=batches[-1].next_position)
    async with run:
        with pytest.raises(EndOfStream):
            await run.receive()
        assert run.position.run_epoch == 2
        assert run.position.step == 8
    more = await receive_all(dataset, position=run.position)
    assert [record for _, record in identities(more)] == [i % 5 for i in range(16, 32)]
    await dataset.aclose()


@asynchronous
async def test_steps_per_epoch_of_single_records_is_exact(tmp_path: Path) -> None:
    dataset = await Dataset.open(
        settings_of(write(tmp_path, ((3,) * 5,)), steps_per_epoch=7, epochs=1)
    )
    assert [record for _, record in identities(await receive_all(dataset))] == [0, 1, 2, 3, 4, 0, 1]
    await dataset.aclose()


@pytest.mark.parametrize("values", [{"epochs": None}, {"steps_per_epoch": 3}])
@asynchronous
async def test_endless_repetition_of_nothing_is_an_error(
    tmp_path: Path, values: dict[str, Any]
) -> None:
    dataset = await Dataset.open(settings_of(write(tmp_path, ((), ())), batch_size=2, **values))
    with pytest.raises(DataError, match="are empty, so there is nothing to repeat"):
        await receive_all(dataset)
    await dataset.aclose()


@asynchronous
async def test_a_lane_with_an_empty_shard_goes_on_with_the_next(tmp_path: Path) -> None:
    """Two shards, two lanes: lane 1 begins with the empty one, then has that of lane 0."""
    dataset = await Dataset.open(
        settings_of(write(tmp_path, ((3, 3), ())), batch_size=3, epochs=None)
    )
    batches = await receive_all(dataset, most=5)
    assert identities(batches) == [(0, i // 2 % 2) for i in range(15)]
    await dataset.aclose()


@asynchronous
async def test_fewer_shards_than_lanes(tmp_path: Path) -> None:
    dataset = await Dataset.open(settings_of(write(tmp_path, ((3,) * 4,)), batch_size=3, lanes=16))
    assert identities(await receive_all(dataset)) == [(0, i) for i in range(4)]
    await dataset.aclose()


@asynchronous
async def test_records_before_a_fault_are_delivered_then_the_fault(tmp_path: Path) -> None:
    source = write(tmp_path, ((10,) * 6,))
    path = tmp_path / "part-00000.tfrecord"
    data = bytearray(path.read_bytes())
    data[26 * 4 + 12] ^= 1
    path.write_bytes(data)
    dataset = await Dataset.open(settings_of(source, batch_size=2))
    run = dataset.run(rank=0, world_size=1, batch_size=2, position=None)
    async with run:
        assert identities([await run.receive(), await run.receive()]) == [(0, i) for i in range(4)]
        for _ in range(2):
            with pytest.raises(CorruptRecord, match="CRC") as caught:
                await run.receive()
            error = caught.value
            assert (error.url, error.offset, error.record) == (str(path), 26 * 4, 4)
    await dataset.aclose()


@asynchronous
async def test_unchecked_crcs_let_damage_pass(tmp_path: Path) -> None:
    source = write(tmp_path, ((10,) * 6,))
    path = tmp_path / "part-00000.tfrecord"
    data = bytearray(path.read_bytes())
    data[26 * 4 + 12] ^= 1
    path.write_bytes(data)
    dataset = await Dataset.open(settings_of(source, batch_size=2, check_crc=False))
    assert len(identities(await receive_all(dataset))) == 6
    await dataset.aclose()


@asynchronous
async def test_a_cut_shard_is_refused(tmp_path: Path) -> None:
    source = write(tmp_path, ((10,) * 3,))
    path = tmp_path / "part-00000.tfrecord"
    path.write_bytes(path.read_bytes()[:-1])
    dataset = await Dataset.open(settings_of(source, batch_size=2))
    with pytest.raises(TruncatedShard):
        await receive_all(dataset)
    await dataset.aclose()


@asynchronous
async def test_resuming_into_a_changed_object_is_refused(tmp_path: Path) -> None:
    source = write(tmp_path, ((10,) * 6,))
    dataset = await Dataset.open(settings_of(source, batch_size=2))
    position = (await receive_all(dataset))[0].next_position
    await dataset.aclose()
    write(tmp_path, ((11,) * 6,))
    again = await Dataset.open(settings_of(source, batch_size=2))
    with pytest.raises(ObjectChanged, match="of 156 bytes, but it now has 162"):
        await receive_all(again, position=position)
    await again.aclose()


@asynchronous
async def test_leaving_early_leaves_no_task(tmp_path: Path) -> None:
    source = write(tmp_path, ((1000,) * 500, (1000,) * 500))
    dataset = await Dataset.open(settings_of(source, batch_size=10))
    for stop in (0, 1, 3):
        await receive_all(dataset, most=stop)
        await asyncio.sleep(0)
        names = {task.get_name() for task in asyncio.all_tasks()} - {asyncio.current_task()}
        assert not {name for name in names if str(name).startswith("streamrec")}
    await dataset.aclose()


@asynchronous
async def test_memory_goes_back_and_stays_within_the_budget(tmp_path: Path) -> None:
    source = write(tmp_path, ((100_000,) * 300,) * 4)
    dataset = await Dataset.open(
        settings_of(
            source, batch_size=8, memory_budget="16MiB", shuffle=True, shuffle_window="2MiB"
        )
    )
    run = dataset.run(rank=0, world_size=1, batch_size=8, position=None)
    highest = 0
    async with run:
        while True:
            try:
                await run.receive()
            except EndOfStream:
                break
            highest = max(highest, run.statistics()["bytes_in_memory"])
        assert run.statistics()["batches"] == 150
    assert run.statistics()["bytes_in_memory"] == 0, "the threads that decoded are gone"
    assert 0 < highest <= 16 << 20
    await dataset.aclose()


@asynchronous
async def test_batches_own_their_memory(tmp_path: Path) -> None:
    source = write(tmp_path, ((50,) * 20,))
    dataset = await Dataset.open(settings_of(source, batch_size=10))
    one, two = await receive_all(dataset)
    assert one.records.values.flags.writeable
    assert not np.shares_memory(one.records.values, two.records.values)
    await dataset.aclose()


@pytest.mark.parametrize(
    ("values", "rank", "world_size", "message"),
    [
        (
            {"lanes": 6, "epochs": None},
            0,
            4,
            r"world_size 4 does not divide the 6 lanes.*1, 2, 3, 6",
        ),
        ({"lanes": 4}, 0, 2, "set steps_per_epoch"),
        ({"lanes": 4, "epochs": None}, 2, 2, "rank must be from 0 to 1, not 2"),
        ({"lanes": 4, "epochs": None, "remainder": "keep"}, 0, 2, 'choose "drop" or "pad"'),
        ({"remainder": "pad", "batch_size": None}, 0, 1, "set batch_size"),
        (
            {"shuffle": True, "shuffle_window": "64MiB"},
            0,
            1,
            "memory_budget of 32 MiB is too small",
        ),
    ],
)
@asynchronous
async def test_refused_before_anything_is_read(
    tmp_path: Path, values: dict[str, Any], rank: int, world_size: int, message: str
) -> None:
    source = write(tmp_path, ((3,) * 4,))
    dataset = await Dataset.open(settings_of(source, **{"batch_size": 2, **values}))
    with pytest.raises(ConfigError, match=message):
        dataset.run(
            rank=rank,
            world_size=world_size,
            batch_size=dataset.settings.batch_size,
            position=None,
        )
    await dataset.aclose()


@pytest.mark.parametrize("shuffle", [False, True])
@asynchronous
async def test_a_record_larger_than_the_budget_comes_whole(tmp_path: Path, shuffle: bool) -> None:
    shards = ((100, 12 << 20, 100), (50,) * 3)
    dataset = await Dataset.open(
        settings_of(
            write(tmp_path, shards),
            batch_size=2,
            memory_budget="8MiB",
            max_record_bytes="12MiB",
            shuffle=shuffle,
            shuffle_window="1MiB",
        )
    )
    batches = await receive_all(dataset)
    assert sorted(identities(batches)) == [(s, i) for s in range(2) for i in range(3)]
    assert sorted(map(len, contents(batches))) == [50, 50, 50, 100, 100, 12 << 20]
    await dataset.aclose()


@asynchronous
async def test_the_stages_add_up_to_the_time_of_the_run(tmp_path: Path) -> None:
    dataset = await Dataset.open(settings_of(write(tmp_path, ((9,) * 50,) * 4), batch_size=8))
    run = dataset.run(rank=0, world_size=1, batch_size=8, position=None)
    readings = count()
    run.measures.waits = WaitClock(lambda: next(readings))
    async with run:
        with contextlib.suppress(EndOfStream):
            while True:
                await run.receive()
        waits = run.statistics()["waits"]
    assert {"client", "first_byte", "order"} <= waits.keys() <= set(STAGES)
    assert sum(waits.values()) == next(readings) - 1
    await dataset.aclose()
