from __future__ import annotations

import asyncio
import json
import socket
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from streamrec.config import DatasetSettings
from streamrec.errors import ConfigError, CorruptRecord, OtherDataset
from streamrec.feeder.client.client import AsyncFeed
from streamrec.feeder.client.connection import AsyncConnection
from streamrec.feeder.server import source
from streamrec.feeder.server.server import Feeder
from streamrec.flow.channel import EndOfStream
from streamrec.pipeline.dataset import Dataset
from streamrec.plan.state.position import VERSION
from streamrec.wire.messages import (
    BatchMessage,
    Credit,
    Hello,
    Statistics,
    Subscribe,
    Welcome,
)
from streamrec.wire.protocol import Connection, Role, State
from tests.feeder.fake_dataset import ROWS, FakeDataset
from tests.feeder.shards import write_shards
from tests.feeder.support import (
    eventually,
    on_both_loops,
)
from tests.pipeline.fetch.test_inflating_queue import dataset_of, shard
from tests.pipeline.scripted_store import ScriptedStore

if TYPE_CHECKING:
    from pathlib import Path


HERE = "tcp://127.0.0.1:0"
EXPECTED = [b"%d:%d" % (shard, record) for record in range(10) for shard in range(4)]


@on_both_loops
async def test_counters_come_before_the_end_and_before_a_fault() -> None:
    dataset = FakeDataset(steps=3, fail_at=4, error=CorruptRecord("the CRC differs"))
    dataset.counts = True
    async with Feeder({"train": dataset}) as feeder:
        address = f"{await feeder.listen(HERE)}/train"
        async with aclosing(await AsyncFeed.open(address)) as feed:
            assert feed.statistics() == {}
            for expected in (3, 4):
                with pytest.raises((EndOfStream, CorruptRecord)):
                    while True:
                        await feed.receive()
                assert feed.statistics() == {"requests": expected, "reason": "the start"}
                if expected == 3:
                    feed.subscribe()


@on_both_loops
async def test_welcome_describes_the_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Feeder({"train": FakeDataset()}) as feeder:
        address = f"{await feeder.listen(HERE)}/train"
        async with aclosing(await AsyncFeed.open(address)) as feed:
            assert feed.settings == {
                "batch_size": ROWS,
                "lanes": 4,
                "shard_count": 2,
                "shards": ["memory://double/a", "memory://double/b"],
                "features": None,
                "epochs": 1,
                "steps_per_epoch": None,
                "remainder": None,
                "contents": {
                    "length_buckets": None,
                    "check_crc": True,
                    "on_corrupt": "raise",
                    "filter": None,
                    "map": None,
                    "transform": None,
                    "pack": None,
                },
                "length": None,
                "surplus": None,
            }
        most = 2 * (len('"memory://double/a"') + len(", "))
        monkeypatch.setattr(source, "MOST_NAMES", most)
        async with aclosing(await AsyncFeed.open(address)) as feed:
            assert feed.settings["shards"] == ["memory://double/a", "memory://double/b"]
        monkeypatch.setattr(source, "MOST_NAMES", most - 1)
        async with aclosing(await AsyncFeed.open(address, batch_size=3)) as feed:
            assert feed.settings["shards"] is None
            assert feed.settings["batch_size"] == 3
            assert feed.fingerprint.global_batch == 3


