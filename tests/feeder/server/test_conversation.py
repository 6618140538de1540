from __future__ import annotations

import asyncio
import gc
import json
import socket
import weakref
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Self

import pytest

from streamrec.config import DatasetSettings
from streamrec.errors import ConfigError, CorruptRecord, OtherDataset, RemoteProtocolError
from streamrec.feeder.client.client import AsyncFeed
from streamrec.feeder.client.connection import AsyncConnection
from streamrec.feeder.server import conversation
from streamrec.feeder.server.server import Feeder
from streamrec.flow.channel import EndOfStream
from streamrec.pipeline.dataset import Dataset
from streamrec.plan.state.position import VERSION
from streamrec.wire.messages import (
    BatchMessage,
    Credit,
    Goaway,
    Hello,
    Message,
    Ping,
    Statistics,
    Subscribe,
    Welcome,
)
from streamrec.wire.protocol import Connection, Role, State
from tests.feeder.fake_dataset import ROWS, FakeDataset
from tests.feeder.shards import write_shards
from tests.feeder.support import (
    Scripted,
    eventually,
    hello,
    in_simulated_time,
    on_both_loops,
    server_settings,
)
from tests.pipeline.fetch.test_inflater import dataset_of, shard
from tests.pipeline.scripted_store import ScriptedStore

if TYPE_CHECKING:
    from pathlib import Path


HERE = "tcp://127.0.0.1:0"
EXPECTED = [b"%d:%d" % (shard, record) for record in range(10) for shard in range(4)]


@on_both_loops
async def test_a_drain_before_hello_cuts() -> None:
    ours, theirs = socket.socketpair()
    feeder = Feeder({"train": FakeDataset()})
    with ours:
        serving = asyncio.create_task(feeder.serve_socket(theirs))
        await eventually(lambda: feeder.admission.handshakes == 1)
        await feeder.drain(1000)
        await serving


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
async def test_counters_come_with_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "TELL_EVERY", 0.0)
    dataset = FakeDataset()
    dataset.counts = True
    async with Feeder({"train": dataset}) as feeder:
        address = f"{await feeder.listen(HERE)}/train"
        async with aclosing(await AsyncFeed.open(address)) as feed:
            for step in range(5):
                await feed.receive()
                assert feed.statistics()["requests"] == step + 1


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
        monkeypatch.setattr(conversation, "MOST_NAMES", most)
        async with aclosing(await AsyncFeed.open(address)) as feed:
            assert feed.settings["shards"] == ["memory://double/a", "memory://double/b"]
        monkeypatch.setattr(conversation, "MOST_NAMES", most - 1)
        async with aclosing(await AsyncFeed.open(address, batch_size=3)) as feed:
            assert feed.settings["shards"] is None
            assert feed.settings["batch_size"] == 3
            assert feed.fingerprint.global_batch == 3


@pytest.mark.parametrize("position", [b"{", b"[" * 100_000])
@on_both_loops
async def test_a_position_that_is_no_json(position: bytes) -> None:
    async with (
        Feeder({"train": FakeDataset(steps=1)}) as feeder,
        aclosing(await AsyncFeed.open(f"{await feeder.listen(HERE)}/train")) as feed,
    ):
        await feed.receive()
        with pytest.raises(EndOfStream):
            await feed.receive()
        feed.over = False
        feed._connection.post(Subscribe(0, position))
        with pytest.raises(RemoteProtocolError, match="the position of SUBSCRIBE cannot be read"):
            await feed.receive()


@on_both_loops
async def test_garbage_amid_the_stream_is_answered() -> None:
    dataset = FakeDataset(hang_at=1)
    async with Feeder({"train": dataset}) as feeder:
        async with aclosing(await AsyncFeed.open(f"{await feeder.listen(HERE)}/train")) as feed:
            await feed.receive()
            feed._connection._transport.write(b"garbage" * 100)
            with pytest.raises(RemoteProtocolError, match="expected a frame"):
                await feed.receive()
        assert dataset.open_runs == 0
        assert feeder.statistics.faults == {"RemoteProtocolError": 1}


class Silent:
    """One end of a socket pair, the other of which a feeder serves in simulated time."""

    def __init__(self, feeder: Feeder) -> None:
        ours, theirs = socket.socketpair()
        self.socket = ours
        self.client = Scripted(ours, Role.CLIENT)
        self.serving = asyncio.create_task(feeder.serve_socket(theirs))
        self._clock = asyncio.get_running_loop().time
        self._began = self._clock()

    async def cut(self) -> float:
        """Return the seconds after which the feeder has closed the connection."""
        await self.serving
        return self._clock() - self._began

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


