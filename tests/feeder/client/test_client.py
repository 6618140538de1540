from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from contextlib import aclosing, closing
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import numpy as np
import pytest

from streamrec.errors import (
    ConfigError,
    CorruptRecord,
    FeederDraining,
    FeederLost,
    FeederRefused,
    OtherDataset,
    OtherOrder,
    Stalled,
    StateError,
)
from streamrec.feeder.access.address import Address
from streamrec.feeder.client.client import (
    AsyncFeed,
    BlockingFeed,
    _error_of,
    connect,
    connect_async,
    look_up,
    look_up_async,
)
from streamrec.feeder.engine.engine import Engine
from streamrec.feeder.server.server import Feeder
from streamrec.flow.channel import EndOfStream
from streamrec.pipeline.batch import payload
from streamrec.wire.messages import Credit, Statistics
from streamrec.wire.protocol import Connection, Role
from tests.feeder import fake_dataset
from tests.feeder.client.test_session import welcome
from tests.feeder.fake_dataset import FakeDataset
from tests.feeder.support import (
    LOOPS,
    PATIENCE,
    LoopFactory,
    Scripted,
    eventually,
    in_simulated_time,
    on_both_loops,
    served,
    server_settings,
    until,
)

if TYPE_CHECKING:
    from pathlib import Path

    from streamrec.pipeline.batch.batch import Batch


def test_a_ready_made_socket_is_taken_as_it_is() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert connect(ours) is ours


def test_no_feeder(tmp_path: Path) -> None:
    with pytest.raises(FeederLost, match="check that a feeder runs there"):
        connect(Address(path=f"{tmp_path}/none"))


@on_both_loops
async def test_no_feeder_for_asyncio(tmp_path: Path) -> None:
    with pytest.raises(FeederLost, match="check that a feeder runs there"):
        await connect_async(Address(path=f"{tmp_path}/none"), Connection(Role.CLIENT))


def test_a_failed_connection_says_what_to_check() -> None:
    place = Address.parse("tcp://a:1/b")
    error = _error_of(place, ConnectionRefusedError(111, "Connection refused"))
    assert str(error).startswith("cannot connect to tcp://a:1/b: Connection refused; check that")
    assert "TimeoutError" in str(_error_of(place, TimeoutError()))


def test_plain_code_leaves_tls_to_an_event_loop() -> None:
    with pytest.raises(ConfigError, match="a plain `for` over TLS needs an engine process"):
        connect(Address("127.0.0.1", 1, tls=True))


def test_a_name_is_every_address_that_it_stands_for(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = ["10.0.0.9", "10.0.0.1", "10.0.0.9"]

    def answer(host: str, port: int, **_: object) -> list[Any]:
        if host == "nowhere":
            raise socket.gaierror("unknown")
        return [(0, 0, 0, "", (number, port)) for number in numbers]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    places = Address.parse_all("tcp://feeders:7070,10.0.0.5:7070,nowhere:7071/train")
    found = look_up(places)
    # In the order of this dataset, whatever the order of the answers.
    assert [place.ip for place in found] == ["10.0.0.9", "10.0.0.1", None, None]
    numbers.reverse()
    assert look_up(places) == found
    assert [place.host for place in found] == ["feeders", "feeders", "10.0.0.5", "nowhere"]
    assert str(found[0]) == "tcp://feeders:7070/train (10.0.0.9)"
    assert asyncio.run(look_up_async(places)) == found
    unix = Address.parse_all("unix:///a#train")
    assert look_up(unix) == asyncio.run(look_up_async(unix)) == list(unix)


def test_each_dataset_has_an_order_of_feeders_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = [f"10.0.0.{number}" for number in range(8)]
    answers = [(0, 0, 0, "", (number, 7070)) for number in numbers]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answers)
    firsts = {look_up([Address("feeders", 7070, dataset=f"data-{n}")])[0].ip for n in range(64)}
    assert firsts == {*numbers}


def test_names_that_nobody_answers_for_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: released.wait(PATIENCE) and [])
    places = Address.parse_all("tcp://feeders:7070/train")

    async def looked_up() -> list[Address]:
        try:
            return await look_up_async(places, 0.01)
        finally:
            released.set()

    assert asyncio.run(looked_up()) == list(places)


