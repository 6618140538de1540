from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import fsspec
import pytest

from streamrec.errors import ObjectNotFound
from streamrec.stores.memory_store import MemoryStore
from tests.stores.conformance import (
    DATA,
    Backend,
    Bench,
    ListingConformance,
    StoreConformance,
    filled,
    read,
)
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


@pytest.fixture(autouse=True)
def memory() -> Iterator[fsspec.AbstractFileSystem]:
    filesystem = fsspec.filesystem("memory")
    filesystem.store.clear()
    yield filesystem
    filesystem.store.clear()


class TestMemory(StoreConformance, ListingConformance):
    @pytest.fixture
    def backend(self, memory: fsspec.AbstractFileSystem) -> Backend:
        @asynccontextmanager
        async def make() -> AsyncIterator[Bench]:
            yield Bench(
                MemoryStore(),
                url=lambda name: f"memory://bucket/{name}",
                put=lambda name, data: memory.pipe_file(f"memory://bucket/{name}", data),
            )

        return make


@asynchronous
async def test_slashes_before_the_name(memory: fsspec.AbstractFileSystem) -> None:
    memory.pipe_file("/a/x", DATA)
    for url in ("memory://a/x", "memory:///a/x"):
        data, info = await read(MemoryStore(), url, 0, 10)
        assert data == DATA[:10]
        assert info.url == url
    assert [info.url async for info in MemoryStore().list("memory:///a/")] == ["memory:///a/x"]


@asynchronous
async def test_writers_may_go_on_while_a_range_is_read(memory: fsspec.AbstractFileSystem) -> None:
    memory.pipe_file("/x", DATA)
    async with MemoryStore().open_range("memory://x", 0, 10) as body:
        memory.store["/x"].seek(0, 2)
        memory.store["/x"].write(DATA)
        view = memoryview(bytearray(10))
        assert await filled(body, view) == 10


@asynchronous
async def test_missing_says_whose_memory_it_is() -> None:
    with pytest.raises(ObjectNotFound, match="memory:// is not shared"):
        await read(MemoryStore(), "memory://x", 0, 1)