class TestDeadlines:
    """A silent client is disconnected in each state, and a live one is not."""

    @in_simulated_time
    async def test_before_hello(self) -> None:
        async with Feeder({"train": FakeDataset()}) as feeder:
            with Silent(feeder) as silent:
                assert await silent.cut() == 10
            assert feeder.statistics.dropped["handshake"] == 1

    @in_simulated_time
    async def test_a_hello_that_comes_byte_by_byte(self) -> None:
        async with Feeder({"train": FakeDataset()}) as feeder:
            with Silent(feeder) as silent:
                for byte in b"".join(Connection(Role.CLIENT).send(hello()))[:4]:
                    silent.socket.sendall(bytes([byte]))
                    await asyncio.sleep(3)
                assert silent.serving.done()
            assert feeder.statistics.dropped["handshake"] == 1

    @pytest.mark.parametrize("then", [(), (Subscribe(0),), (Credit(1),)])
    @in_simulated_time
    async def test_before_subscribe_and_credit(self, then: tuple[Message, ...]) -> None:
        dataset = FakeDataset()
        async with Feeder({"train": dataset}) as feeder:
            with Silent(feeder) as silent:
                silent.client.say(hello())
                await silent.client.answer()
                silent.client.say(*then)
                assert 10 <= await silent.cut() < 11
            assert feeder.statistics.dropped["handshake"] == 1
            assert feeder.admission.clients == 0
        assert dataset.taken == 0

    @pytest.mark.parametrize(
        ("credit", "size"),
        [pytest.param(1, 100, id="no credit"), pytest.param(1 << 30, 500_000, id="amid a batch")],
    )
    @in_simulated_time
    async def test_a_client_that_takes_nothing_more(self, credit: int, size: int) -> None:
        dataset = FakeDataset(steps=50, size=size)
        async with Feeder(
            {"train": dataset}, settings=server_settings(idle_timeout=3600), linger=50
        ) as feeder:
            with Silent(feeder) as silent:
                silent.client.say(hello())
                await silent.client.answer()
                silent.client.say(Subscribe(0), Credit(credit))
                await eventually(lambda: dataset.taken == 1)
                assert 3600 <= await silent.cut() < 3600 + 60
            assert feeder.statistics.dropped["idle"] == 1
            assert (dataset.taken, dataset.open_runs) == (1, 0)

    @in_simulated_time
    async def test_a_client_between_two_runs(self) -> None:
        async with Feeder(
            {"train": FakeDataset(steps=1)}, settings=server_settings(idle_timeout=3600)
        ) as feeder:
            with Silent(feeder) as silent:
                silent.client.say(hello())
                await silent.client.answer()
                silent.client.say(Subscribe(0), Credit(1 << 30))
                assert 3600 <= await silent.cut() < 3600 + 400
            assert feeder.statistics.dropped["idle"] == 1

    @in_simulated_time
    async def test_a_client_whose_dataset_is_never_open(self) -> None:
        opening: asyncio.Future[FakeDataset] = asyncio.get_running_loop().create_future()
        async with Feeder(
            {"train": opening}, settings=server_settings(idle_timeout=3600)
        ) as feeder:
            with Silent(feeder) as silent:
                silent.client.say(hello())
                assert 3600 <= await silent.cut() < 3600 + 20
            assert feeder.statistics.dropped["idle"] == 1

    @in_simulated_time
    async def test_a_client_that_was_refused_and_stays(self) -> None:
        async with Feeder({"train": FakeDataset()}, server_settings(token="secret")) as feeder:
            with Silent(feeder) as silent:
                silent.client.say(hello(token="wrong"))
                await silent.client.answer()
                assert feeder.admission.clients == 0
                assert 10 <= await silent.cut() < 11

    @in_simulated_time
    async def test_a_program_that_computes_for_an_hour(self) -> None:
        """The client cannot answer. It finds one PING, then the reason for the lost connection."""
        async with Feeder({"train": FakeDataset(steps=100)}) as feeder:
            with Silent(feeder) as silent:
                silent.client.say(hello())
                await silent.client.answer()
                silent.client.say(Subscribe(0), Credit(1))
                await asyncio.sleep(3700)
                heard = [type(message) for message in silent.client.hear()]
                assert heard == [BatchMessage, Ping]
                silent.client.say(Credit(1))
                await asyncio.sleep(7100)
                assert not silent.serving.done()
                assert feeder.admission.clients == 1
                await asyncio.sleep(200)
                heard_last = silent.client.hear()[-1]
                assert isinstance(heard_last, Goaway)
                assert "raise idle_timeout" in heard_last.text

    @in_simulated_time
    async def test_a_program_that_answers_takes_nothing_for_a_week(self) -> None:
        ours, theirs = socket.socketpair()
        async with Feeder({"stream": FakeDataset()}) as feeder:
            serving = asyncio.create_task(feeder.serve_socket(theirs))
            async with aclosing(await AsyncFeed.open(ours, credit_bytes=1)) as feed:
                await feed.receive()
                await asyncio.sleep(7 * 24 * 3600)
                for _ in range(9):
                    await feed.receive()
            await serving
            assert not any(feeder.statistics.dropped.values())


@on_both_loops
async def test_a_client_that_leaves_takes_its_last_batch_along() -> None:
    """Without the collector of cycles: it may come late, and batches may be large."""
    dataset = FakeDataset(hang_at=3)
    sent: list[weakref.ref[Any]] = []
    dataset.made = lambda batch: sent.append(weakref.ref(batch["values"]))
    gc.disable()
    try:
        async with Feeder({"train": dataset}) as feeder:
            async with aclosing(await AsyncFeed.open(f"{await feeder.listen(HERE)}/train")) as feed:
                for _ in range(3):
                    await feed.receive()
            await eventually(lambda: dataset.open_runs == 0)
            await eventually(lambda: not any(values() is not None for values in sent))
    finally:
        gc.enable()
    assert len(sent) == 3


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
        source = write_shards(path, shards=4, records=10)
        values = {"source": source, "batch_size": 3, **more}
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
        source = write_shards(tmp_path, shards=4, records=10)
        shard = tmp_path / "shard-2.tfrecord"
        data = bytearray(shard.read_bytes())
        data[-5] ^= 1
        shard.write_bytes(data)
        dataset = await Dataset.open(DatasetSettings(source=source, batch_size=3))
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
