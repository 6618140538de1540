from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import signal
import socket
import subprocess
import sys
from contextlib import AbstractContextManager, aclosing, closing, contextmanager
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from streamrec.config.daemon import DaemonSettings, ServedSettings
from streamrec.config.server_settings import ServerSettings
from streamrec.errors import ConfigError, FeederDraining, ObjectNotFound, StoreUnavailable
from streamrec.feeder.client.client import AsyncFeed, BlockingFeed
from streamrec.feeder.operate import daemon
from streamrec.feeder.operate.daemon import ENOUGH, raise_limit
from streamrec.feeder.server.server import Feeder
from tests.cancellation import cancel_in_every_turn
from tests.feeder.collector import collector
from tests.feeder.fake_dataset import FakeDataset, SlowlyClosedDataset
from tests.feeder.shards import write_shards
from tests.feeder.support import PATIENCE, eventually, on_both_loops, server_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from streamrec.config import DatasetSettings

    Start = Callable[[], AbstractContextManager[subprocess.Popen[str]]]


FREE = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "raised", "is_told"),
    [
        (1024, 65_536, 65_536, False),
        (1024, FREE, ENOUGH, False),
        (1024, 1 << 30, ENOUGH, False),
        (2 << 20, 1 << 30, None, False),
        (FREE, FREE, None, False),
        (1024, 2000, 2000, True),
        (2000, 2000, None, True),
    ],
)
def test_the_limit_is_raised_as_far_as_it_may_be(
    soft: int,
    hard: int,
    raised: int | None,
    is_told: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: asked.append(limits))
    raise_limit(server_settings())
    assert asked == ([] if raised is None else [(raised, hard)])
    assert ("the limit of open files is 2000" in caplog.text) == is_told
    assert bool(caplog.records) == is_told


def test_the_daemon_raises_it_before_it_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []

    async def serve(*_: object, **__: object) -> None:
        happened.append("serves")

    def note(_: ServerSettings) -> None:
        happened.append("raises")

    monkeypatch.setattr(daemon, "serve", serve)
    monkeypatch.setattr(daemon, "raise_limit", note)
    daemon.run(DaemonSettings(datasets={"train": ServedSettings(source="x")}))
    assert happened == ["raises", "serves"]


def test_what_stays_open_is_left_out_of_the_garbage_collector(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    happened: list[str] = []

    async def serve(*_: object, ready: Callable[[Any], None], **__: object) -> None:
        happened.append("opens")
        ready(None)

    monkeypatch.setattr(daemon, "serve", serve)
    monkeypatch.setattr(daemon, "raise_limit", lambda _: None)
    monkeypatch.setattr(gc, "freeze", lambda: happened.append("keeps"))
    settings = DaemonSettings(datasets={"train": ServedSettings(source="x")})
    daemon.run(settings, lambda _: happened.append("is ready"))
    assert happened == ["opens", "keeps", "is ready"]


def settings(path: Path, **server: Any) -> DaemonSettings:
    where = [f"unix://{path}/feeder.sock", "tcp://127.0.0.1:0"]
    server = {"listen": where, "status": "127.0.0.1:0", "grace": 10.0, **server}
    dataset = ServedSettings(source="double", batch_size=8)
    return DaemonSettings(server=ServerSettings(**server), datasets={"train": dataset})


class Running:
    """A daemon in the test's own loop, over doubles."""

    def __init__(self, settings: DaemonSettings, **double: Any) -> None:
        self.dataset = FakeDataset(**double)
        self._bound: asyncio.Future[daemon.Bound] = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(
            daemon.serve(settings, ready=self._bound.set_result, opener=self._open)
        )

    async def _open(self, _: DatasetSettings) -> FakeDataset:
        return self.dataset

    async def bound(self) -> daemon.Bound:
        return await self._bound


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@on_both_loops
async def test_a_signal_drains(number: signal.Signals, tmp_path: Path) -> None:
    running = Running(settings(tmp_path), hang_at=2)
    bound = await running.bound()
    assert bound.feeder[0] == f"unix://{tmp_path}/feeder.sock"
    async with (
        aclosing(await AsyncFeed.open(f"{bound.feeder[0]}#train")) as first,
        aclosing(await AsyncFeed.open(f"{bound.feeder[1]}/train")) as second,
    ):
        os.kill(os.getpid(), number)
        for feed in (first, second):
            with pytest.raises(FeederDraining) as caught:
                while True:
                    await feed.receive()
            assert caught.value.position == feed.position
    await running.task
    assert running.dataset.closed
    assert not (tmp_path / "feeder.sock").exists()


@on_both_loops
async def test_a_second_signal_cuts(tmp_path: Path) -> None:
    running = Running(settings(tmp_path, grace=1000.0), steps=50, size=500_000)
    bound = await running.bound()
    feed = await AsyncFeed.open(f"{bound.feeder[0]}#train")
    feed._connection._transport.pause_reading()
    await eventually(lambda: running.dataset.taken > 0)
    os.kill(os.getpid(), signal.SIGTERM)
    await eventually(lambda: running.dataset.open_runs == 0)
    os.kill(os.getpid(), signal.SIGTERM)
    await running.task
    await feed.aclose()


@on_both_loops
async def test_the_status_page(tmp_path: Path) -> None:
    running = Running(settings(tmp_path))
    bound = await running.bound()
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{bound.status}/readyz") as answer,
    ):
        assert answer.status == 200
    running.task.cancel()
    await asyncio.wait([running.task])
    assert running.dataset.closed