def test_what_openssl_refuses_is_not_tried_again() -> None:
    place = Address("a", 1, dataset="b", tls=True)
    error = ssl.SSLError(1, "wrong version number")
    error.reason = "WRONG_VERSION_NUMBER"
    assert isinstance(_error_of(place, error), FeederRefused)
    assert "tls://a:1/b does not speak TLS" in str(_error_of(place, error))
    error.reason = "UNEXPECTED_EOF_WHILE_READING"
    assert isinstance(_error_of(place, error), FeederLost)


WHERES = ["tcp", "unix"]


def listening(kind: str, tmp_path: Path) -> str:
    return "tcp://127.0.0.1:0" if kind == "tcp" else f"unix://{tmp_path}/feeder.sock"


def dataset_at(bound: str, name: str = "train") -> str:
    return f"{bound}/{name}" if bound.startswith("tcp") else f"{bound}#{name}"


async def from_script(script: Scripted, sock: socket.socket, **options: Any) -> AsyncFeed:
    """Subscribe to a feeder that follows a script."""
    opening = asyncio.create_task(AsyncFeed.open(sock, **options))
    await script.answer()
    script.say(welcome())
    feed = await opening
    await script.answer()
    return feed


def check(batch: Batch, step: int) -> None:
    expected = fake_dataset.batch(step)
    for name in ("number", "values"):
        np.testing.assert_array_equal(batch[name], expected[name])
    assert batch["name"].to_list() == expected["name"].to_list()
    assert batch.next_position.step == step + 1


async def all_of(feed: AsyncFeed) -> list[Batch]:
    batches = []
    try:
        while True:
            batches.append(await feed.receive())
    except EndOfStream:
        return batches


def all_now(feed: BlockingFeed) -> list[Batch]:
    batches = []
    try:
        while True:
            batches.append(feed.receive())
    except EndOfStream:
        return batches


