from __future__ import annotations

import asyncio
import socket
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest

from streamrec.errors import ConfigError, FeederDraining, FeederLost, StoreUnavailable
from streamrec.feeder.client.client import AsyncFeed
from streamrec.feeder.server.listener import Listener
from streamrec.feeder.server.server import Feeder
from streamrec.feeder.server.service import SharedBudget
from streamrec.flow.channel import EndOfStream
from streamrec.wire.frame import frame_size
from tests.feeder import fake_dataset
from tests.feeder.fake_dataset import FakeDataset
from tests.feeder.support import eventually, on_both_loops, server_settings
from tests.support import asynchronous

if TYPE_CHECKING:
    from pathlib import Path


@asynchronous
async def test_the_state_of_each_dataset() -> None:
    loop = asyncio.get_running_loop()
    opening, failed, broken, opened = (loop.create_future() for _ in range(4))
    failed.set_exception(StoreUnavailable("the store is down"))
    broken.set_exception(RuntimeError("token=secret"))
    opened.set_result(FakeDataset())
    datasets: dict[str, Any] = {
        "a": opening,
        "b": failed,
        "c": broken,
        "d": opened,
        "e": FakeDataset(),
    }
    shown = Feeder(datasets).snapshot()["datasets"]
    assert {name: one["state"] for name, one in shown.items()} == {
        "a": "opening",
        "b": "failed",
        "c": "failed",
        "d": "open",
        "e": "open",
    }
    assert "the store is down" in shown["b"]["problem"]
    assert shown["c"]["problem"] == "RuntimeError"
    opening.cancel()


@pytest.mark.both_kernels
def test_build() -> None:
    build = Feeder({}).snapshot()["build"]
    assert build.keys() == {"version", "kernel", "protocol", "python"}
    assert build["kernel"] in ("native", "python")


HERE = "tcp://127.0.0.1:0"


async def opened(feeder: Feeder, **options: Any) -> AsyncFeed:
    return await AsyncFeed.open(f"{await feeder.listen(HERE)}/train", **options)


def where_is(directory: Path) -> list[Path]:
    return list(directory.iterdir())


class TestCredit:
    @on_both_loops
    async def test_holds_the_feeder(self) -> None:
        dataset = FakeDataset(steps=100, size=1000)
        size = frame_size(0, sum(view.nbytes for view in _payload(size=1000)))
        async with Feeder({"train": dataset}) as feeder:
            async with aclosing(await opened(feeder, credit_bytes=3 * size)) as feed:
                most = 0
                for _ in range(100):
                    await feed.receive()
                    for _ in range(5):
                        await asyncio.sleep(0)
                    most = max(most, feed._connection.waiting)
                assert most <= 4
                assert feed._connection.machine.credit <= 3 * size
            await eventually(lambda: dataset.open_runs == 0)
            assert feeder.snapshot()["datasets"]["train"]["waits"]["client"] > 0

    @on_both_loops
    async def test_one_byte_is_enough_for_one_batch_at_a_time(self) -> None:
        dataset = FakeDataset(steps=5)
        async with (
            Feeder({"train": dataset}) as feeder,
            aclosing(await opened(feeder, credit_bytes=1)) as feed,
        ):
            for step in range(5):
                await eventually(lambda: feed._connection.waiting == 1)
                assert dataset.taken == step + 1
                await feed.receive()


def _payload(size: int) -> tuple[memoryview, ...]:
    from streamrec.pipeline.batch import payload

    return payload.encode(fake_dataset.batch(0, size=size)).payload


class TestLeaving:
    @pytest.mark.parametrize("hang_at", [0, 3])
    @on_both_loops
    async def test_a_client_that_goes_ends_its_run(self, hang_at: int) -> None:
        dataset = FakeDataset(hang_at=hang_at)
        async with Feeder({"train": dataset}) as feeder:
            feed = await opened(feeder)
            for _ in range(hang_at):
                await feed.receive()
            await eventually(lambda: dataset.open_runs == 1)
            await feed.aclose()
            await eventually(lambda: dataset.open_runs == 0)
            await eventually(lambda: feeder.admission.clients == 0)
            assert not feeder.statistics.faults

    @on_both_loops
    async def test_a_client_killed_amid_a_batch(self) -> None:
        dataset = FakeDataset(steps=50, size=500_000)
        async with Feeder({"train": dataset}) as feeder:
            feed = await opened(feeder)
            feed._connection._transport.pause_reading()
            await eventually(lambda: dataset.taken > 0)
            await feed.aclose()
            await eventually(lambda: feeder.admission.clients == 0)
            assert dataset.open_runs == 0

    @pytest.mark.parametrize("turns", range(0, 60, 3))
    @on_both_loops
    async def test_cancelled_anywhere(self, turns: int) -> None:
        dataset = FakeDataset(steps=10)

        async def client(address: str) -> None:
            async with aclosing(await AsyncFeed.open(address)) as feed:
                while True:
                    await feed.receive()

        async with Feeder({"train": dataset}) as feeder:
            address = f"{await feeder.listen(HERE)}/train"
            task = asyncio.create_task(client(address))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            other = asyncio.create_task(client(address))
            for _ in range(turns):
                await asyncio.sleep(0)
        assert dataset.open_runs == 0
        await asyncio.wait([other])
        assert isinstance(other.exception(), FeederLost | EndOfStream)


