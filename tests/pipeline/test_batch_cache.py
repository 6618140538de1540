from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import streamrec as sr
from streamrec import Pack
from streamrec.config import DatasetSettings
from streamrec.config.record_choice import Window
from streamrec.errors import ConfigError, CorruptRecord, FunctionFailed, TruncatedShard
from streamrec.flow.channel import EndOfStream
from streamrec.flow.cleanup import end as end_task
from streamrec.formats.examples.descriptions import describe
from streamrec.formats.examples.specs import FixedLenFeature
from streamrec.pipeline.batch.batch import Batch
from streamrec.pipeline.batch.origin import Origin
from streamrec.pipeline.batch_cache import (
    WITHOUT_EFFECT,
    BatchCache,
    BatchKeys,
    CachedRun,
    versions_of,
)
from streamrec.pipeline.dataset import Dataset
from streamrec.plan.state.resume_point import Beginning
from streamrec.stores.base.protocol import ObjectInfo
from streamrec.stores.cache.piece_cache import PieceCache
from streamrec.stores.cache.shelves import Piece, ProcessMemory
from streamrec.stores.open import Stores
from streamrec.values.columns import BytesColumn, Ragged, Sparse, offsets_of
from streamrec.wire.frame import HEADER, TRAILER, Header
from tests.by_day import stops
from tests.pipeline.batch.test_payload import arrays_of, same
from tests.pipeline.cached_batches import cached, equal
from tests.pipeline.small_datasets import (
    position_after,
    receive_all,
    settings_of,
    write,
    write_index,
)
from tests.support import asynchronous, examples

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from pathlib import Path

    from streamrec.pipeline.terms.run_plan import RunPlan
    from streamrec.plan.state.position import Position
    from streamrec.plan.state.resume_point import ResumePoint


