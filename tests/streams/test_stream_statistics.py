"""``stream.statistics()`` says the same, whoever reads."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import streamrec as sr
from streamrec.errors import CorruptRecord
from streamrec.feeder.server.server import Feeder
from streamrec.pipeline.dataset import Dataset
from tests.pipeline.small_datasets import settings_of, write
from tests.support import asynchronous

if TYPE_CHECKING:
    from pathlib import Path

    from streamrec.config.keywords import Engine
    from streamrec.streams.stream import Stream

SHARDS = ((400,) * 30, (), (3000,) * 30)
BYTES = sum(length + 16 for shard in SHARDS for length in shard)
OWN = {"batches", "records", "step", "seconds_blocked"}
MODES = ["process", "thread", "async", "feeder", "feeder, async"]

Statistics = dict[str, Any]


@pytest.fixture
def source(tmp_path: Path) -> str:
    return write(tmp_path / "raw", SHARDS)


def taken(stream: Stream) -> Statistics:
    with stream:
        for _ in stream:
            pass
        return stream.statistics()


async def taken_async(stream: Stream) -> Statistics:
    async with stream:
        async for _ in stream:
            pass
        return stream.statistics()


async def fed(source: str, *, plain: bool) -> Statistics:
    dataset = await Dataset.open(settings_of(source, batch_size=8))
    try:
        async with Feeder({"train": dataset}) as feeder:
            address = f"{await feeder.listen('tcp://127.0.0.1:0')}/train"
            stream = sr.connect(address, rank=0, world_size=1)
            return await (asyncio.to_thread(taken, stream) if plain else taken_async(stream))
    finally:
        await dataset.aclose()


def read(mode: Any, source: str) -> Statistics:
    if mode == "process" or mode == "thread":
        return taken(sr.open(source, batch_size=8, engine=mode))
    if mode == "async":
        return asyncio.run(taken_async(sr.open(source, batch_size=8)))
    return asyncio.run(fed(source, plain=mode == "feeder"))


@pytest.mark.parametrize("mode", MODES)
def test_the_same_keys_and_counts_in_every_mode(source: str, mode: str) -> None:
    statistics = read(mode, source)
    assert set(statistics) - {"reconnections"} == set(read("thread", source))
    assert statistics["bytes_used"] == statistics["bytes_read"] == BYTES
    assert (statistics["batches"], statistics["records"], statistics["step"]) == (8, 60, 8)
    assert statistics["requests"] >= 2
    assert statistics["in_flight"] == statistics["retries"] == statistics["throttled"] == 0
    assert statistics["seconds_blocked"] > 0
    assert statistics["concurrency_reason"]


@pytest.mark.parametrize("mode", ["thread", "async"])
def test_opening_is_part_of_the_first_run_s_time(source: str, mode: str) -> None:
    assert read(mode, source)["waits"]["list"] > 0


@pytest.mark.parametrize("engine", ["process", "thread"])
def test_each_run_counts_anew_what_is_read_but_not_what_is_taken(
    source: str, engine: Engine
) -> None:
    with sr.open(source, batch_size=8, engine=engine) as stream:
        for run in (1, 2):
            for _ in stream:
                pass
            statistics = stream.statistics()
            assert statistics["bytes_used"] == BYTES
            assert (statistics["batches"], statistics["records"]) == (8 * run, 60 * run)


@pytest.mark.parametrize("engine", ["process", "thread"])
def test_after_a_fault_they_say_what_led_to_it(tmp_path: Path, engine: Engine) -> None:
    source = write(tmp_path / "raw", ((50,) * 9,))
    shard = next((tmp_path / "raw").iterdir())
    damaged = bytearray(shard.read_bytes())
    damaged[-6] ^= 1
    shard.write_bytes(damaged)
    with sr.open(source, batch_size=4, engine=engine) as stream:
        with pytest.raises(CorruptRecord):
            for _ in stream:
                pass
        statistics = stream.statistics()
    assert statistics["requests"] == 2, "the range, and once more from the damaged record on"
    assert statistics["bytes_used"] == 8 * 66


@asynchronous
async def test_before_anything_is_read_there_are_only_the_streams_own(source: str) -> None:
    assert set(sr.open(source).statistics()) == OWN
    async with sr.open(source, batch_size=8) as stream:
        assert set(stream.statistics()) >= OWN


@pytest.mark.parametrize("engine", ["process", "thread"])
def test_they_name_the_shard_that_was_waited_for(source: str, engine: Engine) -> None:
    with sr.open(source, batch_size=8, engine=engine) as stream:
        for _ in stream:
            pass
        awaited = stream.statistics()["awaited_shard"]
        assert awaited["url"] in stream.shards
        assert awaited["seconds"] > 0
