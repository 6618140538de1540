from __future__ import annotations

import asyncio
import gc
import logging
import socket
import sys
import weakref
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Self

import pytest

from streamrec.errors import FeederDraining, FeederLost, RemoteProtocolError
from streamrec.feeder.client.client import AsyncFeed
from streamrec.feeder.server import conversation
from streamrec.feeder.server.server import Feeder
from streamrec.flow.channel import EndOfStream
from streamrec.flow.stages import WaitClock
from streamrec.pipeline.terms.memory_needs import Measures
from streamrec.wire.messages import (
    BatchMessage,
    Credit,
    Goaway,
    Message,
    Ping,
    Statistics,
    Subscribe,
)
from streamrec.wire.protocol import Connection, Role
from tests.feeder import fake_dataset
from tests.feeder.fake_dataset import FakeDataset
from tests.feeder.support import (
    Scripted,
    eventually,
    hello,
    in_simulated_time,
    on_both_loops,
    server_settings,
)

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = "tcp://127.0.0.1:0"


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


@in_simulated_time
async def test_counters_come_during_a_long_wait_too() -> None:
    dataset = FakeDataset(hang_at=0)
    dataset.counts = True
    async with Feeder({"train": dataset}) as feeder:
        ours, theirs = socket.socketpair()
        serving = asyncio.create_task(feeder.serve_socket(theirs))
        with ours:
            client = Scripted(ours, Role.CLIENT)
            client.say(hello())
            await client.answer()
            client.say(Subscribe(0), Credit(1 << 20))
            began = asyncio.get_running_loop().time()
            for _ in range(3):
                [told] = await client.answer()
                assert isinstance(told, Statistics)
            assert 2.9 < asyncio.get_running_loop().time() - began < 3.1
        await serving


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return socket.create_connection(listener.getsockname()), listener.accept()[0]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what a TCP peer takes")
@pytest.mark.parametrize("pair", [tcp_pair, socket.socketpair])
@on_both_loops
async def test_the_loop_of_a_client_that_reads_nothing_is_at_work(
    pair: Callable[[], tuple[socket.socket, socket.socket]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plain ``for`` reads its socket between two steps of training only."""
    waits = WaitClock()
    monkeypatch.setattr(fake_dataset, "Measures", lambda: Measures(waits=waits))
    async with Feeder({"train": FakeDataset(steps=1 << 20, size=100_000)}) as feeder:
        ours, theirs = pair()
        serving = asyncio.create_task(feeder.serve_socket(theirs))
        with ours:
            client = Scripted(ours, Role.CLIENT)
            client.say(hello())
            await client.answer()
            client.say(Subscribe(0), Credit(1 << 30))
            # Full buffers alone end the sending: there is credit for more.
            await eventually(lambda: waits.seconds().get("client", 0) > 0.3)
            wire = waits.seconds()["wire"]
            await eventually(lambda: waits.seconds()["client"] > 0.6)
            assert waits.seconds()["wire"] == wire
            await eventually(lambda: bool(client.hear()) and waits.seconds()["wire"] > wire)
        await serving


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


@on_both_loops
async def test_a_client_that_is_lost_while_it_is_written_to_is_no_fault() -> None:
    """The transport is closing already, and has not told the reason yet."""
    dataset = FakeDataset()
    async with Feeder({"train": dataset}) as feeder:
        dataset.made = lambda _: [one._transport.abort() for one in feeder.admission.guests]
        async with aclosing(await AsyncFeed.open(f"{await feeder.listen(HERE)}/train")) as feed:
            with pytest.raises(FeederLost):
                await feed.receive()
        await eventually(lambda: not feeder._tasks)
        assert dataset.taken == 1
        assert feeder.statistics.faults == {}


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


@on_both_loops
async def test_a_batch_on_its_way_counts_where_a_feeder_drains(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The transport has no room for another one yet, and the client has received this one."""
    caplog.set_level(logging.INFO)
    dataset = FakeDataset()
    feeder = Feeder({"train": dataset})
    dataset.made = lambda _: [one.pause_writing() for one in feeder.admission.guests]
    async with aclosing(await AsyncFeed.open(f"{await feeder.listen(HERE)}/train")) as feed:
        await feed.receive()
        draining = asyncio.create_task(feeder.drain(1000))
        with pytest.raises(FeederDraining):
            await feed.receive()
    await draining
    (gone,) = [one for one in caplog.records if one.getMessage().startswith("a client has gone")]
    assert vars(gone)["batches"] == 1