SHARDS = (
    st.lists(st.lists(st.integers(0, 300), max_size=9).map(tuple), min_size=1, max_size=6)
    .map(tuple)
    .filter(lambda shards: sum(map(len, shards)) > 5)
)
ORDERS = st.fixed_dictionaries(
    {
        "lanes": st.integers(1, 5),
        "shuffle": st.booleans(),
        "seed": st.integers(0, 9),
        "shuffle_window": st.integers(0, 3000),
        "batch_size": st.integers(1, 6),
        "epochs": st.integers(1, 2),
        "remainder": st.sampled_from(["keep", "drop", "pad"]),
        "index": st.sampled_from([None, True]),
    }
)
FEW = hypothesis_settings(
    max_examples=examples(25),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
FIVE = ((40,) * 7, (), (30,) * 8, (90,) * 9, (5,) * 11)


@pytest.fixture
def source(tmp_path: Path) -> str:
    source = write(tmp_path / "raw", FIVE)
    write_index(source, 200)
    return source


async def receive_runs(
    dataset: Dataset, runs: int, position: ResumePoint | None = None
) -> tuple[list[Batch], Position, int]:
    """Receive whole runs, one behind the other; count the batches that came from the cache."""
    batches: list[Batch] = []
    count = 0
    for _ in range(runs):
        run = dataset.run(
            rank=0, world_size=1, batch_size=dataset.settings.batch_size, position=position
        )
        async with run:
            with contextlib.suppress(EndOfStream):
                while True:
                    batches.append(await run.receive())
            position = run.position
            count += run.statistics().get("cached_batches", 0)
    assert position is not None
    assert not isinstance(position, Beginning)
    return batches, position, count


async def opened(source: str, order: dict[str, Any]) -> Dataset | None:
    """Open a dataset; ``None`` if these settings make none, as more lanes than records."""
    dataset = None
    try:
        dataset = await Dataset.open(settings_of(source, **order))
        dataset.fingerprint(order["batch_size"], 1)
    except ConfigError:
        if dataset is not None:
            await dataset.aclose()
        return None
    return dataset


def compare(
    home: Path,
    shards: tuple[tuple[int, ...], ...],
    order: dict[str, Any],
    held: Callable[[Dataset, Dataset], Coroutine[Any, Any, None]],
) -> None:
    """Run a check of a dataset without a cache and the same one with it, if they can be opened."""
    source = write(home / "raw", shards)
    write_index(source, 200)

    async def main() -> None:
        plain = await opened(source, order)
        dataset = await opened(source, cached(home / "cache", **order))
        assert (plain is None) == (dataset is None)
        if plain is not None and dataset is not None:
            await held(plain, dataset)
            await plain.aclose()
            await dataset.aclose()

    asyncio.run(main())


@FEW
@given(SHARDS, ORDERS)
def test_runs_are_those_without_a_cache_and_come_from_it_the_second_time(
    tmp_path: Path, shards: tuple[tuple[int, ...], ...], order: dict[str, Any]
) -> None:
    home = tmp_path / str(hash((shards, str(order))))

    async def held(plain: Dataset, dataset: Dataset) -> None:
        expected, end, _ = await receive_runs(plain, 3)
        for is_kept in (False, True):
            batches, stop, count = await receive_runs(dataset, 3)
            equal(batches, expected)
            assert stop.to_dict() == end.to_dict()
            assert not is_kept or count == len(expected)

    compare(home, shards, order, held)


@FEW
@given(SHARDS, ORDERS, st.integers(0, 5))
def test_stop_at_every_k_and_resume(
    tmp_path: Path, shards: tuple[tuple[int, ...], ...], order: dict[str, Any], known: int
) -> None:
    """The cache knows the first batches, another stream has taken the rest or not."""
    home = tmp_path / str(hash((shards, str(order), known)))

    async def held(plain: Dataset, dataset: Dataset) -> None:
        whole = await receive_all(plain)
        await receive_all(dataset, most=known)
        for k, batch in enumerate(whole, start=1):
            tail = await receive_all(dataset, position=position_after(batch))
            equal(tail, whole[k:])

    compare(home, shards, order, held)


@pytest.mark.parametrize("index", [None, True])
@pytest.mark.parametrize("lanes", [1, 5])
@asynchronous
async def test_a_later_epoch_finds_the_batches_of_an_earlier_one(
    source: str, tmp_path: Path, lanes: int, index: bool | None
) -> None:
    order = cached(tmp_path / "cache", batch_size=4, lanes=lanes, index=index)
    dataset = await Dataset.open(settings_of(source, **order))
    first, position, count = await receive_runs(dataset, 1)
    assert count == 0
    later, _, count = await receive_runs(dataset, 2, position)
    assert count == len(later) == 2 * len(first)
    assert {batch.epoch for batch in later} == {1, 2}
    for one, other in zip(first + first, later, strict=True):
        same(one["records"], other["records"])
    await dataset.aclose()


@asynchronous
async def test_every_epoch_that_divides_the_shards_alike_finds_them(
    source: str, tmp_path: Path
) -> None:
    """Of five shards, two lanes begin an epoch alike every second time."""
    order = cached(tmp_path / "cache", batch_size=4, lanes=2)
    dataset = await Dataset.open(settings_of(source, **order))
    counts, position = [], None
    for _ in range(4):
        batches, position, count = await receive_runs(dataset, 1, position)
        counts.append(count / len(batches))
    assert counts == [0, 0, 1, 1]
    await dataset.aclose()


@asynchronous
async def test_endless_runs(source: str, tmp_path: Path) -> None:
    order = {"batch_size": 4, "epochs": None, "shuffle": True, "shuffle_window": 500}
    plain = await Dataset.open(settings_of(source, **order))
    dataset = await Dataset.open(settings_of(source, **cached(tmp_path / "cache", **order)))
    expected = await receive_all(plain, most=30)
    for _ in range(2):
        equal(await receive_all(dataset, most=30), expected)
    await plain.aclose()
    await dataset.aclose()


@asynchronous
async def test_runs_of_a_number_of_steps_go_on_in_the_epoch(source: str, tmp_path: Path) -> None:
    order = {"batch_size": 4, "steps_per_epoch": 3, "epochs": 1}
    plain = await Dataset.open(settings_of(source, **order))
    dataset = await Dataset.open(settings_of(source, **cached(tmp_path / "cache", **order)))
    expected, end, _ = await receive_runs(plain, 5)
    for kept in (0, 15):
        batches, stop, count = await receive_runs(dataset, 5)
        equal(batches, expected)
        assert (stop.to_dict(), count) == (end.to_dict(), kept)
    await plain.aclose()
    await dataset.aclose()


@pytest.mark.parametrize("index", [None, True])
@asynchronous
async def test_a_run_of_more_epochs_has_no_seam(
    source: str, tmp_path: Path, index: bool | None
) -> None:
    for epochs in (1, 2, 3):
        order = {"batch_size": 4, "epochs": epochs, "index": index}
        plain = await Dataset.open(settings_of(source, **order))
        dataset = await Dataset.open(settings_of(source, **cached(tmp_path / "cache", **order)))
        for _ in range(2):
            equal(await receive_all(dataset), await receive_all(plain))
        await plain.aclose()
        await dataset.aclose()


@asynchronous
async def test_ranks_have_batches_of_their_own(source: str, tmp_path: Path) -> None:
    order = {"batch_size": 2, "lanes": 4, "index": True, "remainder": "pad"}
    plain = await Dataset.open(settings_of(source, **order))
    dataset = await Dataset.open(settings_of(source, **cached(tmp_path / "cache", **order)))
    for _ in range(2):
        for rank in range(2):
            where: dict[str, Any] = {"rank": rank, "world_size": 2}
            equal(await receive_all(dataset, **where), await receive_all(plain, **where))
    await plain.aclose()
    await dataset.aclose()


@asynchronous
async def test_mixes_and_packs(source: str, tmp_path: Path) -> None:
    features: dict[str, Any] = {"x": sr.RaggedFeature("int64")}
    for shard in range(2):
        with sr.TFRecordWriter(tmp_path / f"x-{shard}.tfrecord") as writer:
            for i in range(20):
                writer.write(sr.encode_example({"x": [i] * (1 + i % 5)}))
    mix: dict[str, Any] = {
        "source": {"a": source, "b": source},
        "weights": {"a": 0.3, "b": 0.7},
        "exhausted": "rest",
    }
    packs: dict[str, Any] = {
        "source": f"{tmp_path}/x-*.tfrecord",
        "features": describe(features),
        "pack": sr.Pack(8),
    }
    for settings in (mix, packs):
        plain = await Dataset.open(settings_of(**settings, batch_size=3))
        kept = cached(tmp_path / "cache", batch_size=3)
        dataset = await Dataset.open(settings_of(**settings, **kept))
        expected = await receive_all(plain)
        for _ in range(2):
            equal(await receive_all(dataset), expected)
        await plain.aclose()
        await dataset.aclose()


@asynchronous
async def test_what_a_consumer_does_to_a_batch_is_not_kept(source: str, tmp_path: Path) -> None:
    dataset = await Dataset.open(settings_of(source, **cached(tmp_path / "cache", batch_size=4)))
    expected = [batch["records"].to_list() for batch in await receive_all(dataset)]
    for _ in range(2):
        batches = await receive_all(dataset)
        assert [batch["records"].to_list() for batch in batches] == expected
        for batch in batches:
            for array in (*arrays_of(batch["records"]), *batch.origin):
                assert array.flags.writeable
                assert array.ctypes.data % 64 == 0 or not array.size
                array[...] = 0
    await dataset.aclose()


@asynchronous
async def test_a_transform_is_called_for_each_delivery(source: str, tmp_path: Path) -> None:
    calls: list[int] = []

    def numbered(batch: Batch) -> dict[str, Any]:
        calls.append(len(batch))
        for array in arrays_of(batch["records"]):
            array[...] = 0  # its own memory
        return {"call": np.full(len(batch), len(calls))}

    order = cached(tmp_path / "cache", batch_size=4, transform=numbered, prefetch=1)
    dataset = await Dataset.open(settings_of(source, **order))
    steps = len(await receive_all(dataset))
    batches = await receive_all(dataset)
    assert sorted(int(batch["call"][0]) for batch in batches) == [*range(steps + 1, 2 * steps + 1)]
    plain = await Dataset.open(settings_of(source, **cached(tmp_path / "cache", batch_size=4)))
    records = [batch["records"].to_list() for batch in await receive_all(plain)]
    assert any(any(record) for batch in records for record in batch)
    await dataset.aclose()
    await plain.aclose()


@asynchronous
async def test_a_transform_that_fails_is_named(source: str, tmp_path: Path) -> None:
    def broken(batch: Batch) -> dict[str, Any]:
        raise ValueError("no")

    settings = settings_of(source, **cached(tmp_path / "cache", batch_size=4))
    for function in (None, broken):
        dataset = await Dataset.open(settings.model_copy(update={"transform": function}))
        if function is None:
            await receive_all(dataset)
        else:
            with pytest.raises(FunctionFailed, match=r"part-00000.*broken raised ValueError: no"):
                await receive_all(dataset)
        await dataset.aclose()


@asynchronous
async def test_what_follows_a_halt_is_behind_what_was_ready(source: str, tmp_path: Path) -> None:
    order = cached(tmp_path / "cache", batch_size=4, prefetch=2)
    dataset = await Dataset.open(settings_of(source, **order))
    whole = await receive_all(dataset)
    for k in stops(range(len(whole)), every=4):
        async with dataset.run(rank=0, world_size=1, batch_size=4, position=None) as run:
            batches = [await run.receive() for _ in range(k)]
            end = await run.halt()
            assert await run.halt() == end
            with contextlib.suppress(EndOfStream):
                while end is None or run.position.step < end.step:
                    batches.append(await run.receive())
        rest = [] if end is None else await receive_all(dataset, position=end)
        equal(batches + rest, whole)
    await dataset.aclose()


@asynchronous
async def test_a_run_that_ends_while_it_is_halted_has_nothing_behind_it(
    source: str, tmp_path: Path
) -> None:
    order = cached(tmp_path / "cache", batch_size=4)
    dataset = await Dataset.open(settings_of(source, **order))
    async with dataset.run(rank=0, world_size=1, batch_size=4, position=None) as run:
        assert isinstance(run, CachedRun)
        assert run._task is not None
        await end_task(run._task)
        run._task = asyncio.create_task(run._channel.close())  # the last step of a run
        assert await run.halt() is None
    await dataset.aclose()


@asynchronous
async def test_it_reads_a_bounded_number_of_bytes_ahead(tmp_path: Path) -> None:
    """A reserve of 4 MiB has 1.5 MiB for waiting batches; half of it is the cache's."""
    source = write(tmp_path / "raw", ((1 << 18,) * 40,))
    order = cached(tmp_path / "cache", batch_size=1, memory_budget="8MiB")
    dataset = await Dataset.open(settings_of(source, **order))
    await receive_all(dataset)
    async with dataset.run(rank=0, world_size=1, batch_size=1, position=None) as run:
        await run.receive()
        await asyncio.wait_for(_until_idle(run), 60)
        assert 0 < run.statistics()["batches_ready"] < 8
    await dataset.aclose()


async def _until_idle(run: Any) -> None:
    """Wait until the channel has no room for another batch."""
    while run._channel._has_room(1 << 18):
        await run._channel._changed.wait()


@asynchronous
async def test_an_error_comes_after_the_batches_before_it(source: str, tmp_path: Path) -> None:
    last = tmp_path / "raw" / "part-00004.tfrecord"
    data = bytearray(last.read_bytes())
    data[-6] ^= 1
    last.write_bytes(data)
    dataset = await Dataset.open(
        settings_of(source, **cached(tmp_path / "cache", batch_size=4, lanes=1))
    )
    for kept in (0, 8):
        async with dataset.run(rank=0, world_size=1, batch_size=4, position=None) as run:
            for _ in range(8):
                await run.receive()
            with pytest.raises(CorruptRecord):
                await run.receive()
            with pytest.raises(CorruptRecord):
                await run.receive()
            assert run.statistics()["cached_batches"] == kept
    await dataset.aclose()


@asynchronous
async def test_a_changed_shard_is_read_anew(source: str, tmp_path: Path) -> None:
    first = tmp_path / "raw" / "part-00000.tfrecord"
    settings = settings_of(source, **cached(tmp_path / "cache", batch_size=4))
    for size in (None, 4 * 56, 4 * 56 - 1):
        first.write_bytes(first.read_bytes()[:size])
        plain = await Dataset.open(settings_of(source, batch_size=4))
        dataset = await Dataset.open(settings)
        if size == 4 * 56 - 1:
            with pytest.raises(TruncatedShard):
                await receive_all(dataset)
        else:
            equal(await receive_all(dataset), await receive_all(plain))
        await plain.aclose()
        await dataset.aclose()


FEATURES = describe({"x": FixedLenFeature((), "int64"), "y": FixedLenFeature((2,), "float32")})
PLAIN: dict[str, Any] = {"features": FEATURES, "lanes": 2, "memory_budget": "512MiB"}
CHANGES: dict[str, Any] = {
    "features": describe({"x": FixedLenFeature((), "int64"), "y": FixedLenFeature((), "float32")}),
    "dtypes": "int32",
    "shuffle": True,
    "seed": 3,
    "shuffle_window": 1000,
    "weights": None,
    "exhausted": None,
    "ordered": None,
    "filter": None,
    "map": None,
    "balance": None,
    "pack": Pack(8),
    "length_buckets": 2,
    "check_crc": False,
    "exclude": [("x", 1)],
    "on_corrupt": "skip",
    "corrupt_budget": 7,
    "compression": "gzip",
    "window": Window(2),
    "split": "train",
    "rename": {"x": "y"},
}
"""Another value of each setting that is in a key; ``None`` for those that are refused, or of mixes.
"""
WITH: dict[str, dict[str, Any]] = {
    "on_corrupt": {"corrupt_budget": 5},
    "corrupt_budget": {"on_corrupt": "skip"},
}


def plan_of(
    shards: int = 4, batch_size: int = 3, rank: int = 0, epoch: int = 0, **settings: Any
) -> RunPlan:
    world_size = 1 if rank == 0 else 2
    steps = {"steps_per_epoch": 9} if world_size > 1 else {}
    objects = [ObjectInfo(f"memory://x/{shard}", 1 << 20, '"1"') for shard in range(shards)]
    described = settings_of("x", **{**PLAIN, **steps, **settings})
    dataset = Dataset(described, Stores(), objects)
    run = dataset.run(
        rank=rank, world_size=world_size, batch_size=batch_size, position=Beginning(epoch)
    )
    return run._plan


def key_of(plan: RunPlan, version: str = "1") -> str:
    return BatchKeys(plan, [version]).key(plan.position)


def test_every_setting_is_in_the_key_or_known_to_have_no_effect() -> None:
    assert set(DatasetSettings.model_fields) == CHANGES.keys() | WITHOUT_EFFECT
    assert not CHANGES.keys() & WITHOUT_EFFECT


@pytest.mark.parametrize("name", [name for name in CHANGES if CHANGES[name] is not None])
def test_a_changed_setting_changes_the_key(name: str) -> None:
    changed = {**WITH.get(name, {}), name: CHANGES[name]}
    assert key_of(plan_of()) != key_of(plan_of(**changed))


@pytest.mark.parametrize(
    "change",
    [
        {"memory_budget": "64MiB"},
        {"prefetch": 3},
        {"transform": "math:sqrt"},
        {"storage_options": {"token": "secret"}},
        {"lanes": 2, "remainder": "keep"},
    ],
)
def test_what_has_no_effect_leaves_the_key(change: dict[str, Any]) -> None:
    assert key_of(plan_of()) == key_of(plan_of(**change))


@pytest.mark.parametrize(
    "change", [{"batch_size": 4}, {"rank": 1}, {"lanes": 4}, {"shards": 3}, {"remainder": "pad"}]
)
def test_ranks_batch_sizes_and_orders_have_keys_of_their_own(change: dict[str, Any]) -> None:
    assert key_of(plan_of()) != key_of(plan_of(**change))


def test_a_changed_shard_or_release_changes_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    key = key_of(plan_of())
    assert key_of(plan_of(), "2") != key
    monkeypatch.setattr("streamrec.pipeline.batch_cache.__version__", "0.0.0")
    assert key_of(plan_of()) != key


def test_the_step_is_left_out() -> None:
    plan = plan_of()
    later = replace(plan.position, step=1000)
    keys = BatchKeys(plan, [])
    assert keys.key(plan.position) == keys.key(later)


def test_a_later_epoch_has_the_same_keys_where_lanes_have_the_same_shards() -> None:
    assert key_of(plan_of(epoch=5)) == key_of(plan_of())
    assert key_of(plan_of(epoch=5, shards=5)) != key_of(plan_of(shards=5))
    assert key_of(plan_of(epoch=6, shards=5)) == key_of(plan_of(shards=5))


@pytest.mark.parametrize("change", [{"shuffle": True}, {"length_buckets": 2}])
def test_a_later_epoch_has_other_keys_where_the_order_is_drawn(change: dict[str, Any]) -> None:
    assert key_of(plan_of(epoch=5, **change)) != key_of(plan_of(**change))


def test_the_end_of_the_run_is_in_the_key() -> None:
    """A batch may hold records of the next epoch, or end with this one."""
    keys = [key_of(plan_of(epochs=epochs)) for epochs in (1, 2, None)]
    assert len(set(keys)) == 3
    # A number of steps ends a run between two batches.
    assert key_of(plan_of(epochs=2, steps_per_epoch=5)) == keys[2]


def test_an_endless_run_has_the_same_keys_wherever_it_began() -> None:
    plan = plan_of(epochs=None)
    keys = BatchKeys(plan, [])
    assert keys.key(plan.position) == keys.key(replace(plan.position, run_epoch=3))


def test_a_batch_is_kept_as_one_of_the_first_epoch_that_is_like_its_own() -> None:
    """With 5 shards in 2 lanes, every second epoch is alike."""
    plan = plan_of(epoch=5, shards=5)
    origin = Origin(np.zeros(0, np.int32), np.zeros(0, np.int64))
    batch = Batch({}, 0, 5, origin, plan.position)
    keys = BatchKeys(plan, [])
    kept = keys.normalize(batch)
    assert (kept.epoch, kept.next_position.epoch) == (1, 1)
    assert kept.next_position.lanes.tolist() == plan_of(epoch=1, shards=5).position.lanes.tolist()
    restore = keys.restore(kept, replace(plan.position, step=plan.position.step + 7))
    assert (restore.epoch, restore.next_position.epoch) == (5, 5)
    assert restore.next_position == replace(plan.position, step=plan.position.step + 8)


MIB = 1 << 20
PLAN = plan_of()
BEFORE = PLAN.position
ROWS = 3


def batch_behind(before: Position, fill: int = 7) -> Batch:
    """Make a batch with a column of each kind."""
    lanes = before.lanes.copy()
    lanes["record"] += 5
    lanes["taken"] += 5
    splits = offsets_of(np.array([1, 0, 2]))
    columns: dict[str, Any] = {
        "dense": np.full((ROWS, 4), fill, np.float32),
        "bytes": BytesColumn.of([b"one", b"", b"three"]),
        "ragged": Ragged(np.arange(3), splits),
        "sparse": Sparse(np.array([[0, 1], [2, 0]]), np.array([1.5, 2.5]), (ROWS, 2)),
    }
    origin = Origin(np.arange(ROWS, dtype=np.int32), np.arange(ROWS, dtype=np.int64))
    position = replace(before, step=before.step + 1, lanes=lanes)
    return Batch(columns, ROWS, before.epoch, origin, position, np.array([True, True, False]))


def cache_in(shelf: ProcessMemory, size: int = MIB) -> BatchCache:
    return BatchCache(PLAN, PieceCache(shelf, size), ["1"])


@pytest.fixture
def shelf() -> Iterator[ProcessMemory]:
    shelf = ProcessMemory(MIB)
    yield shelf
    shelf._objects.clear()


def the_piece(shelf: ProcessMemory) -> tuple[Piece, bytes]:
    ((piece, _),) = shelf.entries()
    return piece, shelf._objects[piece.key][piece].data


def put(shelf: ProcessMemory, key: str, data: bytes) -> None:
    shelf._objects.clear()
    shelf.save(Piece(key, 0, len(data), len(data)), memoryview(data))


def test_a_piece_is_the_frame_without_its_trailer(shelf: ProcessMemory) -> None:
    cache_in(shelf).keep(batch_behind(BEFORE), BEFORE)
    piece, data = the_piece(shelf)
    assert piece.nbytes == len(data) == Header.unpack(data[:HEADER]).size - TRAILER


def test_a_batch_is_given_as_it_was_kept(shelf: ProcessMemory) -> None:
    cache, batch = cache_in(shelf), batch_behind(BEFORE)
    assert cache.load(BEFORE) is None
    cache.keep(batch, BEFORE)
    found = cache.load(BEFORE)
    assert found is not None
    assert found.next_position.to_dict() == batch.next_position.to_dict()
    for name in batch:
        same(found[name], batch[name])
        for array in arrays_of(found[name]):
            assert array.flags.writeable
            assert array.ctypes.data % 64 == 0
    assert found.mask is not None
    assert found.mask.tolist() == [True, True, False]
    assert cache.load(batch.next_position) is None


def test_each_load_has_memory_of_its_own(shelf: ProcessMemory) -> None:
    cache = cache_in(shelf)
    cache.keep(batch_behind(BEFORE), BEFORE)
    first, second = cache.load(BEFORE), cache.load(BEFORE)
    assert first is not None
    assert second is not None
    first["dense"][:] = 0
    assert (second["dense"] == 7).all()


def test_the_first_batch_of_a_position_stays(shelf: ProcessMemory) -> None:
    cache = cache_in(shelf)
    cache.keep(batch_behind(BEFORE), BEFORE)
    cache.keep(batch_behind(BEFORE, fill=8), BEFORE)
    found = cache.load(BEFORE)
    assert found is not None
    assert (found["dense"] == 7).all()


def test_the_end_of_a_run_is_kept(shelf: ProcessMemory) -> None:
    cache = cache_in(shelf)
    cache.keep_end(BEFORE)
    with pytest.raises(EndOfStream):
        cache.load(BEFORE)


@given(st.data())
def test_damaged_and_hostile_bytes_are_a_miss_or_another_batch(data: st.DataObject) -> None:
    """No checksum is between these bytes and the reader: it may raise nothing."""
    shelf = ProcessMemory(MIB)
    cache = cache_in(shelf)
    cache.keep(batch_behind(BEFORE), BEFORE)
    piece, whole = the_piece(shelf)
    damaged = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at] = data.draw(st.integers(0, 255))
    put(shelf, piece.key, bytes(damaged[: data.draw(st.integers(1, len(damaged)))]))
    found = cache.load(BEFORE)
    assert found is None or found.rows < 1 << 20


