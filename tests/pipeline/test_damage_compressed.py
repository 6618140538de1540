"""Damaged compressed shards: what comes before the damage follows from the object alone."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import streamrec.formats.shards.compression as module
from streamrec.errors import DecompressionBomb
from streamrec.formats.shards.compression import Decompressor
from streamrec.formats.shards.tfrecord import frame
from streamrec.plan.state.position import Position
from tests.by_day import is_day, stops
from tests.pipeline.fetch.test_inflating_queue import (
    PACKED,
    batches_of,
    dataset_of,
    failure_of,
    pack,
)
from tests.pipeline.scripted_store import ScriptedStore
from tests.pipeline.small_datasets import contents, identities
from tests.pipeline.test_damage import (
    ALL,
    FEW_BYTES,
    collect,
    flipped,
    read_object,
    receive_from,
    rows,
    run_to_the_end,
    write,
)

if TYPE_CHECKING:
    from pathlib import Path

    from streamrec.config import Compression
    from streamrec.pipeline.batch.batch import Batch

pytestmark = pytest.mark.both_kernels

NOISE = [np.random.default_rng(n).bytes(1500).hex().encode() for n in range(100)]
PLAIN = b"".join(map(frame, NOISE))
SKIP: dict[str, Any] = {"on_corrupt": "skip", "corrupt_budget": ALL, "batch_size": 1, "lanes": 1}
SKIPPED = "skipped_records", "skipped_bytes"
FEW = 300 if is_day() else 7
"""Bytes that come at a time, fewer than a record or a block has."""
each_kind = pytest.mark.parametrize("kind", PACKED)


def broken(kind: Compression, share: float = 0.6) -> bytes:
    """Make a stream that gives nonsense behind a share of its bytes, and then nothing."""
    data = bytearray(pack(kind, PLAIN))
    place = int(share * len(data))
    data[place : place + 4000] = b"\xff" * 4000
    return bytes(data)


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decompress in small steps, so that the fault lies behind many of them."""
    monkeypatch.setattr(module, "INPUT", 5000)
    monkeypatch.setattr(module, "OUTPUT", 4000)


def test_damage_inside_an_intact_compressed_stream(tmp_path: Path) -> None:
    shard = pack("gzip", flipped(b"".join(FEW_BYTES), 40) + b"cut")
    source = write(tmp_path, [shard, FEW_BYTES[0]])
    batches = asyncio.run(collect(source, lanes=1, batch_size=1, corrupt_budget=2))
    assert identities(batches) == [(0, 0), (0, 2), (0, 3), (1, 0)]


