from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Self

import pytest

from streamrec.config import DatasetSettings
from streamrec.config.server_settings import ServerSettings
from streamrec.errors import (
    ConfigError,
    FeederDraining,
    FeederLost,
    FeederRefused,
    ObjectNotFound,
    StoreUnavailable,
)
from streamrec.feeder.access.access import client_context
from streamrec.feeder.client.client import ENGINE_DATASET, AsyncFeed
from streamrec.feeder.engine.engine import order_for
from streamrec.feeder.operate import worker_process
from streamrec.feeder.workers.worker import NUMBER_BYTES, Link
from streamrec.wire.protocol import Connection, Role
from tests.feeder.certificates import Authority, write_secret
from tests.feeder.shards import write_shards
from tests.feeder.support import eventually, hello, on_both_loops

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20


OPEN = {"is_known": False, "own": {}, "others": True}
"""The grant of a client where there are no tokens."""


class Served:
    """A worker in the test's own loop, whose supervisor is the test."""

    def __init__(self, source: str, **server: Any) -> None:
        self.settings = ServerSettings(**server)
        self.order = json.loads(order_for(DatasetSettings(source=source, batch_size=4)))
        self.abandoned = False
        self.answers: dict[str, Any] = {"open": self.order, "admit": None, "lend": 8 * MIB}
        """By the name of the question."""
        self.said: list[dict[str, Any]] = []
        """All messages but snapshots."""
        self.snapshot: dict[str, Any] = {}

    async def __aenter__(self) -> Self:
        ours, theirs = socket.socketpair()
        self.arrivals, arrivals = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        serving = worker_process.serve(theirs, arrivals, abandoned=self._abandon)
        self.task = asyncio.create_task(serving)
        self.link = await Link.open(ours)
        self._hearing = asyncio.create_task(self._hear())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.arrivals.close()
        await self.link.aclose()
        await asyncio.gather(self.task, self._hearing)

    def _abandon(self) -> None:
        self.abandoned = True

    async def begin(self) -> None:
        self.link.send(server=self.settings.model_dump(mode="json"), number=2)
        await eventually(lambda: {"ready": True} in self.said and self.snapshot != {})

    async def _hear(self) -> None:
        while (message := await self.link.receive()) is not None:
            self.snapshot = message.get("snapshot", self.snapshot)
            if "snapshot" not in message:
                self.said.append(message)
            for question in self.answers.keys() & message.keys():
                if self.answers[question] is not ...:
                    self.link.answer(message, self.answers[question])

    def arrive(self, number: int, *, tls: bool = False) -> socket.socket:
        """Return the client's end of a connection that is handed over."""
        ours, theirs = socket.socketpair()
        with theirs:
            message = number.to_bytes(NUMBER_BYTES, "little") + bytes([tls])
            socket.send_fds(self.arrivals, [message], [theirs.fileno()])
        return ours

    @property
    def questions(self) -> list[dict[str, Any]]:
        return [message for message in self.said if "ask" in message]

    async def open(self, number: int, **options: Any) -> AsyncFeed:
        return await AsyncFeed.open(self.arrive(number), **options)


@pytest.fixture
def source(tmp_path: Path) -> str:
    return write_shards(tmp_path, shards=3, records=20)


@on_both_loops
async def test_it_serves_asks_and_tells(source: str) -> None:
    async with Served(source) as served:
        await served.begin()
        assert served.snapshot["obstacle"] is None
        async with aclosing(await served.open(7)) as feed:
            assert len(await feed.receive()) == 4
            await eventually(lambda: served.snapshot["subscriptions"] != [])
            assert served.snapshot["subscriptions"][0]["worker"] == 2
        await eventually(lambda: {"left": 7} in served.said)
        served.answers["open"] = None
        async with aclosing(await served.open(8)) as feed:
            assert len(await feed.receive()) == 4
        await eventually(lambda: {"left": 8} in served.said)
    assert served.abandoned
    first, second = served.questions[:3], served.questions[3:]
    assert first[0] == {"ask": 1, "admit": 7}
    assert first[1] == {"ask": 2, "open": ENGINE_DATASET, "known": False, "grant": OPEN}
    assert first[2] == {"ask": 3, "lend": first[2]["lend"], "least": 8 * MIB}
    assert second[1] == {"ask": 5, "open": ENGINE_DATASET, "known": True, "grant": OPEN}
    assert served.said[-2:] == [{"give_back": 8 * MIB}, {"left": 8}]


