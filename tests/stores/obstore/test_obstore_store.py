from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

pytest.importorskip("obstore", reason="obstore is not installed; pip install streamrec[obstore]")

from streamrec.devstore import DevStore, Fault
from streamrec.errors import (
    AccessDenied,
    ConfigError,
    StoreError,
    StoreMisbehaved,
    StoreUnavailable,
)
from streamrec.stores import Stores
from streamrec.stores.obstore import obstore_config
from streamrec.stores.obstore.obstore_store import ObstoreStore
from tests.stores.conformance import (
    DATA,
    AccessConformance,
    Backend,
    Bench,
    FaultConformance,
    ListingConformance,
    StoreConformance,
    read,
)
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.stores.certificates import Authority


@asynccontextmanager
async def opened(options: dict[str, Any], **settings: Any) -> AsyncIterator[ObstoreStore]:
    store = ObstoreStore(options, **settings)
    try:
        yield store
    finally:
        await store.aclose()


class Faults(FaultConformance):
    @pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
    @asynchronous
    async def test_busy_store(self, backend: Backend, status: int) -> None:
        """obstore does not say how long to wait."""
        async with backend() as bench:
            assert bench.devstore
            bench.put("x", DATA)
            bench.devstore.faults = [Fault(nth=1, status=status)]
            with pytest.raises(StoreUnavailable):
                await read(bench.store, bench.url("x"), 0, 10)
            assert (await read(bench.store, bench.url("x"), 0, 10))[0] == DATA[:10]
            assert len(bench.devstore.statistics.records) == 2


class TestS3(StoreConformance, ListingConformance, AccessConformance, Faults):
    @pytest.fixture
    def backend(self) -> Backend:
        @asynccontextmanager
        async def make() -> AsyncIterator[Bench]:
            async with DevStore() as devstore:
                wrong = {**devstore.storage_options, "key": "wrong"}
                async with opened(devstore.storage_options) as store, opened(wrong) as denied:
                    yield Bench(
                        store,
                        url=lambda name: f"s3://bucket/{name}",
                        put=lambda name, data: devstore.put(f"bucket/{name}", data),
                        denied=denied,
                        devstore=devstore,
                    )

        return make


class TestHttps(StoreConformance, Faults):
    @pytest.fixture
    def backend(self, authority: Authority) -> Backend:
        @asynccontextmanager
        async def make() -> AsyncIterator[Bench]:
            async with DevStore(anonymous=True, tls=authority.server) as devstore:
                async with opened({"verify": authority.file}) as store:
                    yield Bench(
                        store,
                        url=lambda name: devstore.url("bucket/" + quote(name)),
                        put=lambda name, data: devstore.put(f"bucket/{name}", data),
                        devstore=devstore,
                    )

        return make


@pytest.mark.parametrize(
    "fault",
    [{"ignore_range": True}, {"content_range": "nonsense"}, {"content_range": "bytes 5-14/10240"}],
)
@asynchronous
async def test_answers_to_other_questions(fault: dict[str, Any]) -> None:
    async with DevStore() as devstore, opened(devstore.storage_options) as store:
        devstore.put("bucket/x", DATA)
        devstore.faults = [Fault.model_validate(fault)]
        with pytest.raises(StoreMisbehaved):
            await read(store, "s3://bucket/x", 0, 10)


@asynchronous
async def test_past_the_end_is_refused_within() -> None:
    async with DevStore() as devstore, opened(devstore.storage_options) as store:
        devstore.put("bucket/x", DATA)
        devstore.faults = [Fault(ranged=True, status=416, code="InvalidRange")]
        with pytest.raises(StoreMisbehaved, match="past the end"):
            await read(store, "s3://bucket/x", 0, 10)


@asynchronous
async def test_untrusted_certificate(authority: Authority) -> None:
    async with DevStore(anonymous=True, tls=authority.server) as devstore:
        devstore.put("bucket/x", DATA)
        async with opened({}) as store:
            with pytest.raises(StoreError, match="not trusted") as caught:
                await read(store, devstore.url("bucket/x"), 0, 10)
            assert not caught.value.retryable
        async with opened({"verify": False}) as store:
            await read(store, devstore.url("bucket/x"), 0, 10)


@asynchronous
async def test_silent_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(obstore_config, "READ_SECONDS", 0.05)
    async with DevStore() as devstore:
        devstore.put("bucket/x", DATA)
        devstore.faults = [Fault(stall_after=1000)]
        async with opened(devstore.storage_options) as store:
            with pytest.raises(StoreUnavailable):
                await read(store, "s3://bucket/x", 0, len(DATA))


@asynchronous
async def test_no_credentials() -> None:
    async with DevStore() as devstore, opened({"endpoint_url": devstore.endpoint}) as store:
        with pytest.raises(StoreError):
            await read(store, "s3://bucket/x", 0, 10)


@asynchronous
async def test_anonymous() -> None:
    async with DevStore(anonymous=True) as devstore:
        devstore.put("bucket/x", DATA)
        async with opened({"anon": True, "endpoint_url": devstore.endpoint}) as store:
            await read(store, "s3a://bucket/x", 0, 10)
        assert {each.signed for each in devstore.statistics.records} == {None}


@asynchronous
async def test_http_has_no_listing() -> None:
    async with opened({}) as store:
        with pytest.raises(ConfigError, match="name each shard"):
            [info async for info in store.list("https://host/")]


@asynchronous
async def test_names_with_empty_parts() -> None:
    async with DevStore() as devstore, opened(devstore.storage_options) as store:
        with pytest.raises(ConfigError, match="empty path segment"):
            await read(store, "s3://bucket/a//b", 0, 10)


@asynchronous
async def test_it_is_chosen_by_name() -> None:
    stores = Stores({"reader": "obstore"})
    assert isinstance(stores.store_for("s3://bucket/x"), ObstoreStore)
    assert isinstance(stores.store_for("https://host/x"), ObstoreStore)
    assert isinstance(stores.store_for("az://container/x"), ObstoreStore)
    assert not isinstance(stores.store_for("/data/x"), ObstoreStore)
    with pytest.raises(ConfigError, match="no reader 'obstore' of ftp"):
        stores.store_for("ftp://host/x")
    with pytest.raises(ConfigError, match="no reader 'curl' of s3"):
        Stores({"reader": "curl"}).store_for("s3://bucket/x")
    await stores.aclose()


@asynchronous
async def test_denied_is_denied() -> None:
    async with DevStore() as devstore, opened(devstore.storage_options) as store:
        devstore.faults = [Fault(status=403, code="AccessDenied")]
        with pytest.raises(AccessDenied) as caught:
            await read(store, "s3://bucket/x", 0, 10)
        assert "403 AccessDenied" in str(caught.value)