class TestAsyncFeed:
    @pytest.mark.parametrize("kind", WHERES)
    @on_both_loops
    async def test_receives_every_batch(self, kind: str, tmp_path: Path) -> None:
        async with Feeder({"train": FakeDataset()}) as feeder:
            bound = str(await feeder.listen(listening(kind, tmp_path)))
            async with aclosing(await AsyncFeed.open(dataset_at(bound))) as feed:
                assert feed.fingerprint == fake_dataset.fingerprint()
                assert feed.settings["shard_count"] == 2
                assert feed.position is None
                for step, batch in enumerate(await all_of(feed)):
                    check(batch, step)
                assert feed.position == fake_dataset.position(10).to_dict()
                with pytest.raises(EndOfStream):
                    await feed.receive()
                assert "step 10" in repr(feed)

    @on_both_loops
    async def test_goes_on_with_the_next_run_on_the_same_connection(self) -> None:
        async with Feeder({"train": FakeDataset(steps=3)}) as feeder:
            bound = str(await feeder.listen("tcp://127.0.0.1:0"))
            async with aclosing(await AsyncFeed.open(dataset_at(bound))) as feed:
                assert len(await all_of(feed)) == 3
                feed.subscribe()
                assert [batch.next_position.step for batch in await all_of(feed)] == [4, 5, 6]
                feed.subscribe(fake_dataset.position(1))
                assert [batch.next_position.step for batch in await all_of(feed)] == [2, 3]

    @on_both_loops
    async def test_over_a_ready_made_socket(self) -> None:
        ours, theirs = socket.socketpair()
        async with Feeder({"stream": FakeDataset()}) as feeder:
            serving = asyncio.create_task(feeder.serve_socket(theirs))
            async with aclosing(await AsyncFeed.open(ours)) as feed:
                assert len(await all_of(feed)) == 10
            await serving

    @on_both_loops
    async def test_a_cancelled_receive_loses_nothing(self) -> None:
        async with Feeder({"train": FakeDataset(steps=30)}) as feeder:
            bound = str(await feeder.listen("tcp://127.0.0.1:0"))
            async with aclosing(await AsyncFeed.open(dataset_at(bound))) as feed:
                steps: list[int] = []
                while len(steps) < 30:
                    task = asyncio.ensure_future(feed.receive())
                    for _ in range(len(steps) % 3):
                        await asyncio.sleep(0)
                    task.cancel()
                    await asyncio.wait([task])
                    batch = await feed.receive() if task.cancelled() else task.result()
                    steps.append(batch.next_position.step)
                assert steps == list(range(1, 31))

    @on_both_loops
    async def test_silence_is_loss(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            address = f"tcp://127.0.0.1:{listener.getsockname()[1]}/train"
            with pytest.raises(FeederLost, match="not even an answer"):
                await AsyncFeed.open(address, patience=0.02)


class TestAStalledFeeder:
    """One that answers pings and sends nothing of the stream."""

    @in_simulated_time
    async def test_for_asyncio(self) -> None:
        ours, theirs = socket.socketpair()
        clock = asyncio.get_running_loop().time
        async with Feeder({"stream": FakeDataset(hang_at=2)}) as feeder:
            serving = asyncio.create_task(feeder.serve_socket(theirs))
            async with aclosing(await AsyncFeed.open(ours, stall_timeout=1000)) as feed:
                for step in range(2):
                    await asyncio.sleep(5000)  # the trainer's own time is no stall
                    check(await feed.receive(), step)
                since = clock()
                for _ in range(2):
                    with pytest.raises(
                        Stalled, match=r"nothing of the stream for 1e\+03 s"
                    ) as caught:
                        await feed.receive()
                    assert caught.value.stage == "feeder"
                    assert caught.value.position == fake_dataset.position(2).to_dict()
                assert 1000 <= clock() - since < 1001
            await serving

    @in_simulated_time
    async def test_a_feeder_that_was_not_asked_is_not_lost(self) -> None:
        """The trainer was busy for longer than its patience, and then waits for a slow store."""
        ours, theirs = socket.socketpair()
        dataset = FakeDataset(hang_at=1)
        async with Feeder({"stream": dataset}) as feeder:
            serving = asyncio.create_task(feeder.serve_socket(theirs))
            async with aclosing(await AsyncFeed.open(ours, patience=60)) as feed:
                await feed.receive()
                await asyncio.sleep(100)
                receiving = asyncio.create_task(feed.receive())
                await asyncio.sleep(1000)
                assert not receiving.done()
                receiving.cancel()
            await serving

    @in_simulated_time
    async def test_before_welcome(self) -> None:
        ours, theirs = socket.socketpair()
        opening: asyncio.Future[FakeDataset] = asyncio.get_running_loop().create_future()
        async with Feeder({"stream": opening}) as feeder:
            serving = asyncio.create_task(feeder.serve_socket(theirs))
            with pytest.raises(Stalled) as caught:
                await AsyncFeed.open(ours, stall_timeout=1000, position=fake_dataset.position(3))
            assert caught.value.position == fake_dataset.position(3).to_dict()
            await serving

    @in_simulated_time
    async def test_counters_are_nothing_of_the_stream(self) -> None:
        ours, theirs = socket.socketpair()
        script = Scripted(theirs, Role.SERVER)

        async def count() -> None:
            while True:
                script.say(Statistics(b'{"seconds_waited": 1}'))
                await asyncio.sleep(20)

        with theirs:
            async with aclosing(await from_script(script, ours, stall_timeout=1000)) as feed:
                counting = asyncio.create_task(count())
                with pytest.raises(Stalled):
                    await feed.receive()
                counting.cancel()

    @in_simulated_time
    async def test_a_batch_on_its_way_is_something(self) -> None:
        ours, theirs = socket.socketpair()
        script = Scripted(theirs, Role.SERVER)
        with theirs:
            async with aclosing(await from_script(script, ours, stall_timeout=100)) as feed:
                receiving = asyncio.create_task(feed.receive())
                frame = b"".join(script.machine.send(payload.encode(fake_dataset.batch(0))))
                for start in range(0, len(frame), 200):
                    theirs.sendall(frame[start : start + 200])
                    await asyncio.sleep(20)
                check(await receiving, 0)
                assert len(frame) / 200 * 20 > 300

    def test_for_plain_code(self) -> None:
        with served({"train": FakeDataset(hang_at=2)}) as feeder:
            bound = feeder.listen("tcp://127.0.0.1:0")
            with closing(BlockingFeed.open(dataset_at(bound), stall_timeout=0.1)) as feed:
                for step in range(2):
                    check(feed.receive(), step)
                for _ in range(2):
                    with pytest.raises(
                        Stalled, match=r"nothing of the stream for 0\.1 s"
                    ) as caught:
                        feed.receive()
                    assert caught.value.stage == "feeder"
                    assert caught.value.position == fake_dataset.position(2).to_dict()

    def test_before_welcome_for_plain_code(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs, pytest.raises(Stalled):
            BlockingFeed.open(ours, stall_timeout=0.02)


class TestBlockingFeed:
    @pytest.mark.parametrize("loop_factory", LOOPS)
    @pytest.mark.parametrize("kind", WHERES)
    def test_receives_every_batch(
        self, kind: str, loop_factory: LoopFactory, tmp_path: Path
    ) -> None:
        with served({"train": FakeDataset()}, loop_factory) as feeder:
            bound = feeder.listen(listening(kind, tmp_path))
            with closing(BlockingFeed.open(dataset_at(bound))) as feed:
                for step, batch in enumerate(all_now(feed)):
                    check(batch, step)
                assert feed.position == fake_dataset.position(10).to_dict()
                feed.subscribe()
                check(feed.receive(), 10)

    @pytest.mark.parametrize("loop_factory", LOOPS)
    def test_over_a_socket_pair_with_large_batches(self, loop_factory: LoopFactory) -> None:
        with served({"stream": FakeDataset(steps=5, size=100_000)}, loop_factory) as feeder:
            ours, serving = feeder.connect()
            with closing(BlockingFeed.open(ours, credit_bytes=1)) as feed:
                for step, batch in enumerate(all_now(feed)):
                    values = batch["values"]
                    assert isinstance(values, np.ndarray)
                    assert values.ctypes.data % 64 == 0
                    assert values.flags.writeable
                    np.testing.assert_array_equal(
                        values, fake_dataset.batch(step, size=100_000)["values"]
                    )
            serving.result(100)

    @pytest.mark.parametrize(("kind", "credit"), [("tcp", 64 << 20), ("unix", 16 << 20)])
    def test_less_is_on_its_way_on_one_machine(
        self, kind: str, credit: int, tmp_path: Path
    ) -> None:
        with served({"train": FakeDataset()}) as feeder:
            address = dataset_at(feeder.listen(listening(kind, tmp_path)))
            with closing(BlockingFeed.call(address)) as feed:
                assert feed.request()[-1] == Credit(credit)
                assert feed.shared_bytes == 256 << 20

    def test_resumes_from_a_position(self) -> None:
        with served({"train": FakeDataset()}) as feeder:
            bound = feeder.listen("tcp://127.0.0.1:0")
            for step in range(11):
                state = fake_dataset.position(step).to_dict()
                with closing(BlockingFeed.open(dataset_at(bound), position=state)) as feed:
                    numbers = [batch.next_position.step for batch in all_now(feed)]
                    assert numbers == list(range(step + 1, 21 if step == 10 else 11))

    def test_begins_where_it_is_told_after_the_call(self) -> None:
        with served({"train": FakeDataset()}) as feeder:
            bound = feeder.listen("tcp://127.0.0.1:0")
            with closing(BlockingFeed.call(dataset_at(bound))) as feed:
                until(lambda: feed.answers)
                feed.begin(fake_dataset.position(7))
                assert [batch.next_position.step for batch in all_now(feed)] == [8, 9, 10]

    def test_a_call_that_nobody_answers(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs, closing(BlockingFeed.call(ours)) as feed:
            assert not feed.answers
            theirs.close()
            assert feed.answers
            with pytest.raises(FeederLost):
                feed.begin()

    def test_silence_is_loss(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs, pytest.raises(FeederLost, match="not even an answer"):
            BlockingFeed.open(ours, patience=0.02)

    def test_a_diagnosis_replaces_the_loss(self) -> None:
        ours, theirs = socket.socketpair()
        theirs.close()
        engine = Mock(spec=Engine)
        engine.diagnosis.return_value = "it was the cat"
        with pytest.raises(FeederLost, match="it was the cat"):
            BlockingFeed.open(ours, engine=engine)
        engine.close.assert_called_with(at_once=True)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"fingerprint": fake_dataset.fingerprint("other")}, OtherDataset, "other than"),
        ({"fingerprint": fake_dataset.fingerprint(seed=3)}, OtherOrder, "seed was 3 and is 0"),
        ({"batch_size": 4, "fingerprint": fake_dataset.fingerprint()}, OtherOrder, "global_batch"),
        (
            {"position": fake_dataset.position(3, rank=1, world_size=2)},
            StateError,
            "global_batch|rank",
        ),
        ({"position": {"version": 99}}, StateError, "upgrade"),
        ({"position": {}}, StateError, "version"),
    ],
)
def test_refusals(options: dict[str, object], error: type[Exception], words: str) -> None:
    with served({"train": FakeDataset()}) as feeder:
        bound = feeder.listen("tcp://127.0.0.1:0")
        with pytest.raises(error, match=words):
            BlockingFeed.open(dataset_at(bound), **options).receive()


