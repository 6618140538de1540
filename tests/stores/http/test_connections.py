from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import TCPConnector

from streamrec.devstore import DevStore
from streamrec.errors import StoreError
from streamrec.stores.s3.s3_store import S3Store
from tests.cancellation import SlowlyCancelled, cancel_in_every_turn
from tests.stores.conformance import DATA, read
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiohttp.connector import Connection

    from streamrec.stores.http.connections import EagerConnector
    from tests.stores.certificates import Authority

AHEAD = 5


@asynccontextmanager
async def served(
    authority: Authority, *, tls: bool = True
) -> AsyncIterator[tuple[DevStore, S3Store]]:
    async with DevStore(tls=authority.server if tls else None) as devstore:
        for number in range(AHEAD):
            devstore.put(f"bucket/{number}", DATA)
        store = S3Store({**devstore.storage_options, "verify": authority.file}, ahead=AHEAD)
        try:
            yield devstore, store
        finally:
            await store.aclose()
    assert asyncio.all_tasks() == {asyncio.current_task()}


def connector_of(store: S3Store) -> EagerConnector:
    return store._client._connector


def idle(store: S3Store) -> int:
    return sum(map(len, connector_of(store)._conns.values()))


@pytest.mark.parametrize("tls", [False, True])
@asynchronous
async def test_while_a_listing_is_on_its_way_connections_are_opened(
    authority: Authority, *, tls: bool
) -> None:
    async with served(authority, tls=tls) as (devstore, store):
        found = [info.url async for info in store.list("s3://bucket/")]
        await asyncio.wait(connector_of(store)._opening)
        assert idle(store) == 1 + AHEAD
        data = await asyncio.gather(*(read(store, url, 0, 10) for url in found))
        assert [each for each, _ in data] == [DATA[:10]] * AHEAD
        assert idle(store) == 1 + AHEAD
        assert devstore.statistics.requests == 1 + AHEAD


@asynchronous
async def test_the_listing_itself_goes_first(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    events, connect = [], TCPConnector.connect

    async def watched(connector: TCPConnector, *arguments: Any) -> Connection:
        events.append("wanted")
        connection = await connect(connector, *arguments)
        events.append("open")
        return connection

    monkeypatch.setattr(TCPConnector, "connect", watched)
    async with served(authority) as (_, store):
        [info async for info in store.list("s3://bucket/")]
        await asyncio.wait(connector_of(store)._opening)
    assert events[:2] == ["wanted", "open"]
    assert events.count("open") == 1 + AHEAD


@asynchronous
async def test_closing_in_the_middle(authority: Authority) -> None:
    async with served(authority) as (_, store):
        async for _info in store.list("s3://bucket/"):
            break


@asynchronous
async def test_stopping_is_not_cut_short(authority: Authority) -> None:
    async with served(authority) as (_, store):
        [info async for info in store.list("s3://bucket/")]
        opening = [SlowlyCancelled(), SlowlyCancelled()]
        await asyncio.sleep(0)
        connector_of(store)._opening |= {one.task for one in opening}
        await cancel_in_every_turn(connector_of(store).stop())
        assert all(one.ended for one in opening)


@asynchronous
async def test_ranges_that_come_first_open_their_own(authority: Authority) -> None:
    async with served(authority) as (_, store):
        urls = [f"s3://bucket/{number}" for number in range(AHEAD)]
        await asyncio.gather(*(read(store, url, 0, 10) for url in urls))
        assert not connector_of(store)._opening
        assert idle(store) == AHEAD


@asynchronous
async def test_what_is_wrong_is_told_by_the_request(authority: Authority) -> None:
    async with served(authority) as (devstore, _):
        store = S3Store(devstore.storage_options, ahead=AHEAD)
        with pytest.raises(StoreError, match="not trusted"):
            [info async for info in store.list("s3://bucket/")]
        await store.aclose()
