from __future__ import annotations

import random
from collections import deque
from typing import TYPE_CHECKING
from unittest.mock import AsyncMock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import (
    AccessDenied,
    CorruptCompression,
    CorruptLength,
    OutOfMemory,
    RecordTooLarge,
    StoreUnavailable,
    TruncatedShard,
)
from streamrec.flow import retry
from streamrec.formats.shards.compression import Compressor
from streamrec.formats.shards.tfrecord import frame
from streamrec.pipeline import sample
from streamrec.pipeline.sample import (
    SAMPLE_SHARDS,
    FirstRecords,
    first_records,
    sample_records,
    spread,
)
from streamrec.stores.base import protocol
from tests.pipeline.scripted_store import ScriptedStore
from tests.support import asynchronous

if TYPE_CHECKING:
    from streamrec.config import Compression

each_kind = pytest.mark.parametrize("kind", ["gzip", "zlib", "zstd"])
each_kind_and_none = pytest.mark.parametrize("kind", ["none", "gzip", "zlib", "zstd"])


def pack(kind: Compression, data: bytes) -> bytes:
    if kind == "none":
        return data
    stream = Compressor(kind)
    return stream.compress(data) + stream.finish()


@asynchronous
async def test_the_first_records_of_the_first_shard_that_has_any() -> None:
    shard = b"".join(frame(b"%d" % i) for i in range(5))
    store = ScriptedStore({"a": b"", "b": shard, "c": frame(b"other")}, piece=7)
    found = await first_records(store, sorted(store.objects))
    assert found == FirstRecords("b", [b"0", b"1", b"2", b"3", b"4"])
    assert await first_records(store, sorted(store.objects), most=2) == FirstRecords(
        "b", [b"0", b"1"]
    )
    assert "c" not in {url for url, *_ in store.asked}


@asynchronous
async def test_a_record_larger_than_the_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample, "SAMPLE_BYTES", 10)
    store = ScriptedStore({"a": frame(b"x" * 500) + frame(b"y")})
    found = await first_records(store, ["a"])
    assert found is not None
    assert found.records[0] == b"x" * 500


def _at_once(backoff: retry.Backoff, *_: object) -> float:
    backoff.attempt += 1
    return 0.0


@asynchronous
async def test_a_store_that_is_busy_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry.Backoff, "next", _at_once)
    busy = StoreUnavailable("busy", url="a")
    store = ScriptedStore({"a": frame(b"x")}, faults=deque([busy, (3, busy), busy]))
    assert await first_records(store, ["a"]) == FirstRecords("a", [b"x"])
    store.faults.extend([busy] * 99)
    with pytest.raises(StoreUnavailable) as unavailable:
        await first_records(store, ["a"])
    assert unavailable.value.fields() == {"url": "a", "offset": 0}
    assert len(store.asked) == 4 + protocol.RETRIES + 1
    store.faults = deque([AccessDenied("no", url="a")])
    with pytest.raises(AccessDenied) as denied:
        await first_records(store, ["a"])
    assert denied.value.fields() == {"url": "a", "offset": 0}


@asynchronous
async def test_no_records_at_all() -> None:
    assert await first_records(ScriptedStore({"a": b"", "b": b""}), ["a", "b"]) is None


@asynchronous
async def test_a_place_is_where_the_frame_begins() -> None:
    shard = b"".join(map(frame, (b"", b"xyz", b"x")))
    found = await first_records(
        ScriptedStore({"https://user:secret@h/a": shard}), ["https://user:secret@h/a"]
    )
    assert found is not None
    assert [found.place(number) for number in range(3)] == [
        {"url": "https://h/a", "offset": 0, "record": 0},
        {"url": "https://h/a", "offset": 16, "record": 1},
        {"url": "https://h/a", "offset": 16 + 19, "record": 2},
    ]


@asynchronous
async def test_a_corrupt_beginning() -> None:
    shard = bytearray(frame(b"x" * 30))
    with pytest.raises(TruncatedShard) as truncated:
        await first_records(ScriptedStore({"a": bytes(shard[:-3])}), ["a"])
    assert truncated.value.fields() == {"url": "a", "offset": 0, "record": 0}
    shard[9] ^= 1
    with pytest.raises(CorruptLength) as corrupt:
        await first_records(ScriptedStore({"a": bytes(shard)}), ["a"])
    assert corrupt.value.fields() == {"url": "a", "offset": 0, "record": 0}


