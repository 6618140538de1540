from __future__ import annotations

import asyncio
import gzip
import logging
from collections import deque
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import streamrec.pipeline.fetch.inflating_queue as module
from streamrec.devstore import DevStore, FaultRule
from streamrec.errors import (
    CorruptCompression,
    CorruptLength,
    CorruptRecord,
    DataError,
    DecompressionBomb,
    ObjectChanged,
    StoreUnavailable,
    StreamrecError,
    TruncatedShard,
)
from streamrec.flow.channel import EndOfStream
from streamrec.formats.shards.compression import Compressor, Decompressor
from streamrec.formats.shards.tfrecord import FOOTER, frame
from streamrec.pipeline.dataset import Dataset
from streamrec.plan.state.position import Position
from streamrec.stores.base.protocol import ObjectInfo
from tests.by_day import at_night
from tests.pipeline.scripted_store import ScriptedStore
from tests.pipeline.small_datasets import contents, identities, settings_of
from tests.support import asynchronous, examples

if TYPE_CHECKING:
    from streamrec.config import Compression
    from streamrec.pipeline.batch.batch import Batch
    from streamrec.pipeline.run import Run

KINDS: list[Compression] = ["none", "gzip", "zlib", "zstd"]
PACKED = KINDS[1:]
FEW = settings(
    max_examples=examples(20), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def pack(kind: Compression, data: bytes) -> bytes:
    if kind == "none":
        return data
    stream = Compressor(kind)
    return stream.compress(data) + stream.finish()


def shard(lengths: list[int], number: int = 0) -> bytes:
    random = Random(number)
    return b"".join(frame(random.randbytes(length)) for length in lengths)


def dataset_of(store: ScriptedStore, *, known: bool = True, **values: Any) -> Dataset:
    """Make a dataset of the store's objects; ``known``: with their sizes, as listed."""
    objects = [
        ObjectInfo(url, len(data), store.etags.get(url, '"v1"')) if known else ObjectInfo(url)
        for url, data in sorted(store.objects.items())
    ]
    values = {"batch_size": 3, "memory_budget": "8MiB", "max_concurrency": "auto", **values}
    return Dataset(settings_of(sorted(store.objects), **values), store, objects)  # type: ignore[arg-type]


def new_run(dataset: Dataset, position: Position | None = None) -> Run:
    return dataset.run(
        rank=0, world_size=1, batch_size=dataset.settings.batch_size, position=position
    )


async def batches_of(dataset: Dataset, position: Position | None = None) -> list[Batch]:
    found: list[Batch] = []
    async with new_run(dataset, position) as run:
        while True:
            try:
                found.append(await run.receive())
            except EndOfStream:
                return found


async def failure_of(dataset: Dataset) -> tuple[list[bytes], StreamrecError]:
    """Return the records before a failure, and the failure."""
    found: list[Batch] = []
    async with new_run(dataset) as run:
        with pytest.raises(StreamrecError) as caught:
            while True:
                found.append(await run.receive())
    return contents(found), caught.value


@FEW
@given(
    shards=st.lists(
        st.tuples(st.lists(st.integers(0, 3000), max_size=6), st.sampled_from(KINDS)),
        min_size=1,
        max_size=5,
    ),
    order=st.fixed_dictionaries(
        {
            "lanes": st.integers(1, 4),
            "shuffle": st.booleans(),
            "shuffle_window": st.integers(0, 9000),
            "batch_size": st.none() | st.integers(1, 5),
            "epochs": st.integers(1, 2),
        }
    ),
    piece=st.sampled_from([7, 300, 1 << 20]),
    known=st.booleans(),
    place=st.integers(0, 1 << 16),
)
@example(
    shards=[([], "none"), ([0], "none"), ([], "gzip")],
    order={"lanes": 1, "shuffle": True, "shuffle_window": 0, "batch_size": 1, "epochs": 2},
    piece=7,
    known=False,
    place=1,
)
def test_the_order_and_every_resume_are_those_of_the_plain_shards(
    shards: list[tuple[list[int], Compression]],
    order: dict[str, Any],
    piece: int,
    known: bool,
    place: int,
) -> None:
    plain = {f"s{i}": shard(lengths, i) for i, (lengths, _) in enumerate(shards)}
    packed = {f"s{i}": pack(kind, plain[f"s{i}"]) for i, (_, kind) in enumerate(shards)}

    async def main() -> None:
        expected = await batches_of(dataset_of(ScriptedStore(plain), compression="none", **order))
        store = ScriptedStore(packed, piece=piece)
        found = await batches_of(dataset_of(store, known=known, **order))
        assert (identities(found), contents(found)) == (identities(expected), contents(expected))
        if not found:
            return
        stop = place % len(found)  # how many single records travel together is a matter of timing
        position = Position.from_dict(found[stop].next_position.to_dict())
        if order["batch_size"]:
            like = expected[stop].next_position
            assert replace(position, sizes=like.sizes) == like
        tail = await batches_of(dataset_of(store, known=known, **order), position)
        assert contents(tail) == contents(found[stop + 1 :])

    asyncio.run(main())


@pytest.mark.parametrize("kind", PACKED)
@asynchronous
async def test_a_compression_that_is_named_needs_no_look_at_the_beginning(
    kind: Compression,
) -> None:
    plain = shard([100] * 50)
    store = ScriptedStore({"s": pack(kind, plain)})
    dataset = dataset_of(store, compression=kind, batch_size=1)
    found = await batches_of(dataset)
    store.asked.clear()
    tail = await batches_of(dataset, found[20].next_position)
    assert contents(tail) == contents(found[21:])
    assert [start for _, start, _, _ in store.asked] == [0]


@asynchronous
async def test_resuming_in_a_plain_shard_looks_at_its_beginning_and_goes_on() -> None:
    store = ScriptedStore({"s": shard([1000] * 50)})
    dataset = dataset_of(store, batch_size=1)
    found = await batches_of(dataset)
    store.asked.clear()
    tail = await batches_of(dataset, found[20].next_position)
    assert contents(tail) == contents(found[21:])
    assert [start for _, start, _, _ in store.asked] == [0, 21 * 1016 - FOOTER]


@asynchronous
async def test_behind_such_a_look_a_lane_begins_as_small_as_any() -> None:
    store = ScriptedStore({"s": shard([1000] * 4000)})
    dataset = dataset_of(store, batch_size=1, memory_budget="64MiB")
    sizes = {}
    for position in (None, (await batches_of(dataset))[20].next_position):
        store.asked.clear()
        await batches_of(dataset, position)
        sizes[position] = [stop - start for _, start, stop, _ in store.asked]
    (begun, resumed) = sizes.values()
    assert resumed[0] < begun[0]
    assert resumed[1:4] == begun[:3]


@pytest.mark.parametrize("kind", PACKED)
@asynchronous
async def test_reading_a_shard_again_is_said_once(
    kind: Compression, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "streamrec")
    store = ScriptedStore({f"s{i}": pack(kind, shard([9] * 9)) for i in range(4)})
    dataset = dataset_of(store, batch_size=4)
    found = await batches_of(dataset)
    assert not caplog.records
    await batches_of(dataset, found[3].next_position)
    (said,) = [record.message for record in caplog.records]
    assert "is compressed" in said
    assert "from their beginnings" in said


@pytest.mark.parametrize("kind", PACKED)
@asynchronous
async def test_records_larger_than_any_memory_piece(kind: Compression) -> None:
    plain = shard([10, 3 << 20, 0, 2 << 20, 5])
    expected = await batches_of(dataset_of(ScriptedStore({"s": plain}), batch_size=1))
    found = await batches_of(dataset_of(ScriptedStore({"s": pack(kind, plain)}), batch_size=1))
    assert contents(found) == contents(expected)


@pytest.mark.parametrize("kind", PACKED)
@asynchronous
async def test_memory_stays_within_the_budget_and_comes_back(kind: Compression) -> None:
    store = ScriptedStore({f"s{i}": pack(kind, shard([1000] * 3000, i)) for i in range(4)})
    dataset = dataset_of(store, batch_size=50, memory_budget="16MiB")
    highest = 0
    async with new_run(dataset) as run:
        for _ in range(4 * 3000 // 50):
            await run.receive()
            highest = max(highest, run.statistics()["bytes_in_memory"])
    assert 0 < highest <= 16 << 20
    statistics = run.statistics()
    assert statistics["bytes_in_memory"] == 0
    assert statistics["decompressed_from"] == sum(map(len, store.objects.values()))
    assert statistics["decompressed_to"] == 4 * 3000 * 1016


@pytest.mark.parametrize(
    ("kind", "window"),
    [
        ("gzip", 0),
        at_night("gzip", 2 << 20),
        at_night("zlib", 0),
        at_night("zlib", 2 << 20),
        at_night("zstd", 0),
        ("zstd", 2 << 20),
    ],
)
@asynchronous
async def test_a_small_budget_does_not_deadlock(kind: Compression, window: int) -> None:
    store = ScriptedStore({f"s{i}": pack(kind, bytes(shard([5000] * 200, i))) for i in range(16)})
    dataset = dataset_of(store, batch_size=100, shuffle=window > 0, shuffle_window=window)
    assert sum(map(len, await batches_of(dataset))) == 16 * 200


@pytest.mark.parametrize("kind", PACKED)
@asynchronous
async def test_an_endless_run_over_nothing_ends(kind: Compression) -> None:
    dataset = dataset_of(ScriptedStore({"a": pack(kind, b""), "b": b""}), epochs=None)
    records, error = await failure_of(dataset)
    assert (records, type(error)) == ([], DataError)
    assert "nothing to repeat" in error.message


@pytest.mark.parametrize("kind", PACKED)
@asynchronous
async def test_many_empty_objects_behind_a_large_one(kind: Compression) -> None:
    store = ScriptedStore({"a": pack(kind, shard([100_000] * 20))})
    store = ScriptedStore({**store.objects, **{f"b{i:04}": b"" for i in range(1500)}})
    dataset = dataset_of(store, known=False, compression=kind, lanes=1)
    assert sum(map(len, await batches_of(dataset))) == 20


@pytest.mark.parametrize(("encoding", "kind"), [("gzip", "gzip"), ("deflate", "zlib")])
@asynchronous
async def test_an_object_with_a_content_encoding(encoding: str, kind: Compression) -> None:
    plain = shard([100] * 40)
    async with DevStore() as devstore:
        devstore.put("bucket/x", pack(kind, plain))
        devstore.faults = [FaultRule(headers={"Content-Encoding": encoding})]
        settings = settings_of("s3://bucket/x", storage_options=devstore.storage_options)
        dataset = await Dataset.open(settings)
        assert sum(map(len, await batches_of(dataset))) == 40
        await dataset.aclose()


class TestFaults:
    @pytest.mark.parametrize("kind", PACKED)
    @asynchronous
    async def test_truncated(self, kind: Compression) -> None:
        data = pack(kind, shard([1000] * 300))
        store = ScriptedStore({"s": data[:-3]})
        _, error = await failure_of(dataset_of(store, batch_size=1))
        assert isinstance(error, TruncatedShard)
        assert error.fields() == {"url": "s", "offset": len(data) - 3}

    @pytest.mark.parametrize("kind", PACKED)
    @asynchronous
    async def test_truncated_before_it_was_compressed(self, kind: Compression) -> None:
        plain = shard([1000] * 3)
        store = ScriptedStore({"s": pack(kind, plain[:-1])})
        records, error = await failure_of(dataset_of(store, batch_size=1))
        assert isinstance(error, TruncatedShard)
        assert (len(records), error.record, error.offset) == (2, 2, 2 * 1016)

    @pytest.mark.parametrize("kind", PACKED)
    @asynchronous
    async def test_a_corrupt_record_is_not_read_again(self, kind: Compression) -> None:
        plain = bytearray(shard([1000] * 3))
        plain[2 * 1016 - 5] ^= 1
        store = ScriptedStore({"s": pack(kind, bytes(plain))})
        records, error = await failure_of(dataset_of(store, batch_size=1))
        assert isinstance(error, CorruptRecord)
        assert (len(records), error.record, error.offset) == (1, 1, 1016)
        assert [start for _, start, _, _ in store.asked] == [0]

    @pytest.mark.parametrize("kind", PACKED)
    @asynchronous
    async def test_whole_records_before_something_else_come_first(self, kind: Compression) -> None:
        store = ScriptedStore({"s": pack(kind, shard([1000] * 300)) + b"junk"})
        records, error = await failure_of(dataset_of(store, batch_size=1))
        assert isinstance(error, CorruptCompression)
        assert (len(records), error.url) == (300, "s")

    @asynchronous
    async def test_what_is_named_decides(self) -> None:
        plain = shard([10])
        _, error = await failure_of(dataset_of(ScriptedStore({"s": plain}), compression="gzip"))
        assert isinstance(error, CorruptCompression)
        packed = gzip.compress(plain)
        _, error = await failure_of(dataset_of(ScriptedStore({"s": packed}), compression="none"))
        assert isinstance(error, CorruptLength)
        _, error = await failure_of(dataset_of(ScriptedStore({"s.gz": b"?" * 40})))
        assert isinstance(error, CorruptCompression)

    @asynchronous
    async def test_a_name_that_lies(self) -> None:
        plain = shard([10, 20])
        assert len(await batches_of(dataset_of(ScriptedStore({"s.gz": plain}), batch_size=1))) == 2

    @pytest.mark.parametrize("kind", PACKED)
    @asynchronous
    async def test_a_bomb(self, kind: Compression, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            module,
            "Decompressor",
            lambda kind, url: Decompressor(kind, url=url, ratio=50, free=1 << 20),
        )
        store = ScriptedStore({"s": pack(kind, frame(bytes(30 << 20)))})
        _, error = await failure_of(dataset_of(store, max_record_bytes="30MiB"))
        assert isinstance(error, DecompressionBomb)
        assert error.url == "s"

    @pytest.mark.parametrize("kind", KINDS)
    @asynchronous
    async def test_bodies_that_break_off_are_read_on(self, kind: Compression) -> None:
        plain = shard([1000] * 30)
        lost = StoreUnavailable("lost")
        store = ScriptedStore(
            {"s": pack(kind, plain)}, faults=deque([lost, (3, lost), (900, lost)])
        )
        assert sum(map(len, await batches_of(dataset_of(store)))) == 30

    @pytest.mark.parametrize("kind", KINDS)
    @asynchronous
    async def test_an_error_of_the_store_on_resume(self, kind: Compression) -> None:
        store = ScriptedStore({"s": pack(kind, shard([1000] * 30))})
        found = await batches_of(dataset_of(store))
        store = ScriptedStore({"s": pack(kind, shard([1000] * 31))})
        dataset = dataset_of(store, known=False)
        async with new_run(dataset, found[3].next_position) as run:
            with pytest.raises(ObjectChanged):
                await run.receive()

    @pytest.mark.parametrize("kind", PACKED)
    @asynchronous
    async def test_an_offset_past_the_end(self, kind: Compression) -> None:
        long, short = (ScriptedStore({"s": pack(kind, shard([9] * n))}) for n in (30, 3))
        found = (await batches_of(dataset_of(long)))[5].next_position
        found.lanes["crc"] = 0  # as read_records begins at an offset
        position = replace(found, sizes=np.zeros_like(found.sizes))
        async with new_run(dataset_of(short), position) as run:
            with pytest.raises(TruncatedShard, match="give the offset of a record"):
                await run.receive()


@pytest.mark.parametrize("kind", PACKED)
@asynchronous
async def test_leaving_at_any_time_leaves_nothing_behind(kind: Compression) -> None:
    store = ScriptedStore({f"s{i}": pack(kind, shard([3000] * 200, i)) for i in range(5)})
    for taken in range(4):
        async with new_run(dataset_of(store, batch_size=100)) as run:
            for _ in range(taken):
                await run.receive()
        assert store.open_bodies == 0
        assert run._assembler.inflater is not None
        assert run._assembler.inflater._threads._shutdown