class TestDrain:
    @on_both_loops
    async def test_a_slow_client_gets_the_batch_that_is_being_sent(self) -> None:
        dataset = FakeDataset(steps=50, size=500_000)
        feeder = Feeder({"train": dataset})
        feed = await opened(feeder, credit_bytes=1 << 30)
        transport = feed._connection._transport
        assert transport is not None
        transport.pause_reading()
        await eventually(lambda: dataset.taken > 0)
        draining = asyncio.create_task(feeder.drain(20))
        await eventually(lambda: dataset.open_runs == 0)
        transport.resume_reading()
        received = 0
        with pytest.raises(FeederDraining, match="go on elsewhere"):
            while True:
                await feed.receive()
                received += 1
        assert received == dataset.taken
        await draining
        await feed.aclose()
        assert "draining" in repr(feeder)

    @on_both_loops
    async def test_cuts_after_the_grace(self) -> None:
        dataset = FakeDataset(steps=50, size=500_000)
        feeder = Feeder({"train": dataset})
        feed = await opened(feeder)
        feed._connection._transport.pause_reading()
        await eventually(lambda: dataset.taken > 0)
        await feeder.drain(0.01)
        assert feeder.admission.clients == 0
        await feed.aclose()

    @on_both_loops
    async def test_accepts_nobody(self) -> None:
        feeder = Feeder({"train": FakeDataset()})
        address = f"{await feeder.listen(HERE)}/train"
        await feeder.drain(1)
        assert feeder.obstacle
        with pytest.raises(FeederLost):
            await AsyncFeed.open(address)
        ours, theirs = socket.socketpair()
        with ours:
            await feeder.serve_socket(theirs)

    @on_both_loops
    async def test_before_the_subscription(self) -> None:
        opening: asyncio.Future[FakeDataset] = asyncio.get_running_loop().create_future()
        feeder = Feeder({"train": opening})
        client = asyncio.create_task(opened(feeder))
        await eventually(lambda: feeder.admission.clients == 1)
        await asyncio.wait([client], timeout=0.01)
        draining = asyncio.create_task(feeder.drain(20))
        with pytest.raises((FeederDraining, FeederLost)):
            await client
        await draining