@on_both_loops
async def test_traces(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="streamrec[otel]")
    with collector() as (address, received):
        running = Running(settings(tmp_path, traces=address))
        where = (await running.bound()).feeder[0]
        async with aclosing(await AsyncFeed.open(f"{where}#train")) as feed:
            await feed.receive()
            os.kill(os.getpid(), signal.SIGTERM)
        await running.task
    assert [span.name for span in received] == ["first batch", "subscription"]


@on_both_loops
async def test_no_status_page(tmp_path: Path) -> None:
    running = Running(settings(tmp_path, status=None))
    assert (await running.bound()).status is None
    os.kill(os.getpid(), signal.SIGTERM)
    await running.task


@on_both_loops
async def test_a_dataset_whose_store_fails(tmp_path: Path) -> None:
    ready: asyncio.Future[daemon.Bound] = asyncio.get_running_loop().create_future()

    async def fail(_: DatasetSettings) -> FakeDataset:
        raise ObjectNotFound("no shard", url="s3://b/a*")

    task = asyncio.create_task(
        daemon.serve(settings(tmp_path), ready=ready.set_result, opener=fail)
    )
    bound = await ready
    assert bound.failing == {"train": "s3://b/a*: no shard"}
    with pytest.raises(StoreUnavailable, match="no shard") as caught:
        await AsyncFeed.open(f"{bound.feeder[0]}#train")
    assert caught.value.retryable
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{bound.status}/readyz") as answer,
    ):
        assert answer.status == 503
        assert "dataset 'train' fails: s3://b/a*: no shard" in await answer.text()
    os.kill(os.getpid(), signal.SIGTERM)
    await task


@on_both_loops
async def test_a_dataset_that_cannot_be_opened(tmp_path: Path) -> None:
    async def fail(_: DatasetSettings) -> FakeDataset:
        raise ConfigError("no such feature")

    with pytest.raises(ConfigError, match="no such feature"):
        await daemon.serve(settings(tmp_path), opener=fail)
    assert not (tmp_path / "feeder.sock").exists()


@pytest.mark.parametrize(
    ("server", "dataset", "message"),
    [
        ({}, {"shuffle": True, "shuffle_window": "1GiB"}, "window"),
        (
            {"memory_budget": "64MiB"},
            {"shuffle": True, "shuffle_window": "2GiB", "memory_budget": "4GiB"},
            "feeder's memory_budget is 64 MiB",
        ),
    ],
)
@on_both_loops
async def test_a_dataset_that_can_serve_nobody_ends_the_start(
    server: dict[str, Any], dataset: dict[str, Any], message: str, tmp_path: Path
) -> None:
    values = {"source": write_shards(tmp_path, shards=2, records=10), "batch_size": 4, "lanes": 2}
    made = ServedSettings(**{"memory_budget": "64MiB", **values, **dataset})
    start = settings(tmp_path, **server).model_copy(update={"datasets": {"train": made}})
    with pytest.raises(ConfigError, match=f"dataset 'train' cannot be served: .*{message}"):
        await daemon.serve(start)


@on_both_loops
async def test_the_service_manager_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"{tmp_path}/notify")
        manager.setblocking(False)
        monkeypatch.setattr(os, "environ", {**os.environ, "NOTIFY_SOCKET": f"{tmp_path}/notify"})
        running = Running(settings(tmp_path))
        await running.bound()
        os.kill(os.getpid(), signal.SIGTERM)
        await running.task
        told = []
        with contextlib.suppress(BlockingIOError):
            while True:
                told.append(manager.recv(4096).decode())
    assert told[0].startswith("STATUS=")
    assert [line for line in told if not line.startswith("STATUS=")] == ["READY=1", "STOPPING=1"]


