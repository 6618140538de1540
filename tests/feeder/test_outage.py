"""The daemon and a real store that is down, and comes back at the same address."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from streamrec.config.daemon import DaemonSettings, ServedSettings
from streamrec.config.server_settings import ServerSettings
from streamrec.devstore import DevStore
from streamrec.errors import StoreUnavailable
from streamrec.feeder.client.client import AsyncFeed
from streamrec.feeder.operate import daemon
from streamrec.feeder.server import datasets
from streamrec.flow.channel import EndOfStream
from streamrec.kernel import frame_records
from streamrec.stores.open import import_store
from streamrec.values.record_rows import RecordRows
from tests.feeder.support import PATIENCE
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

RECORDS = [b"record %d" % number for number in range(20)]


@pytest.fixture(autouse=True)
def no_long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the daemon ask its store again at once."""
    monkeypatch.setattr(datasets, "FIRST_WAIT", 0.01)
    monkeypatch.setattr(datasets, "LONGEST_WAIT", 0.05)


import_store("s3://")  # for half a second, in which a store would seem to stall


def store(port: int = 0) -> DevStore:
    made = DevStore(port=port)
    made.objects.create_bucket("data")
    made.objects["data/a"] = frame_records(RecordRows.of(RECORDS)).tobytes()
    return made


async def address_of_a_store() -> tuple[int, dict[str, str]]:
    """Return the port and the options of a store that is down now."""
    async with store() as running:
        port = urlsplit(running.endpoint).port
        assert port is not None
        return port, running.storage_options


@asynccontextmanager
async def serving(options: dict[str, str]) -> AsyncIterator[daemon.Bound]:
    """Run a daemon over the store's only shard."""
    settings = DaemonSettings(
        server=ServerSettings(listen=["tcp://127.0.0.1:0"], status=None),
        datasets={
            "train": ServedSettings(
                source="s3://data/*", batch_size=4, stall_timeout=1.0, storage_options=options
            )
        },
    )
    ready: asyncio.Future[daemon.Bound] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(daemon.serve(settings, ready=ready.set_result))
    both: set[asyncio.Future[Any]] = {task, ready}
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    yield ready.result()
    os.kill(os.getpid(), signal.SIGTERM)
    await task


async def read(bound: daemon.Bound) -> list[bytes]:
    """Read everything."""
    records: list[bytes] = []
    async with aclosing(await AsyncFeed.open(f"{bound.feeder[0]}/train")) as feed:
        while True:
            try:
                records += (await feed.receive()).records.to_list()
            except EndOfStream:
                return records


async def read_as_soon_as_possible(bound: daemon.Bound) -> list[bytes]:
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return await read(bound)
            except StoreUnavailable as error:
                assert error.retryable
                assert "tries again by itself" in str(error)
                await asyncio.sleep(0.001)


@asynchronous
async def test_a_store_that_is_down_at_the_start() -> None:
    port, options = await address_of_a_store()
    async with serving(options) as bound:
        assert bound.failing.keys() == {"train"}
        with pytest.raises(StoreUnavailable, match="'train'") as caught:
            await read(bound)
        assert caught.value.retryable
        assert "testsecret" not in str(caught.value)
        async with store(port):
            assert await read_as_soon_as_possible(bound) == RECORDS


@asynchronous
async def test_a_store_that_goes_down_later() -> None:
    async with store() as running:
        port, options = urlsplit(running.endpoint).port, running.storage_options
        assert port is not None
        served = serving(options)
        bound = await served.__aenter__()
        assert bound.failing == {}
        assert await read(bound) == RECORDS
    with pytest.raises(StoreUnavailable) as caught:
        await read(bound)
    assert caught.value.retryable
    with pytest.raises(StoreUnavailable, match="tries again by itself"):
        await read(bound)
    async with store(port):
        assert await read_as_soon_as_possible(bound) == RECORDS
        await served.__aexit__(None, None, None)
