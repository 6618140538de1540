"""The supervisor, with real workers: each of them costs a second, so the tests are few."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from streamrec.config import DatasetSettings, validate
from streamrec.config.daemon import DaemonSettings, ServedSettings
from streamrec.config.server_settings import ServerSettings
from streamrec.errors import (
    ConfigError,
    FeederDraining,
    FeederLost,
    FeederRefused,
    StoreUnavailable,
)
from streamrec.feeder.access.access import Access
from streamrec.feeder.client.client import AsyncFeed
from streamrec.feeder.operate.signals import reload
from streamrec.feeder.server.datasets import ServedDatasets
from streamrec.feeder.server.server import Feeder
from streamrec.feeder.server.service import SharedBudget
from streamrec.feeder.workers import supervisor as supervisor_module
from streamrec.feeder.workers import worker as worker_module
from streamrec.feeder.workers.supervisor import Supervisor, _divide, _plain
from streamrec.pipeline.dataset import Dataset
from streamrec.wire.error_fields import to_fields
from tests.feeder.fake_dataset import FakeDataset
from tests.feeder.shards import write_shards
from tests.feeder.support import PATIENCE, eventually
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from streamrec.pipeline.served import Served

HERE = "tcp://127.0.0.1:0"
MIB = 1 << 20
SHARDS, RECORDS = 3, 2000
ROW_BYTES = 1000
"""More than what is on its way to a client."""


def settings(source: str, *names: str, **server: Any) -> DaemonSettings:
    datasets = {name: ServedSettings(source=source, batch_size=8) for name in names or ("train",)}
    return DaemonSettings(server=ServerSettings(**server), datasets=datasets)


class Fleet:
    """A supervisor with two workers."""

    def __init__(self, supervisor: Supervisor, datasets: ServedDatasets, where: str) -> None:
        self.supervisor = supervisor
        self.datasets = datasets
        self.where = where

    async def connect(self, name: str = "train", **options: Any) -> AsyncFeed:
        return await AsyncFeed.open(f"{self.where}/{name}", credit_bytes=1 << 16, **options)

    @property
    def sent(self) -> list[int]:
        """The batches that each worker has told of."""
        told = [worker.snapshot or {"datasets": {}} for worker in self.supervisor.workers]
        return [
            one["datasets"]["train"]["sent"]["batches"] if one["datasets"] else 0 for one in told
        ]

    @property
    def has_told_all(self) -> bool:
        """True when the snapshots have what the test has done until it looks at them."""
        shown = self.supervisor.snapshot()
        readers = [each["worker"] for each in shown["subscriptions"]]
        return readers == [1, 1, 2, 2] and min(self.sent) >= 6 and shown["dropped"]["full"] > 0


@asynccontextmanager
async def fleet(start: DaemonSettings, budget: int = 64 * MIB) -> AsyncIterator[Fleet]:
    async with (
        ServedDatasets(start.datasets, Dataset.open) as datasets,
        Supervisor(
            datasets, start.server, 2, SharedBudget(budget), Access(start.server)
        ) as supervisor,
    ):
        where = str(await supervisor.listen(HERE))
        assert supervisor.obstacle == "no worker process runs"
        await datasets.wait_until_tried()
        await supervisor.all_ready()
        yield Fleet(supervisor, datasets, where)


async def taken(feed: AsyncFeed, batches: int) -> list[bytes]:
    received = [await feed.receive() for _ in range(batches)]
    return [record.rstrip(b"\0") for batch in received for record in batch.records.to_list()]


async def read_on(feeds: list[AsyncFeed], records: list[list[bytes]]) -> list[AsyncFeed]:
    """Read from all for a while; return those whose connection has ended."""
    lost = []
    for feed, known in zip(feeds, records, strict=True):
        try:
            for _ in range(40):
                known += await taken(feed, 1)
        except FeederLost as error:
            assert error.retryable
            lost.append(feed)
    return lost


@asynchronous
async def test_workers_are_one_daemon(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "GOODBYE", PATIENCE)  # on a busy machine they end late
    caplog.set_level(logging.INFO, logger="streamrec.feeder")
    source = write_shards(tmp_path, shards=SHARDS, records=RECORDS, size=ROW_BYTES)
    limits = {"max_connections": 4, "max_handshakes": 3}
    async with fleet(settings(source, **limits)) as daemon:
        supervisor = daemon.supervisor
        assert supervisor.obstacle is None
        assert supervisor.snapshot().keys() == Feeder({}).snapshot().keys()

        feeds = [await daemon.connect() for _ in range(4)]
        records = [await taken(feed, 3) for feed in feeds]
        assert records[1:] == records[:3], "all workers have the same order"
        assert [len(worker.connections) for worker in supervisor.workers] == [2, 2]
        with pytest.raises(FeederDraining, match="serves 4 clients already"):
            await daemon.connect()
        assert "max_connections" in str(supervisor.obstacle)
        await crowd(daemon)
        assert supervisor.budget is not None
        assert supervisor.budget.sessions == 4
        await eventually(lambda: daemon.has_told_all)
        check_shown(daemon)

        killed, other = supervisor.workers
        killed.process.kill()
        lost = await read_on(feeds, records)
        assert len(lost) == 2, "the clients of the other notice nothing"
        await eventually(lambda: len(supervisor.workers) == 2 and supervisor.workers[-1].is_ready)
        assert supervisor.workers[0] is other
        assert supervisor.budget.sessions == supervisor.admission.clients == 2
        assert supervisor.snapshot()["workers_lost"] == 1
        assert f"a worker is replaced: the worker process {killed.process.pid}" in caplog.text
        shown = supervisor.snapshot()
        assert shown["datasets"]["train"]["sent"]["batches"] >= 12, "what it counted stays"

        assert await new_token(daemon, source) == [
            "the tokens have changed, for new clients",
            "the dataset 'more' is added, and being opened",
        ]
        with pytest.raises(FeederRefused, match="a token is needed"):
            while True:  # until the workers have read what they were told
                await (await daemon.connect()).aclose()
        for feed in lost:
            again = await daemon.connect(position=feed.position, token="new")
            records[feeds.index(feed)] += await taken(again, 3)
            feeds[feeds.index(feed)] = again
        expected = [b"%d:%d" % (i % SHARDS, i // SHARDS) for i in range(SHARDS * RECORDS)]
        assert all(known == expected[: len(known)] for known in records)
        await feeds.pop().aclose()
        await eventually(lambda: supervisor.obstacle is None)
        feeds.append(await daemon.connect("more", token="new"))

        await drained(supervisor, feeds)


async def crowd(daemon: Fleet) -> None:
    """Come with more silent connections than there may be."""
    host, port = daemon.where.removeprefix("tcp://").split(":")
    silent = [await asyncio.open_connection(host, int(port)) for _ in range(4)]
    assert await silent[0][0].read() == b"", "of too many the oldest is cut"
    assert daemon.supervisor.admission.handshakes == 3
    assert daemon.supervisor.snapshot()["dropped"]["crowd"] in (1, 2), (
        "the refused one may have gone"
    )
    for _, writer in silent:
        writer.close()


def check_shown(daemon: Fleet) -> None:
    shown = daemon.supervisor.snapshot()
    assert shown["datasets"]["train"]["sent"]["batches"] == sum(daemon.sent) >= 12
    assert shown["datasets"]["train"]["state"] == "open"
    assert shown["datasets"]["train"]["shards"] == SHARDS
    assert shown["dropped"]["full"] == 1
    assert shown["connections"] == 4
    assert shown["workers"] == 2
    assert shown["budget"]["limit"] == 64 * MIB
    assert 4 * 8 * MIB <= shown["budget"]["lent"] <= 64 * MIB


async def new_token(daemon: Fleet, source: str) -> list[str]:
    start = daemon.supervisor.settings
    changed = settings(source, "train", "more", **start.model_dump() | {"token": "new"})
    done = await reload(daemon.supervisor, daemon.datasets, changed)
    daemon.supervisor.pass_on("reload")
    return done


async def drained(supervisor: Supervisor, feeds: list[AsyncFeed]) -> None:
    """Let all go elsewhere."""
    processes = [worker.process for worker in supervisor.workers]
    draining = asyncio.create_task(supervisor.drain(20))
    for feed in feeds:
        with pytest.raises(FeederDraining, match="go on elsewhere"):
            while True:
                await feed.receive()
        await feed.aclose()
    assert await draining == 0
    assert [process.returncode for process in processes] == [0, 0]
    assert supervisor.obstacle == "the feeder is draining"
    assert supervisor.snapshot()["workers"] == 0
    assert supervisor.budget is not None
    assert supervisor.budget.lent == supervisor.admission.clients == 0


@asynchronous
async def test_workers_that_do_not_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "child_command", lambda *_: ["/bin/sh", "-c", "exit 3"])
    with pytest.raises(FeederLost, match=r"worker process \d+ ended with exit code 3"):
        async with fleet(settings(write_shards(tmp_path, shards=1, records=9))):
            pass


@asynchronous
async def test_the_end_before_the_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "child_command", lambda *_: ["/bin/sleep", "1000"])
    start = settings(write_shards(tmp_path, shards=1, records=9))
    async with (
        ServedDatasets(start.datasets, Dataset.open) as datasets,
        Supervisor(
            datasets, start.server, 2, SharedBudget(MIB), Access(start.server)
        ) as supervisor,
    ):
        await eventually(lambda: len(supervisor.workers) == 2)
        processes = [worker.process for worker in supervisor.workers]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0):
                await supervisor.drain(1000)
    assert [process.returncode for process in processes] == [-signal.SIGKILL] * 2


@asynchronous
async def test_a_worker_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(worker_module, "child_command", lambda *_: ["/bin/sleep", "1000"])
    monkeypatch.setattr(supervisor_module, "SILENCE", 0.01)
    monkeypatch.setattr(supervisor_module, "GOODBYE", 0.01)
    with pytest.raises(FeederLost, match="was ended by SIGKILL"):
        async with fleet(settings(write_shards(tmp_path, shards=1, records=9))):
            pass
    assert "a worker has said nothing for 0.02 s" in caplog.text


@asynchronous
async def test_a_dataset_has_one_state(monkeypatch: pytest.MonkeyPatch) -> None:
    is_down = False

    async def opener(dataset: DatasetSettings) -> Served:
        if is_down:
            raise StoreUnavailable("no route")
        return FakeDataset()

    monkeypatch.setattr(worker_module, "child_command", lambda *_: ["/bin/sleep", "1000"])
    start = settings("x", token="secret")
    assert validate(ServerSettings, _plain(start.server)) == start.server
    async with (
        ServedDatasets(start.datasets, opener) as datasets,
        Supervisor(
            datasets, start.server, 1, SharedBudget(64 * MIB), Access(start.server)
        ) as supervisor,
    ):
        await datasets.wait_until_tried()
        await eventually(lambda: len(supervisor.workers) == 1)
        (worker,) = supervisor.workers
        supervisor._note(worker, {"ready": True})
        assert supervisor.obstacle is None
        order = await supervisor._order("train", is_known=False)
        assert isinstance(order, dict)
        assert [listed[0] for listed in order["objects"]] == list(FakeDataset().shards)
        assert await supervisor._order("train", is_known=True) is None
        assert isinstance(await supervisor._order("none", is_known=False), FeederRefused)
        too_much = await supervisor._lend(worker, {"lend": 99 * MIB, "least": 65 * MIB})
        assert isinstance(too_much, ConfigError)
        is_down = True
        supervisor._note(worker, {"failed": "train", "error": to_fields(StoreUnavailable("cut"))})
        assert supervisor.obstacle == "the store of the dataset 'train' fails: cut"
        assert supervisor.snapshot()["datasets"]["train"]["state"] == "failing"
        assert isinstance(await supervisor._order("train", is_known=True), StoreUnavailable)


@asynchronous
async def test_a_worker_is_replaced_whatever_it_ends_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start = settings(write_shards(tmp_path, shards=1, records=9))
    async with ServedDatasets(start.datasets, Dataset.open) as datasets:
        supervisor = Supervisor(datasets, start.server, 2, SharedBudget(MIB), Access(start.server))
        begun = 0

        async def run(_: int) -> None:
            nonlocal begun
            begun += 1
            raise ValueError("a defect")

        monkeypatch.setattr(supervisor, "_run_worker", run)
        async with supervisor:
            with pytest.raises(ValueError, match="a defect"):
                await supervisor.all_ready()
            await eventually(lambda: begun > 4)
            ours, theirs = socket.socketpair()
            with ours:
                supervisor._accept(theirs, tls=False)
                assert ours.recv(1) == b"", "nobody is there to serve it"
        assert supervisor.snapshot()["workers_lost"] >= 3
    assert "a worker is replaced: a defect" in caplog.text
    assert "Traceback" in caplog.text


def test_workers_share_the_shared_memory() -> None:
    start = settings("x", shared_memory="1GiB")
    assert _divide(start.server, 4).shared_memory == 256 << 20