@on_both_loops
async def test_it_speaks_tls_where_it_is_told_to(source: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    token = "t" * 16
    tokens = [write_secret(tmp_path / "tokens", token)]
    async with Served(source, tls=authority.server("worker"), tokens=tokens) as served:
        await served.begin()
        context = await asyncio.to_thread(client_context, {"ca": authority.file})
        reader, writer = await asyncio.open_connection(
            sock=served.arrive(1, tls=True),
            ssl=context,
            server_hostname="worker",
        )
        writer.writelines(Connection(Role.CLIENT).send(hello(dataset="stream", token=token)))
        assert await reader.readexactly(4) == b"SREC"
        writer.close()
        await eventually(lambda: {"left": 1} in served.said)
        with pytest.raises(FeederRefused, match="a token is needed"):
            await served.open(2)


@on_both_loops
async def test_a_dataset_that_fails_is_told_and_opened_again(source: str) -> None:
    async with Served(source) as served:
        await served.begin()
        settings = DatasetSettings(source=source.replace("shard-", "none-"), batch_size=4)
        served.answers["open"] = json.loads(order_for(settings))
        for number in (1, 2):
            with pytest.raises(ObjectNotFound):
                await served.open(number)
        await eventually(lambda: {"left": 2} in served.said)
        told = [message for message in served.said if "failed" in message]
        assert [message["failed"] for message in told] == [ENGINE_DATASET] * 2
        assert told[0]["error"]["type"] == "ObjectNotFound"
        served.answers["open"] = StoreUnavailable("the store of the dataset fails")
        with pytest.raises(StoreUnavailable, match="the store of the dataset fails"):
            await served.open(3)
        served.answers["open"] = served.order
        async with aclosing(await served.open(4)) as feed:
            assert len(await feed.receive()) == 4


@on_both_loops
async def test_new_settings_and_a_dump(source: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="streamrec.feeder")
    async with Served(source) as served:
        await served.begin()
        changed = served.settings.model_dump(mode="json") | {"token": "new"}
        served.link.send(own={}, reload=changed)
        await eventually(lambda: "reload: the tokens have changed" in caplog.text)
        with pytest.raises(FeederRefused, match="a token is needed"):
            await served.open(1)
        async with aclosing(await served.open(2, token="new")) as feed:
            await feed.receive()
        served.link.send(dump=True)
        await eventually(lambda: "<WorkerFeeder serving" in caplog.text)


@on_both_loops
async def test_refusals_of_the_supervisor_reach_the_client(source: str) -> None:
    async with Served(source) as served:
        await served.begin()
        served.answers["admit"] = "the daemon is full"
        with pytest.raises(FeederDraining, match="the daemon is full"):
            await served.open(1)
        served.answers |= {"admit": None, "lend": ConfigError("memory_budget is too small")}
        with pytest.raises(ConfigError, match="memory_budget is too small"):
            async with aclosing(await served.open(2)) as feed:
                await feed.receive()
        await eventually(lambda: {"left": 2} in served.said)
        assert not any("give_back" in message for message in served.said)


@on_both_loops
async def test_memory_that_comes_too_late_goes_back(source: str) -> None:
    async with Served(source) as served:
        await served.begin()
        served.answers["lend"] = ...
        async with aclosing(await served.open(3)):
            await eventually(lambda: any("lend" in message for message in served.said))
        await eventually(lambda: {"left": 3} in served.said)
        question = next(message for message in served.said if "lend" in message)
        served.link.answer(question, 9 * MIB)
        await eventually(lambda: {"give_back": 9 * MIB} in served.said)


@on_both_loops
async def test_a_connection_is_cut(source: str) -> None:
    async with Served(source) as served:
        await served.begin()
        silent = served.arrive(5)
        await eventually(lambda: served.snapshot["handshakes"] == 1)
        served.link.send(cut=4)
        served.link.send(cut=5)
        await eventually(lambda: {"left": 5} in served.said)
        with silent:
            assert silent.recv(1) == b""


@on_both_loops
async def test_it_drains_and_ends(source: str) -> None:
    async with Served(source) as served:
        await served.begin()
        feed = await served.open(1, credit_bytes=1)  # a batch at a time
        await feed.receive()
        late = asyncio.create_task(served.open(2))
        await asyncio.sleep(0)
        served.link.send(drain=10.0)
        with contextlib.suppress(FeederDraining):
            while True:
                await feed.receive()
        with pytest.raises((FeederDraining, FeederLost)):
            await late
        await feed.aclose()
        await served.task
    assert not served.abandoned
    assert served.snapshot["datasets"][ENGINE_DATASET]["sent"]["batches"] > 0, "its last word"
    assert served.said[-1] == {"drained": 0}


@on_both_loops
async def test_told_to_end_before_it_has_begun(source: str) -> None:
    async with Served(source) as served:
        served.link.send(drain=1.0)
        await served.task
    assert not served.abandoned


@on_both_loops
async def test_left_alone_before_it_has_begun(source: str) -> None:
    async with Served(source) as served:
        await served.link.aclose()
        await served.task
    assert served.abandoned


@on_both_loops
async def test_a_client_whose_file_is_lost(source: str) -> None:
    async with Served(source) as served:
        await served.begin()
        served.arrivals.send((9).to_bytes(NUMBER_BYTES, "little"))
        await eventually(lambda: {"left": 9} in served.said)
