from __future__ import annotations

import asyncio
import gzip
import json
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import pytest

from streamrec.devstore import DevStore, Fault
from streamrec.errors import (
    AccessDenied,
    ConfigError,
    ObjectChanged,
    ObjectNotFound,
    StoreError,
    StoreMisbehaved,
    StoreUnavailable,
)
from streamrec.stores.gcs import GCSStore, split_url
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

    from streamrec.stores.base import ObjectInfo


@asynccontextmanager
async def opened(options: dict[str, Any], **settings: Any) -> AsyncIterator[GCSStore]:
    store = GCSStore(options, **settings)
    try:
        yield store
        assert not in_use(store)
    finally:
        await store.aclose()


def in_use(store: GCSStore) -> int:
    """Connections that no range gave back."""
    session = store._service.client._session if store._service else None
    return len(session.connector._acquired) if session and session.connector else 0


@asynccontextmanager
async def devstore_bench(**settings: Any) -> AsyncIterator[Bench]:
    async with DevStore() as devstore:
        async with (
            opened(devstore.gcs_options, **settings) as store,
            opened({**devstore.gcs_options, "token": "wrong"}) as denied,
        ):
            yield Bench(
                store,
                url=lambda name: f"gs://bucket/{name}",
                put=lambda name, data: devstore.put(f"bucket/{name}", data),
                denied=denied,
                devstore=devstore,
            )


async def listed(store: GCSStore, prefix: str) -> list[ObjectInfo]:
    return [info async for info in store.list(prefix)]


class TestGCSStore(StoreConformance, ListingConformance, AccessConformance, FaultConformance):
    @pytest.fixture
    def backend(self) -> Backend:
        return devstore_bench