class TestEnds:
    @pytest.mark.parametrize("when", [0, 1, 5])
    def test_a_fault_comes_after_what_was_sent(self, when: int) -> None:
        error = CorruptRecord("the CRC is wrong", url="s3://b/a", offset=77, record=3)
        with served({"train": FakeDataset(fail_at=when, error=error)}) as feeder:
            with closing(BlockingFeed.open(dataset_at(feeder.listen("tcp://127.0.0.1:0")))) as feed:
                for step in range(when):
                    check(feed.receive(), step)
                with pytest.raises(CorruptRecord, match="CRC is wrong"):
                    feed.receive()
                with pytest.raises(CorruptRecord, match="CRC is wrong") as caught:
                    feed.receive()
                assert caught.value.fields() == {"url": "s3://b/a", "offset": 77, "record": 3}
            assert feeder.feeder.statistics.faults == {"CorruptRecord": 1}

    @on_both_loops
    async def test_a_drain_carries_the_position(self) -> None:
        feeder = Feeder({"train": FakeDataset(hang_at=4)})
        bound = str(await feeder.listen("tcp://127.0.0.1:0"))
        async with aclosing(await AsyncFeed.open(dataset_at(bound))) as feed:
            for _ in range(4):
                await feed.receive()
            draining = asyncio.create_task(feeder.drain(10))
            with pytest.raises(FeederDraining) as caught:
                await feed.receive()
            assert caught.value.position == fake_dataset.position(4).to_dict()
            await draining

    @on_both_loops
    async def test_a_cut_delivers_what_arrived_first(self) -> None:
        feeder = Feeder({"train": FakeDataset(hang_at=4)})
        bound = str(await feeder.listen("tcp://127.0.0.1:0"))
        async with aclosing(await AsyncFeed.open(dataset_at(bound))) as feed:
            check(await feed.receive(), 0)
            await eventually(lambda: feed._connection.waiting == 3)
            await feeder.aclose()
            await eventually(lambda: feed._connection.broken is not None)
            for step in range(1, 4):
                check(await feed.receive(), step)
            with pytest.raises(FeederLost) as caught:
                await feed.receive()
            assert caught.value.position == fake_dataset.position(4).to_dict()

    def test_not_a_feeder(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            theirs.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            with pytest.raises(Exception, match="is this the address of a streamrec feeder"):
                BlockingFeed.open(ours)


class TestTokens:
    def test_are_compared(self) -> None:
        with served({"train": FakeDataset()}, settings=server_settings(token="secret")) as feeder:
            address = dataset_at(feeder.listen("tcp://127.0.0.1:0"))
            for token, words in ((None, "is needed"), ("secrets", "is wrong")):
                with pytest.raises(FeederRefused, match=words):
                    BlockingFeed.open(address, token=token)
            with closing(BlockingFeed.open(address, token="secret")) as feed:
                check(feed.receive(), 0)

    def test_are_not_sent_in_plain_tcp(self) -> None:
        with pytest.raises(ConfigError, match="plain TCP to feeder"):
            BlockingFeed.open("tcp://feeder:7070/train", token="secret")