@each_kind
def test_a_stream_that_was_cut(tmp_path: Path, kind: Compression) -> None:
    stream = pack(kind, PLAIN)
    source = write(tmp_path, [stream[: len(stream) // 2], FEW_BYTES[0]])
    check_both_epochs(source)


@each_kind
def test_a_stream_that_is_damaged_in_the_middle(tmp_path: Path, kind: Compression) -> None:
    check_both_epochs(write(tmp_path, [broken(kind), FEW_BYTES[0]]))


def check_both_epochs(source: str) -> None:
    values = {**SKIP, "epochs": 2}
    batches, statistics = asyncio.run(run_to_the_end(source, **values))
    found = identities(batches)
    records = found[: found.index((1, 0))]
    assert found == 2 * [*records, (1, 0)]
    assert records == [(0, number) for number in range(len(records))]
    assert 40 < len(records) < 100
    in_an_epoch, odd = divmod(statistics["skipped_records"], 2)
    assert (in_an_epoch > 0, odd) == (True, 0)
    assert statistics["skipped_bytes"] > 0
    for k in (0, 30, len(records) - 1, len(records), len(records) + 20):
        position = Position.from_dict(batches[k].next_position.to_dict())
        assert rows(asyncio.run(collect(source, position, **values))) == rows(batches[k + 1 :])


@each_kind
def test_how_the_bytes_come_makes_no_difference(kind: Compression) -> None:
    stream = broken(kind)
    pieces = {FEW, 300, 1 << 20}
    found = [asyncio.run(read_as_it_comes(stream, piece, "32MiB")) for piece in pieces]
    found.append(asyncio.run(read_as_it_comes(stream, 1 << 20, "8MiB")))
    assert all(one == found[0] for one in found)
    assert found[0][0] == NOISE[: len(found[0][0])]


async def read_as_it_comes(
    stream: bytes, piece: int, budget: str
) -> tuple[list[bytes], dict[str, Any]]:
    store = ScriptedStore({"s": stream}, piece=piece)
    dataset = dataset_of(store, memory_budget=budget, **SKIP)
    run = dataset.run(rank=0, world_size=1, batch_size=1, position=None)
    batches = await receive_from(run)
    statistics = run.statistics()
    return contents(batches), {name: statistics[name] for name in SKIPPED}


@each_kind
def test_a_state_serves_however_the_bytes_come(kind: Compression) -> None:
    values = {**SKIP, "epochs": 2, "shuffle": True, "shuffle_window": 20_000, "lanes": 2}
    objects = {"a": broken(kind), "b": pack(kind, PLAIN[: 3016 * 9]), "c": broken(kind, 0.4)}

    async def main() -> None:
        whole = await batches_of(dataset_of(ScriptedStore(objects), **values))
        again = ScriptedStore(objects, piece=900)
        for k in stops(range(0, len(whole), 17), every=4):
            tail = await batches_of(dataset_of(again, **values), whole[k].next_position)
            assert named(tail) == named(whole[k + 1 :])

    asyncio.run(main())


def named(batches: list[Batch]) -> list[tuple[tuple[int, int], bytes]]:
    return list(zip(identities(batches), contents(batches), strict=True))


@each_kind
def test_the_quarantine_says_what_was_lost_and_why(tmp_path: Path, kind: Compression) -> None:
    stream = broken(kind)
    source = write(tmp_path / "data", [stream])
    values = {**SKIP, "on_corrupt": "quarantine", "quarantine": str(tmp_path / "kept")}
    batches, statistics = asyncio.run(run_to_the_end(source, **values))
    kept = sorted((tmp_path / "kept").iterdir())
    objects = [read_object(path) for path in kept]
    assert objects[0][1] == 3016 * len(batches)
    unread = statistics["skipped_bytes"] - sum(len(content) for _, _, content in objects)
    assert 0 < unread < len(stream)
    assert b"CorruptCompression" in kept[-1].read_bytes()


@each_kind
def test_the_rest_of_the_object_is_not_read(kind: Compression) -> None:
    """Ranges behind the damage that are not yet asked for never are."""
    stream = pack(kind, PLAIN) + b"junk" * 5_000_000
    store = ScriptedStore({"a": stream, "b": pack(kind, PLAIN)})
    found = asyncio.run(batches_of(dataset_of(store, **{**SKIP, "batch_size": 50})))
    assert identities(found) == [(shard, number) for shard in (0, 1) for number in range(100)]
    asked = sum(stop - start for url, start, stop, _ in store.asked if url == "a")
    assert asked < len(stream)


@each_kind
def test_what_is_no_stream_at_all_is_skipped_whole(tmp_path: Path, kind: Compression) -> None:
    source = write(tmp_path, [pack(kind, FEW_BYTES[0]), b"?" * 77, pack(kind, FEW_BYTES[1])])
    values = {**SKIP, "compression": kind}
    batches, statistics = asyncio.run(run_to_the_end(source, **values))
    assert identities(batches) == [(0, 0), (2, 0)]
    assert (statistics["skipped_records"], statistics["skipped_bytes"]) == (1, 77)


@each_kind
def test_what_follows_an_intact_stream_is_lost(tmp_path: Path, kind: Compression) -> None:
    source = write(tmp_path, [pack(kind, PLAIN) + b"junk", FEW_BYTES[0]])
    batches, statistics = asyncio.run(run_to_the_end(source, **SKIP))
    assert identities(batches) == [*((0, number) for number in range(100)), (1, 0)]
    assert statistics["skipped_bytes"] == 4


def test_an_attack_is_never_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "streamrec.pipeline.fetch.inflating_queue.Decompressor",
        lambda kind, url: Decompressor(kind, url=url, ratio=50, free=1 << 20),
    )
    store = ScriptedStore({"s": pack("gzip", frame(bytes(30 << 20)))})
    _, error = asyncio.run(failure_of(dataset_of(store, max_record_bytes="30MiB", **SKIP)))
    assert isinstance(error, DecompressionBomb)