class TestRealDatasets:
    """The real pipeline behind the feeder."""

    @staticmethod
    async def records(feed: AsyncFeed, batches: int | None = None) -> list[bytes]:
        taken: list[bytes] = []
        try:
            while batches is None or batches > 0:
                taken += (await feed.receive()).records.to_list()
                batches = None if batches is None else batches - 1
        except EndOfStream:
            pass
        return taken

    @staticmethod
    async def dataset(path: Path, **more: object) -> Dataset:
        shards = write_shards(path, shards=4, records=10)
        values = {"source": shards, "batch_size": 3, **more}
        return await Dataset.open(DatasetSettings.model_validate(values))

    @on_both_loops
    async def test_stop_anywhere_and_go_on(self, tmp_path: Path) -> None:
        dataset = await self.dataset(tmp_path)
        async with Feeder({"train": dataset}) as feeder:
            address = f"{await feeder.listen(HERE)}/train"
            for stop in range(15):
                async with aclosing(await AsyncFeed.open(address)) as feed:
                    head = await self.records(feed, stop)
                    state = json.loads(json.dumps(feed.position))
                async with aclosing(await AsyncFeed.open(address, position=state)) as feed:
                    assert head + await self.records(feed) == EXPECTED
        await dataset.aclose()

    @on_both_loops
    async def test_the_next_epoch_on_the_same_connection(self, tmp_path: Path) -> None:
        dataset = await self.dataset(tmp_path, shuffle=True, seed=5)
        async with (
            Feeder({"train": dataset}) as feeder,
            aclosing(await AsyncFeed.open(f"{await feeder.listen(HERE)}/train")) as feed,
        ):
            first = await self.records(feed)
            feed.subscribe()
            second = await self.records(feed)
        assert sorted(first) == sorted(second) == sorted(EXPECTED)
        assert first != second
        await dataset.aclose()

    @on_both_loops
    async def test_ranks_share_the_records(self, tmp_path: Path) -> None:
        dataset = await self.dataset(tmp_path, steps_per_epoch=6)
        taken: list[bytes] = []
        async with Feeder({"train": dataset}) as feeder:
            address = f"{await feeder.listen(HERE)}/train"
            for rank in range(2):
                async with aclosing(await AsyncFeed.open(address, rank=rank, world_size=2)) as feed:
                    taken += await self.records(feed)
            with pytest.raises(ConfigError, match="does not divide the 4 lanes"):
                async with aclosing(await AsyncFeed.open(address, world_size=3)) as feed:
                    await feed.receive()
        assert len(taken) == len(set(taken)) == 36
        await dataset.aclose()

    @on_both_loops
    async def test_the_first_cause_has_its_place(self, tmp_path: Path) -> None:
        shards = write_shards(tmp_path, shards=4, records=10)
        shard = tmp_path / "shard-2.tfrecord"
        data = bytearray(shard.read_bytes())
        data[-5] ^= 1
        shard.write_bytes(data)
        dataset = await Dataset.open(DatasetSettings(source=shards, batch_size=3))
        async with (
            Feeder({"train": dataset}) as feeder,
            aclosing(await AsyncFeed.open(f"{await feeder.listen(HERE)}/train")) as feed,
        ):
            with pytest.raises(CorruptRecord) as caught:
                await self.records(feed)
        assert (caught.value.record, caught.value.offset) == (9, len(data) - 19)
        await dataset.aclose()

    @on_both_loops
    async def test_nothing_is_read_before_there_is_credit(self) -> None:
        store = ScriptedStore({"s": shard([1000] * 20)})
        ours, theirs = socket.socketpair()
        loop = asyncio.get_running_loop()
        async with Feeder({"train": dataset_of(store)}) as feeder:
            serving = asyncio.create_task(feeder.serve_socket(theirs))
            _, client = await loop.create_connection(
                lambda: AsyncConnection(Connection(Role.CLIENT)), sock=ours
            )
            client.post(Hello(dataset="train", world_size=1, position_version=VERSION))
            assert isinstance(await client.receive(), Welcome)
            client.post(Subscribe(0))
            (connection,) = feeder.admission.guests
            await eventually(lambda: connection.machine.state is State.STREAMING)
            for _ in range(20):
                await asyncio.sleep(0)
            assert store.asked == []
            client.post(Credit(1))
            assert isinstance(await client.receive(), Statistics)
            assert isinstance(await client.receive(), BatchMessage)
            await client.aclose()
            await serving

    @on_both_loops
    async def test_a_position_of_other_shards(self, tmp_path: Path) -> None:
        dataset = await self.dataset(tmp_path)
        async with Feeder({"train": dataset, "double": FakeDataset()}) as feeder:
            bound = await feeder.listen(HERE)
            async with aclosing(await AsyncFeed.open(f"{bound}/double")) as feed:
                await feed.receive()
                state = feed.position
            with pytest.raises(OtherDataset):
                await AsyncFeed.open(f"{bound}/train", position=state)
        await dataset.aclose()