@on_both_loops
async def test_a_signal_while_it_opens(tmp_path: Path) -> None:
    started = asyncio.Event()

    async def hang(_: DatasetSettings) -> FakeDataset:
        started.set()
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    task = asyncio.create_task(daemon.serve(settings(tmp_path), opener=hang))
    await started.wait()
    await eventually((tmp_path / "feeder.sock").exists)
    os.kill(os.getpid(), signal.SIGTERM)
    await task


@pytest.mark.parametrize("turns", [3, 30])
@on_both_loops
async def test_cancelled_in_every_turn_it_closes_all(turns: int, tmp_path: Path) -> None:
    datasets: list[SlowlyClosedDataset] = []

    async def opener(_: DatasetSettings) -> SlowlyClosedDataset:
        datasets.append(SlowlyClosedDataset())
        return datasets[-1]

    await cancel_in_every_turn(daemon.serve(settings(tmp_path), opener=opener), turns)
    assert all(dataset.closed for dataset in datasets)
    assert datasets
    assert not (tmp_path / "feeder.sock").exists()


@on_both_loops
async def test_an_address_that_is_taken(tmp_path: Path) -> None:
    dataset = FakeDataset()

    async def opener(_: DatasetSettings) -> FakeDataset:
        return dataset

    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match=f"cannot listen at {where}"):
            await daemon.serve(settings(tmp_path, listen=[where]), opener=opener)


@on_both_loops
async def test_a_token_beyond_loopback(tmp_path: Path) -> None:
    running = Running(settings(tmp_path, listen=["tcp://0.0.0.0:0"], token="secret"))
    with pytest.raises(ConfigError, match="plain TCP"):
        await running.task


@on_both_loops
async def test_beyond_loopback_without_a_word(tmp_path: Path) -> None:
    running = Running(settings(tmp_path, listen=["tcp://0.0.0.0:0"]))
    with pytest.raises(ConfigError, match="insecure = true"):
        await running.task


@on_both_loops
async def test_the_feeder_has_the_daemon_s_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made: list[Feeder] = []

    def noting(*arguments: Any, **named: Any) -> Feeder:
        made.append(Feeder(*arguments, **named))
        return made[0]

    monkeypatch.setattr(daemon, "Feeder", noting)
    given = settings(tmp_path, insecure=True, max_connections=11, memory_budget="96MiB")
    running = Running(given)
    await running.bound()
    running.task.cancel()
    await asyncio.wait([running.task])
    assert made[0].settings == given.server
    assert made[0].budget is not None
    assert made[0].budget.total == 96 << 20


PROGRAM = """
import sys
from streamrec.config import validate
from streamrec.config.daemon import DaemonSettings
from streamrec.config.server_settings import ServerSettings
from streamrec.feeder.operate import daemon
settings = {"server": {"listen": ["tcp://127.0.0.1:0"], "status": None},
            "datasets": {"train": {"source": sys.argv[1], "batch_size": 4}}}
ready = lambda bound: print(bound.feeder[0], flush=True)
daemon.run(validate(DaemonSettings, settings), ready)
"""


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Return a function that starts a daemon, which is killed after its ``with`` block."""
    source = write_shards(tmp_path, shards=3, records=20)

    @contextmanager
    def run() -> Iterator[subprocess.Popen[str]]:
        command = [sys.executable, "-c", PROGRAM, source]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                yield process
            finally:
                process.kill()

    return run


def test_as_a_process(start: Start) -> None:
    with start() as process:
        assert process.stdout is not None
        bound = process.stdout.readline().strip()
        with closing(BlockingFeed.open(f"{bound}/train")) as feed:
            numbers = [len(feed.receive()) for _ in range(15)]
        assert numbers == [4] * 15
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0


def test_a_killed_feeder_is_replaced_by_another(start: Start) -> None:
    state, records = None, []
    for taken in (4, 5, 6):
        with start() as process:
            assert process.stdout is not None
            bound = process.stdout.readline().strip()
            with closing(BlockingFeed.open(f"{bound}/train", position=state)) as feed:
                for _ in range(taken):
                    records += feed.receive().records.to_list()
                state = feed.position
    expected = [b"%d:%d" % (shard, record) for record in range(20) for shard in range(3)]
    assert records == expected