@each_kind
@pytest.mark.parametrize("first", [10, 200, 1 << 20])
@asynchronous
async def test_compressed_shards(
    kind: Compression, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample, "SAMPLE_BYTES", first)
    records = [b"x" * 500, b"", b"y"]
    shard = pack(kind, b"".join(map(frame, records)))
    store = ScriptedStore({"a": pack(kind, b""), "b": shard}, piece=7)
    found = await first_records(store, ["a", "b"])
    assert found is not None
    assert found.records[0] == records[0]
    assert found.records == records[: len(found.records)]
    assert await first_records(store, ["b"], compression=kind) == found


@each_kind
@pytest.mark.parametrize("first", [10, 1 << 20])
@asynchronous
async def test_damaged_compressed_shards(
    kind: Compression, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample, "SAMPLE_BYTES", first)
    shard = pack(kind, frame(bytes(range(200))))
    store = ScriptedStore({"a": shard[:-9], "b": pack(kind, b"part") + b"junk"})
    with pytest.raises(TruncatedShard):
        await first_records(store, ["a"])
    with pytest.raises(CorruptCompression):
        await first_records(store, ["b"])
    with pytest.raises(CorruptLength):
        await first_records(store, ["a"], compression="none")


@each_kind_and_none
@asynchronous
async def test_a_first_record_that_is_too_large(
    kind: Compression, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample, "SAMPLE_BYTES", 60)
    record = bytes(random.Random(1).randbytes(5000))
    store = ScriptedStore({"a": pack(kind, frame(record) + frame(b"y"))})
    found = await first_records(store, ["a"], largest=5000)
    assert found is not None
    assert found.records[0] == record
    store.asked.clear()
    with pytest.raises(RecordTooLarge):
        await first_records(store, ["a"], largest=4999)
    assert [stop for *_, stop, _ in store.asked] == [60], "it is not read"


@asynchronous
async def test_what_begins_with_damage_is_not_read_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample, "SAMPLE_BYTES", 60)
    store = ScriptedStore({"a": b"?" * 5000})
    with pytest.raises(CorruptLength):
        await first_records(store, ["a"], compression="none")
    assert [stop for *_, stop, _ in store.asked] == [60]


@asynchronous
async def test_a_large_first_record_takes_as_many_bytes_as_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sample, "SAMPLE_BYTES", 60)
    store = ScriptedStore({"a": frame(bytes(5000)) + bytes(100_000)})
    assert await first_records(store, ["a"]) == FirstRecords("a", [bytes(5000)])
    assert max(stop for *_, stop, _ in store.asked) <= 2 * 5016


@asynchronous
async def test_no_memory_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample, "read_range", AsyncMock(side_effect=MemoryError("none left")))
    with pytest.raises(OutOfMemory, match="none left") as caught:
        await first_records(ScriptedStore({"a": b""}), ["a"])
    assert caught.value.fields() == {"url": "a", "offset": 0}


@given(st.integers(1, 10_000))
def test_a_spread_is_even(total: int) -> None:
    names = [str(i) for i in range(total)]
    chosen = spread(names)
    assert len(chosen) == len(set(chosen)) == min(total, SAMPLE_SHARDS)
    assert chosen[0] == "0"


@asynchronous
async def test_a_sample_is_of_shards_spread_over_all() -> None:
    shards = {f"{i:02}": frame(b"%d" % i) for i in range(2 * SAMPLE_SHARDS)}
    store = ScriptedStore(shards)
    found = await sample_records(store, sorted(shards))
    assert found == [FirstRecords(f"{i:02}", [b"%d" % i]) for i in range(0, 2 * SAMPLE_SHARDS, 2)]


@asynchronous
async def test_a_sample_passes_over_shards_that_are_empty_or_damaged() -> None:
    store = ScriptedStore({"a": b"", "b": frame(b"1"), "c": bytes(100), "d": frame(b"2")})
    assert await sample_records(store, list("abcd")) == [
        FirstRecords("b", [b"1"]),
        FirstRecords("d", [b"2"]),
    ]
    with pytest.raises(CorruptLength):
        await sample_records(store, list("cd"))
    assert await sample_records(store, ["a"]) == []