class TestObstacle:
    """The reasons why a feeder is not ready, and their texts."""

    @on_both_loops
    async def test_as_many_clients_as_may_be(self) -> None:
        async with Feeder(
            {"train": FakeDataset(hang_at=0)}, settings=server_settings(max_connections=1)
        ) as feeder:
            address = f"{await feeder.listen(HERE)}/train"
            async with aclosing(await AsyncFeed.open(address)):
                assert "serves 1 clients already (max_connections)" in str(feeder.obstacle)
            await eventually(lambda: feeder.obstacle is None)

    @on_both_loops
    async def test_no_file_for_another_connection(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with Feeder({"train": FakeDataset()}) as feeder:
            await feeder.listen(HERE)
            assert feeder.obstacle is None
            monkeypatch.setattr(Listener, "lacks_files", True)
            assert "raise the limit of open files" in str(feeder.obstacle)


class TestListening:
    @on_both_loops
    async def test_a_unix_socket_leaves_no_file(self, tmp_path: Path) -> None:
        where = f"unix://{tmp_path}/feeder.sock"
        async with Feeder({"train": FakeDataset()}) as feeder:
            assert str(await feeder.listen(where)) == where
            with pytest.raises(ConfigError, match="in use"):
                await feeder.listen(where)
        assert where_is(tmp_path) == []

    @on_both_loops
    async def test_a_file_left_by_a_killed_feeder(self, tmp_path: Path) -> None:
        path = tmp_path / "feeder.sock"
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(path))
        async with Feeder({"train": FakeDataset()}) as feeder:
            await feeder.listen(f"unix://{path}")
            async with aclosing(await AsyncFeed.open(f"unix://{path}#train")) as feed:
                await feed.receive()

    @on_both_loops
    async def test_a_file_that_is_no_socket_is_left_alone(self, tmp_path: Path) -> None:
        path = tmp_path / "precious"
        path.write_text("data")
        async with Feeder({"train": FakeDataset()}) as feeder:
            with pytest.raises(ConfigError, match="cannot listen"):
                await feeder.listen(f"unix://{path}")
        assert path.read_text() == "data"

    @on_both_loops
    async def test_no_token_over_the_network(self) -> None:
        async with Feeder(
            {"train": FakeDataset()}, server_settings(token="secret", insecure=True)
        ) as feeder:
            with pytest.raises(ConfigError, match="their token in plain TCP"):
                await feeder.listen("tcp://0.0.0.0:0")

    @pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "192.0.2.1", "feeder.example"])
    @on_both_loops
    async def test_not_beyond_this_machine_without_a_word(self, host: str) -> None:
        async with Feeder({"train": FakeDataset()}) as feeder:
            with pytest.raises(ConfigError, match=r"set insecure = true in \[server\]"):
                await feeder.listen(f"tcp://{host}:0")

    @on_both_loops
    async def test_beyond_this_machine_where_that_is_meant(self) -> None:
        async with Feeder({"train": FakeDataset()}, server_settings(insecure=True)) as feeder:
            where = await feeder.listen("tcp://0.0.0.0:0")
            async with aclosing(
                await AsyncFeed.open(f"tcp://127.0.0.1:{where.port}/train")
            ) as feed:
                await feed.receive()

    @on_both_loops
    async def test_nowhere(self) -> None:
        async with Feeder({"train": FakeDataset()}, server_settings(insecure=True)) as feeder:
            with pytest.raises(ConfigError, match=r"cannot listen at tcp://192\.0\.2\.1:1"):
                await feeder.listen("tcp://192.0.2.1:1")


@on_both_loops
async def test_statistics() -> None:
    async with Feeder({"train": FakeDataset()}) as feeder, aclosing(await opened(feeder)) as feed:
        for _ in range(10):
            await feed.receive()
        await eventually(lambda: feeder.statistics.batches["train"] == 10)
        now = feeder.statistics
        assert (feeder.admission.clients, feeder.admission.handshakes) == (1, 0)
    assert now.connections_total == 1
    assert now.records == {"train": 80}
    assert now.bytes["train"] > 80 * 400
    assert repr(feeder) == "<Feeder draining train: 0 clients>"


class TestMemory:
    @on_both_loops
    async def test_sessions_share_a_budget_and_give_it_back(self) -> None:
        dataset = FakeDataset(steps=2, hang_at=1)
        budget = SharedBudget(20 << 20)
        async with Feeder({"train": dataset}, budget=budget) as feeder:
            where = f"{await feeder.listen(HERE)}/train"
            feeds = [await AsyncFeed.open(where) for _ in range(2)]
            for feed in feeds:
                await feed.receive()
            assert dataset.budgets == [8 << 20, 8 << 20]
            with pytest.raises(FeederDraining, match="memory_budget of 20 MiB to 2 sessions"):
                async with aclosing(await AsyncFeed.open(where)) as third:
                    await third.receive()
            assert feeder.statistics.dropped["full"] == 1
            assert feeder.obstacle == "2 sessions have the whole memory_budget"
            for feed in feeds:
                await feed.aclose()
            await eventually(lambda: budget.sessions == 0)
            assert feeder.obstacle is None
        assert budget.lent == 0

    @on_both_loops
    async def test_a_session_keeps_its_memory_over_its_runs(self) -> None:
        dataset, budget = FakeDataset(steps=2), SharedBudget(64 << 20)
        async with Feeder({"train": dataset}, budget=budget) as feeder:
            async with aclosing(await opened(feeder)) as feed:
                for _ in range(2):
                    await feed.receive()
                with pytest.raises(EndOfStream):
                    await feed.receive()
                assert budget.sessions == 1
                feed.subscribe()
                await feed.receive()
            await eventually(lambda: budget.sessions == 0)
        assert dataset.budgets == [16 << 20, 16 << 20]

    @on_both_loops
    async def test_a_budget_that_no_session_fits_in(self) -> None:
        async with Feeder({"train": FakeDataset()}, budget=SharedBudget(1 << 20)) as feeder:
            with pytest.raises(ConfigError, match="raise memory_budget in the feeder's"):
                async with aclosing(await opened(feeder)) as feed:
                    await feed.receive()
