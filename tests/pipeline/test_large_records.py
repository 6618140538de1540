"""Records that are large, or claim to be: the memory that they take, and their results."""

from __future__ import annotations

import asyncio
import gc
import os
import struct
import subprocess
import sys
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamrec import kernel
from streamrec.errors import (
    CorruptLength,
    CorruptRecord,
    OutOfMemory,
    RecordTooLarge,
    TruncatedShard,
)
from streamrec.flow.pool import Pool, size_class
from streamrec.formats.shards.compression import Decompressor
from streamrec.formats.shards.tfrecord import frame
from streamrec.pipeline.dataset import Dataset
from streamrec.plan.reading.ranges import WITHIN_RECORD
from tests.by_day import at_night
from tests.pipeline.fetch.test_inflating_queue import (
    KINDS,
    PACKED,
    batches_of,
    dataset_of,
    failure_of,
    new_run,
    pack,
)
from tests.pipeline.mixes import mix_of
from tests.pipeline.scripted_store import Body, ScriptedStore
from tests.pipeline.small_datasets import contents, settings_of, write, write_index
from tests.support import asynchronous, examples

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from streamrec.config import Compression

MIB = 1 << 20
LONG = 3 * MIB
FEW = settings(
    max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
SKIP: dict[str, Any] = {"on_corrupt": "skip", "corrupt_budget": 1.0}


def shard(*lengths: int) -> bytes:
    return b"".join(frame(Random(length).randbytes(length)) for length in lengths)


def header(length: int) -> bytes:
    packed = struct.pack("<Q", length)
    return packed + struct.pack("<I", kernel.masked_crc32c(packed))


def bomb(kind: Compression, size: int) -> bytes:
    """Make a shard of a thousandth of its one record's size, or less, from repeated members."""
    return pack(kind, header(size)) + pack(kind, bytes(32 * MIB)) * (size // (32 * MIB))


# -- the limit -------------------------------------------------------------------------------------


@FEW
@given(
    kind=st.sampled_from(KINDS),
    piece=st.integers(1, 700),
    known=st.booleans(),
    check_crc=st.booleans(),
    limit=st.sampled_from([299, 300]),
)
def test_every_way_in_which_the_bytes_come_gives_the_same(
    kind: Compression, piece: int, known: bool, check_crc: bool, limit: int
) -> None:
    """One record has as many bytes as are allowed, or one more."""
    plain = shard(20, 250, 300, 40)

    async def main() -> None:
        store = ScriptedStore({"s": pack(kind, plain)}, piece=piece)
        values = {"batch_size": 1, "check_crc": check_crc, "max_record_bytes": limit}
        dataset = dataset_of(store, known=known, **values)
        if limit == 300:
            assert [len(record) for record in contents(await batches_of(dataset))][2:] == [300, 40]
            return
        records, error = await failure_of(dataset)
        assert isinstance(error, RecordTooLarge)
        assert error.fields() == {"url": "s", "offset": 36 + 266, "record": 2}
        assert list(map(len, records)) == [20, 250]

    asyncio.run(main())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "values",
    [{}, {"shuffle": True, "shuffle_window": "1KiB"}, {"batch_size": None}, {"ordered": False}],
    ids=["in order", "shuffled", "single", "unordered"],
)
@asynchronous
async def test_in_every_order(kind: Compression, values: dict[str, Any]) -> None:
    store = ScriptedStore({f"s{n}": pack(kind, shard(20, 300 * n, 40)) for n in range(4)})
    assert len(contents(await batches_of(dataset_of(store, max_record_bytes=900, **values)))) == 12
    _, error = await failure_of(dataset_of(store, max_record_bytes=899, **values))
    assert isinstance(error, RecordTooLarge)
    assert error.fields() == {"url": "s3", "offset": 36, "record": 1}


@pytest.mark.parametrize("shuffle", [False, True])
@asynchronous
async def test_by_record(tmp_path: Path, shuffle: bool) -> None:
    source = write(tmp_path, ((20, 30), (20, 300, 30)))
    await asyncio.to_thread(write_index, source, 64)
    values = {"index": True, "shuffle": shuffle, "shuffle_window": "1KiB", "batch_size": 2}
    dataset = await Dataset.open(settings_of(source, max_record_bytes=300, **values))
    assert sum(map(len, await batches_of(dataset))) == 5
    await dataset.aclose()
    dataset = await Dataset.open(settings_of(source, max_record_bytes=299, **values))
    _, error = await failure_of(dataset)
    assert isinstance(error, RecordTooLarge)
    assert (error.offset, error.record) == (36, 1)
    await dataset.aclose()


@asynchronous
async def test_in_a_mix(tmp_path: Path) -> None:
    parts = {"a": ((20, 30),), "b": ((20, 300),)}
    values = {"exhausted": "rest", "batch_size": 1, "max_record_bytes": 299}
    dataset = await Dataset.open(mix_of(tmp_path, parts, {"a": 0.5, "b": 0.5}, **values))
    _, error = await failure_of(dataset)
    assert isinstance(error, RecordTooLarge)
    assert error.record == 1
    await dataset.aclose()


@pytest.mark.parametrize("kind", KINDS)
@asynchronous
async def test_by_default_it_is_what_the_budget_holds(kind: Compression) -> None:
    store = ScriptedStore({"s": pack(kind, frame(bytes(8 * MIB)))})
    assert list(map(len, contents(await batches_of(dataset_of(store))))) == [8 * MIB]
    store = ScriptedStore({"s": pack(kind, frame(bytes(8 * MIB + 1)))})
    _, error = await failure_of(dataset_of(store))
    assert isinstance(error, RecordTooLarge)
    assert "has 8388609 bytes, more than max_record_bytes, which is 8388608" in error.message
    dataset = dataset_of(store, max_record_bytes="9MiB")
    assert list(map(len, contents(await batches_of(dataset)))) == [8 * MIB + 1]


@pytest.mark.parametrize("kind", KINDS)
@asynchronous
async def test_it_is_never_skipped(kind: Compression) -> None:
    """Nobody would know that less memory is why there are fewer records."""
    store = ScriptedStore({"s": pack(kind, shard(20, 300, 40))})
    records, error = await failure_of(dataset_of(store, max_record_bytes=299, **SKIP))
    assert isinstance(error, RecordTooLarge)
    assert list(map(len, records)) in ([], [20])


@asynchronous
async def test_where_a_shard_was_cut_that_is_what_is_said() -> None:
    store = ScriptedStore({"s": shard(20) + header(1 << 40) + bytes(100)})
    _, error = await failure_of(dataset_of(store))
    assert isinstance(error, TruncatedShard)
    assert sum(map(len, await batches_of(dataset_of(store, **SKIP)))) == 1


@pytest.mark.parametrize("piece", [1, 50, 1 << 20])
@pytest.mark.parametrize("kind", PACKED)
@asynchronous
async def test_how_soon_a_decompressed_size_is_known_makes_no_difference(
    kind: Compression, piece: int
) -> None:
    store = ScriptedStore({"s": pack(kind, shard(20) + header(1 << 40) + bytes(100))}, piece=piece)
    _, error = await failure_of(dataset_of(store, **SKIP))
    assert isinstance(error, RecordTooLarge)


# -- memory ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", PACKED)
@pytest.mark.parametrize("values", [{}, SKIP, {"shuffle": True, "shuffle_window": "1MiB"}])
@asynchronous
async def test_a_bomb_takes_no_memory(kind: Compression, values: dict[str, Any]) -> None:
    """3 MB of gzip, or a few hundred KB of zstd, of which a record of 3 GiB comes."""
    store = ScriptedStore({"s": bomb(kind, 3 << 30)})
    async with new_run(dataset_of(store, **values)) as run:
        with pytest.raises(RecordTooLarge, match="has 3221225472 bytes"):
            await run.receive()
        assert run.statistics()["most_bytes_in_memory"] <= 8 * MIB


@pytest.mark.parametrize("length", [2**31, 2**40, 2**46, 2**62, 2**63, 2**64 - 1])
@pytest.mark.parametrize("kind", KINDS)
@asynchronous
async def test_a_length_alone_takes_no_memory(kind: Compression, length: int) -> None:
    store = ScriptedStore({"s": pack(kind, shard(20) + header(length) + bytes(10_000))})
    dataset = dataset_of(store, batch_size=1, max_record_bytes="1TiB")
    async with new_run(dataset) as run:
        await run.receive()
        with pytest.raises((RecordTooLarge, TruncatedShard, CorruptLength)):
            await run.receive()
        assert run.statistics()["most_bytes_in_memory"] <= 9 * MIB, "the only lane's share"


@asynchronous
async def test_behind_damage_a_length_takes_none_either() -> None:
    """A search must not hold what may be a record, to see whether it is one."""
    stream = pack("gzip", b"damaged frames here" + header(1 << 30)) + pack("gzip", bytes(MIB)) * 64
    async with new_run(dataset_of(ScriptedStore({"s": stream}), **SKIP)) as run:
        with pytest.raises(RecordTooLarge):
            await run.receive()
        assert run.statistics()["most_bytes_in_memory"] <= 16 * MIB


@asynchronous
async def test_a_large_record_is_received_into_its_place() -> None:
    """In ranges of 4 MiB, without a copy."""
    size = 33 * MIB
    store = ScriptedStore({"s": shard(100) + frame(bytes(size)) + shard(100)})
    dataset = dataset_of(store, batch_size=1, max_record_bytes=size)
    async with new_run(dataset) as run:
        assert [len((await run.receive()).records[0]) for _ in range(3)] == [100, size, 100]
        assert run.statistics()["most_bytes_in_memory"] <= size_class(size) + 4 * MIB
    sizes = Counter(stop - start for _, start, stop, _ in store.asked)
    assert sizes[WITHIN_RECORD] == size // WITHIN_RECORD
    assert store.most_open == sizes[WITHIN_RECORD] + 1


@asynchronous
async def test_lanes_read_large_records_one_after_the_other() -> None:
    sizes = [20 * MIB] * 8
    store = ScriptedStore({f"s{n}": frame(bytes(size)) for n, size in enumerate(sizes)})
    dataset = dataset_of(store, batch_size=1, lanes=4, memory_budget="64MiB", max_concurrency=4)
    async with new_run(dataset) as run:
        assert [len((await run.receive()).records[0]) for _ in sizes] == sizes
    parts = [url for url, start, stop, _ in store.asked if stop - start == WITHIN_RECORD]
    assert parts == sorted(parts)


@FEW
@given(
    shards=st.lists(
        st.lists(st.sampled_from([20, 60_000, 900_000, 5 * MIB]), max_size=4),
        min_size=1,
        max_size=4,
    ),
    values=st.fixed_dictionaries(
        {"lanes": st.integers(1, 3), "ordered": st.booleans(), "batch_size": st.integers(1, 2)}
    ),
    damage=st.none() | st.integers(0, 1 << 30),
    piece=st.sampled_from([70_000, 1 << 20]),
)
def test_records_of_all_sizes_are_those_that_were_written(
    shards: list[list[int]], values: dict[str, Any], damage: int | None, piece: int
) -> None:
    data = {f"s{n}": bytearray(shard(*lengths)) for n, lengths in enumerate(shards)}
    damaged = data[f"s{(damage or 0) % len(data)}"]
    if damage is not None and damaged:
        damaged[damage % len(damaged)] ^= 1
    store = ScriptedStore({url: bytes(one) for url, one in data.items()}, piece=piece)

    async def main() -> None:
        skip: dict[str, Any] = SKIP if damage is not None else {}
        found = contents(await batches_of(dataset_of(store, **values, **skip)))
        written = [Random(length).randbytes(length) for lengths in shards for length in lengths]
        lost = Counter(written) - Counter(found)
        assert not Counter(found) - Counter(written)
        assert lost.total() == int(damage is not None and len(damaged) > 0)

    asyncio.run(main())


@dataclass
class FlippingStore(ScriptedStore):
    """A store that sends a byte wrongly, so many times."""

    place: int = 0
    times: int = 1

    @asynccontextmanager
    async def open_range(
        self, url: str, start: int, stop: int, *, etag: str | None = None
    ) -> AsyncIterator[Body]:
        async with super().open_range(url, start, stop, etag=etag) as body:
            if self.times and start <= self.place < stop:
                self.times -= 1
                data = bytearray(body.data)
                data[self.place - start] ^= 1
                body.data = memoryview(data)
            yield body


@pytest.mark.parametrize("times", [1, 3])
@asynchronous
async def test_a_large_record_that_is_damaged_is_read_once_more(times: int) -> None:
    data, place = shard(20, LONG, LONG), 36 + LONG // 2
    store = FlippingStore({"s": data}, place=place, times=times)
    async with new_run(dataset_of(store, batch_size=1)) as run:
        await run.receive()
        if times > 1:  # it stays damaged
            with pytest.raises(CorruptRecord):
                await run.receive()
            return
        found = [bytes((await run.receive()).records[0]) for _ in range(2)]
        assert found == [Random(LONG).randbytes(LONG)] * 2
        assert run.statistics()["refetched"] == 1


@asynchronous
async def test_batches_beyond_the_reserve_take_from_the_read_ahead() -> None:
    count, size = 12, 8 * MIB
    store = ScriptedStore({f"s{n:02}": frame(bytes(size)) for n in range(count)})
    dataset = dataset_of(store, batch_size=1, lanes=2, memory_budget="32MiB")
    async with new_run(dataset) as run:
        fetcher, taken = run._assembler.fetcher, []
        assert fetcher.overdrawn(size) > 0, "before there is a batch"
        for _ in range(count):
            await run.receive()
            taken.append(fetcher.pool.in_use + run._assembler._decoded.in_use)
        assert max(taken) <= 32 * MIB + size


@pytest.mark.parametrize("kind", KINDS)
@asynchronous
async def test_a_large_record_is_held_once(kind: Compression) -> None:
    """While it is put together, and what it outgrows is copied, never twice as much."""
    size = 33 * MIB
    store = ScriptedStore({"s": pack(kind, shard(100) + frame(bytes(size)) + shard(100))})
    dataset = dataset_of(store, batch_size=1, max_record_bytes=size)
    async with new_run(dataset) as run:
        assert [len((await run.receive()).records[0]) for _ in range(3)] == [100, size, 100]
    statistics = run.statistics()
    assert statistics["most_bytes_in_memory"] <= 2 * size + 8 * MIB
    assert statistics["bytes_in_memory"] == 0


@pytest.mark.parametrize(
    "kind", [kind if kind in {"none", "gzip"} else at_night(kind) for kind in KINDS]
)
@asynchronous
async def test_lanes_that_are_not_waited_for_keep_to_the_budget(kind: Compression) -> None:
    """Each of them has met the header of a record that is as large as the whole budget."""
    lanes, size = 12, 8 * MIB
    data = pack(kind, frame(bytes(size)))
    store = ScriptedStore({f"s{n:02}": data for n in range(lanes)})
    dataset = dataset_of(store, batch_size=1, lanes=lanes)
    async with new_run(dataset) as run:
        for _ in range(lanes):
            assert len((await run.receive()).records[0]) == size
        assert run.statistics()["most_bytes_in_memory"] <= 5 * size


def refusing(acquire: Any, refuses: Callable[[int, int], bool]) -> Any:
    """Wrap the pool's method so that some sizes or numbers of calls are refused."""
    calls = count()

    def acquire_some(self: Pool, size: int, *rest: Any) -> Any:
        if refuses(next(calls), size):
            raise MemoryError("none left")
        return acquire(self, size, *rest)

    return acquire_some


@pytest.mark.parametrize(
    ("kind", "lengths", "refuses", "where"),
    [
        ("none", [20], lambda call, _: call == 0, {"offset": 0}),
        ("gzip", [20], lambda call, _: call == 0, {"offset": 0}),
        ("gzip", [20], lambda call, _: call == 1, {"offset": 0}),
        ("none", [20, LONG], lambda _, size: size == LONG + 16, {"offset": 36, "record": 1}),
        ("gzip", [20, LONG], lambda _, size: size == LONG + 16, {"offset": 36, "record": 1}),
    ],
    ids=["range", "stored range", "decompressed", "straddling", "straddling, decompressed"],
)
@asynchronous
async def test_an_allocation_that_fails_is_an_error_with_its_place(
    kind: Compression,
    lengths: list[int],
    refuses: Callable[[int, int], bool],
    where: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = ScriptedStore({"s": pack(kind, shard(*lengths))})
    monkeypatch.setattr(Pool, "acquire", refusing(Pool.acquire, refuses))
    async with new_run(dataset_of(store, batch_size=1)) as run:
        with pytest.raises(OutOfMemory, match="none left") as caught:
            for _ in range(3):
                await run.receive()
        assert caught.value.fields() == {"url": "s", **where}
        del caught
    gc.collect()
    assert run.statistics()["bytes_in_memory"] == 0, "it is given back"


@asynchronous
async def test_no_memory_while_decompressing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise MemoryError("none left")

    monkeypatch.setattr(Decompressor, "fill", refuse)
    _, error = await failure_of(dataset_of(ScriptedStore({"s": pack("zstd", shard(20))})))
    assert isinstance(error, OutOfMemory)
    assert error.fields() == {"url": "s", "offset": 0}


SHORT = """
import resource, sys
import streamrec as sr
from streamrec.errors import OutOfMemory

def used():
    return int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()

path = sys.argv[1]
stream = sr.open(path, batch_size=1, memory_budget="8MiB", max_record_bytes="1GiB", engine="thread")
assert len(next(stream).records[0]) == 20
limit = used() + (400 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    next(stream)
except OutOfMemory as error:
    assert isinstance(error, MemoryError)
    assert (error.url, error.record) == (path, 1), str(error)
    assert error.offset in (None, 36), str(error)
    print("told")
stream.close()
del stream
print(len(bytearray(200 << 20)) >> 20)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the limit is not kept")
@pytest.mark.parametrize("kind", ["none", "gzip"])
def test_where_the_system_has_no_more_the_error_says_so(tmp_path: Path, kind: Compression) -> None:
    size = 512 * MIB
    path = tmp_path / "shard"
    with path.open("wb") as file:
        file.write(pack(kind, shard(20)))
        if kind == "none":
            file.write(header(size))
            file.truncate(36 + 12 + size + 4)  # a sparse file: nothing is written
        else:
            file.write(bomb(kind, size))
    arguments = [sys.executable, "-c", SHORT, str(path)]
    finished = subprocess.run(
        arguments,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "MALLOC_ARENA_MAX": "1"},
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.split() == ["told", "200"]
