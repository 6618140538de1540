"""No setting that is accepted stands still, and memory stays where the plan says."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamrec.errors import ConfigError, RecordTooLarge
from streamrec.flow.channel import EndOfStream
from streamrec.flow.pool import size_class
from streamrec.formats.shards.tfrecord import frame
from streamrec.pipeline.dataset import Dataset
from streamrec.stores.base.protocol import ObjectInfo
from tests.pipeline.simulated_store import SimulatedStore, set_executors, simulated
from tests.pipeline.small_datasets import identities, oracle, settings_of
from tests.support import examples

if TYPE_CHECKING:
    from streamrec.pipeline.batch.batch import Batch
    from streamrec.pipeline.run import Run

KIB, MIB = 1 << 10, 1 << 20
MOST_DATA = 24 * MIB

SHARDS = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 2, 7, 40]),
        st.sampled_from([0, 1, 200, 20 * KIB, 64 * KIB, 110_000, MIB, 3 * MIB, 9 * MIB]),
    ),
    min_size=1,
    max_size=12,
).filter(lambda shards: sum(n * (size + 16) for n, size in shards) <= MOST_DATA)
CORNERS = st.fixed_dictionaries(
    {
        "lanes": st.sampled_from([1, 2, 5, 48, 192]),
        "shuffle": st.booleans(),
        "shuffle_window": st.sampled_from([0, 1, MIB, 4 * MIB, 20 * MIB]),
        "batch_size": st.sampled_from([None, 1, 3, 64, 1000]),
        "memory_budget": st.sampled_from([8 * MIB, 9 * MIB, 16 * MIB, 64 * MIB, 1024 * MIB]),
        "max_concurrency": st.sampled_from(["auto", 1, 2, 17]),
        "prefetch": st.sampled_from(["auto", 1]),
    }
)


def build(shards: list[tuple[int, int]]) -> tuple[SimulatedStore, tuple[tuple[int, ...], ...]]:
    """Make a store of shards with equal records each, and return the records' lengths too."""
    lengths = tuple((size,) * count for count, size in shards)
    frames = {size: frame(bytes(size)) for _, size in shards}
    objects = {f"o{i:03}": frames[size] * count for i, (count, size) in enumerate(shards)}
    return SimulatedStore(objects), lengths


def dataset_over(store: SimulatedStore, *, known: bool, **values: Any) -> Dataset:
    found = [store.info(url) if known else ObjectInfo(url) for url in sorted(store.objects)]
    values = {"batch_size": 4, "max_concurrency": "auto", **values}
    return Dataset(settings_of(list(store.objects), **values), store, found)  # type: ignore[arg-type]


async def receive(run: Run) -> list[Batch]:
    batches = []
    async with run:
        while True:
            try:
                batches.append(await run.receive())
            except EndOfStream:
                return batches


@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(SHARDS, CORNERS, st.booleans(), st.sampled_from(["no", "some", "all"]))
def test_every_corner_that_is_accepted_delivers_everything(
    shards: list[tuple[int, int]], corner: dict[str, Any], known: bool, compressed: str
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        set_executors(patch)
        corner_delivers_everything(shards, corner, known, compressed)


@simulated
async def corner_delivers_everything(
    shards: list[tuple[int, int]], corner: dict[str, Any], known: bool, compressed: str
) -> None:
    store, lengths = build(shards)
    chosen = {"no": 0, "some": 2, "all": 1}[compressed]
    store.objects = {
        url: gzip.compress(data, compresslevel=0) if chosen and n % chosen == 0 else data
        for n, (url, data) in enumerate(store.objects.items())
    }
    dataset = dataset_over(store, known=known, **corner)
    size = corner["batch_size"]
    try:
        run = dataset.run(rank=0, world_size=1, batch_size=size, position=None)
    except ConfigError as error:
        assert "too small" in str(error)
        return
    largest = max((size for count, size in shards if count), default=0)
    if largest > corner["memory_budget"]:  # which is the limit of a record that has no other
        with pytest.raises(RecordTooLarge):
            await receive(run)
        await dataset.aclose()
        return
    batches = await receive(run)
    expected = oracle(lengths, dataset.settings, dataset.lanes).rank(0, 1, range(1))
    assert identities(batches) == [(shard, record) for _, shard, record in expected]
    check_memory(run, largest)
    await dataset.aclose()


def check_memory(run: Run, largest_record: int) -> None:
    """Check that memory stays within the plan, but for a batch and a record a lane."""
    statistics, plan = run.statistics(), run._plan
    assert statistics["bytes_in_memory"] == 0
    record = size_class(largest_record + 16)
    batch = (plan.batch_size or 1) * (record + plan.memory.first_range)
    straddling = plan.memory.lanes * 2 * (record + plan.memory.first_range)
    allowed = plan.memory.for_ranges + batch + straddling + plan.memory.range_size
    assert statistics["most_bytes_in_memory"] <= allowed


@pytest.mark.parametrize("lanes", [1, 8, 48, 192])
@pytest.mark.parametrize("window", [0, 4 * MIB])
@simulated
async def test_64_mib_are_enough_for_pictures(
    lanes: int, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the lanes, the ranges take no more than the plan, give or take a record a lane."""
    set_executors(monkeypatch)
    store, _ = build([(60, 110_000)] * 16)
    dataset = dataset_over(
        store,
        known=True,
        lanes=lanes,
        shuffle=window > 0,
        shuffle_window=window,
        memory_budget="64MiB",
        batch_size=8,
    )
    run = dataset.run(rank=0, world_size=1, batch_size=8, position=None)
    batches = await receive(run)
    assert sum(map(len, batches)) == 16 * 60
    most = run._plan.memory.for_ranges + 2 * lanes * size_class(110_016)
    assert run.statistics()["most_bytes_in_memory"] <= most
    assert run.statistics()["bytes_read"] == run.statistics()["bytes_used"]
    assert store.most_open > 30


@simulated
async def test_the_ramp_gives_the_first_batch_after_one_round_trip(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_executors(monkeypatch)
    store, _ = build([(150, 110_000)] * 8)
    dataset = dataset_over(store, known=True, batch_size=32, memory_budget="1GiB")
    run = dataset.run(rank=0, world_size=1, batch_size=32, position=None)
    async with run:
        loop = run._assembler.fetcher._loop
        started = loop.time()
        await run.receive()
        assert loop.time() - started < 0.06, "50 ms to the first byte, and 0.5 MB at 60 MB/s"
    heads = [stop - start for _, start, stop in store.asked if start == 0]
    assert heads == [512 * KIB] * 8