@pytest.mark.parametrize("cut", [0, 1, 23, 24, 25, -1])
def test_cut_pieces_are_a_miss(shelf: ProcessMemory, cut: int) -> None:
    cache = cache_in(shelf)
    cache.keep(batch_behind(BEFORE), BEFORE)
    piece, whole = the_piece(shelf)
    put(shelf, piece.key, whole[:cut] or b"x")
    assert cache.load(BEFORE) is None


def test_a_name_that_says_too_much_is_a_miss(shelf: ProcessMemory) -> None:
    cache = cache_in(shelf)
    cache.keep_end(BEFORE)
    piece, data = the_piece(shelf)
    for other in (
        piece._replace(begin=1),
        piece._replace(size=piece.size + 1),
        piece._replace(end=1 << 40, size=1 << 40),
    ):
        shelf._objects.clear()
        shelf.save(other, memoryview(data))
        assert cache.load(BEFORE) is None


def test_a_small_budget_holds(shelf: ProcessMemory) -> None:
    cache, position = cache_in(shelf, 20_000), BEFORE
    for _ in range(100):
        batch = batch_behind(position)
        cache.keep(batch, position)
        position = batch.next_position
        assert sum(entry.piece.nbytes for entry in shelf.entries()) <= 20_000
    assert len(shelf.entries()) > 5


def test_shards_without_a_strong_version_are_refused() -> None:
    cache = PieceCache(ProcessMemory(MIB), MIB)
    for etag in (None, "", 'W/"1"'):
        with pytest.raises(ConfigError, match=r"s3://b/x has none; name the"):
            versions_of([ObjectInfo("s3://b/y", 1, '"1"'), ObjectInfo("s3://b/x", 1, etag)], cache)
    two = [ObjectInfo("s3://b/y", 1, etag) for etag in ('"1"', '"2"')]
    assert len(set(versions_of(two, cache))) == 2
