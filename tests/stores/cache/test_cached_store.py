from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest
from blockbuster import blockbuster_ctx

from streamrec.devstore import DevStore, FaultRule
from streamrec.errors import ObjectChanged, StoreUnavailable
from streamrec.stores.base.protocol import ObjectInfo
from streamrec.stores.cache.cached_store import CachedStore
from streamrec.stores.cache.piece_cache import PieceCache
from streamrec.stores.cache.shelves import PIECE, CacheFolder, ProcessMemory
from streamrec.stores.gcs.gcs_store import GCSStore
from tests.read_only import ReadOnly
from tests.stores.conformance import (
    LARGE,
    Backend,
    Bench,
    FaultConformance,
    ListingConformance,
    StoreConformance,
    WritingConformance,
    read,
)
from tests.support import asynchronous

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from streamrec.stores.cache.piece_cache import Shelf

SIZE = 64 << 20


class Given:
    """A body of bytes that are there."""

    def __init__(self, info: ObjectInfo, data: bytes) -> None:
        self.info = info
        self._data = memoryview(data)

    async def fill(self, view: memoryview, on_received: Callable[[int], None]) -> None:
        count = min(len(view), len(self._data))
        view[:count], self._data = self._data[:count], self._data[count:]
        on_received(count)


@asynccontextmanager
async def cached(options: dict[str, Any], shelf: Shelf) -> AsyncIterator[CachedStore]:
    cache = PieceCache(shelf, SIZE)
    store = CachedStore(GCSStore(options), cache)
    try:
        yield store
    finally:
        await store.aclose()
        cache.close()


@asynccontextmanager
async def bench(shelf: Shelf) -> AsyncIterator[Bench]:
    async with DevStore() as devstore, cached(devstore.gcs_options, shelf) as store:
        yield Bench(
            store,
            url=lambda name: f"gs://bucket/{name}",
            put=lambda name, data: devstore.put(f"bucket/{name}", data),
            devstore=devstore,
        )


@asynccontextmanager
async def on_disk() -> AsyncIterator[Bench]:
    with TemporaryDirectory() as folder:
        async with bench(CacheFolder(Path(folder) / "cache")) as made:
            yield made


@asynccontextmanager
async def in_memory() -> AsyncIterator[Bench]:
    async with bench(ProcessMemory(SIZE)) as made:
        yield made


@pytest.fixture(params=[on_disk, in_memory])
def backend(request: pytest.FixtureRequest) -> Backend:
    made: Backend = request.param
    return made


class TestConformance(StoreConformance, ListingConformance, WritingConformance, FaultConformance):
    """A cached store is a store."""


def requests(made: Bench) -> int:
    assert made.devstore is not None
    return made.devstore.statistics.requests


@asynchronous
async def test_what_was_read_is_not_asked_for_again(backend: Backend) -> None:
    async with backend() as made:
        made.put("large", LARGE)
        url = made.url("large")
        await read(made.store, url, 0, len(LARGE) // 2, step=len(LARGE))
        await read(made.store, url, len(LARGE) // 2, len(LARGE) + 10, step=len(LARGE))
        before = requests(made)
        for start, stop in [(0, len(LARGE)), (17, PIECE + 1), (PIECE - 1, PIECE), (5, 1 << 40)]:
            data, info = await read(made.store, url, start, stop, step=len(LARGE))
            assert data == LARGE[start:stop]
            assert info.size == len(LARGE)
        assert requests(made) == before


@asynchronous
async def test_gaps_alone_are_asked_for(backend: Backend) -> None:
    async with backend() as made:
        made.put("large", LARGE)
        url = made.url("large")
        await read(made.store, url, 1000, 2000)
        await read(made.store, url, 5000, PIECE + 5)
        assert made.devstore is not None
        made.devstore.statistics.clear()
        data, _ = await read(made.store, url, 0, len(LARGE), step=len(LARGE))
        assert data == LARGE
        asked = [record.range for record in made.devstore.statistics.records]
        assert asked == ["bytes=0-999", "bytes=2000-4999", f"bytes={PIECE + 5}-{len(LARGE) - 1}"]


@asynchronous
async def test_another_store_of_the_folder_finds_the_pieces(tmp_path: Path) -> None:
    async with DevStore() as devstore:
        devstore.put("bucket/large", LARGE)
        async with cached(devstore.gcs_options, CacheFolder(tmp_path)) as store:
            _, info = await read(store, "gs://bucket/large", 0, len(LARGE))
        devstore.statistics.clear()
        async with cached(devstore.gcs_options, CacheFolder(tmp_path)) as store:
            data, found = await read(store, "gs://bucket/large", 0, len(LARGE), etag=info.etag)
        assert (data, found) == (LARGE, info)
        assert devstore.statistics.requests == 0


@asynchronous
async def test_a_new_version_is_asked_for(backend: Backend) -> None:
    async with backend() as made:
        url = made.url("x")
        made.put("x", b"old" * 1000)
        _, old = await read(made.store, url, 0, 1500)
        made.put("x", b"new" * 1000)
        with pytest.raises(ObjectChanged):
            await read(made.store, url, 1500, 3000, etag=old.etag)
        data, new = await read(made.store, url, 0, 3000)
        assert data == b"new" * 1000
        assert new.etag != old.etag
        data, _ = await read(made.store, url, 0, 1500, etag=old.etag)  # that version is cached
        assert data == b"old" * 500


@asynchronous
async def test_a_changed_object_is_read_anew_where_no_version_is_asked_for(
    backend: Backend,
) -> None:
    async with backend() as made:
        made.put("x", b"old" * 1000)
        await read(made.store, made.url("x"), 0, 1500)
        made.put("x", b"new" * 1000)
        data, _ = await read(made.store, made.url("x"), 1500, 3000)
        assert data == b"new" * 500


@asynchronous
async def test_a_broken_response_is_kept_as_far_as_it_came(backend: Backend) -> None:
    async with backend() as made:
        assert made.devstore is not None
        made.put("large", LARGE)
        url = made.url("large")
        made.devstore.faults = [FaultRule(first=1, ranged=True, truncate_after=PIECE + 1000)]
        view, counts = memoryview(bytearray(len(LARGE))), list[int]()
        with pytest.raises(StoreUnavailable):
            async with made.store.open_range(url, 0, len(LARGE)) as body:
                await body.fill(view, counts.append)
        came = sum(counts)
        assert 0 < came < len(LARGE)
        made.devstore.faults = []
        made.devstore.statistics.clear()
        data, _ = await read(made.store, url, 0, len(LARGE), step=len(LARGE))
        assert data == LARGE
        assert [record.range for record in made.devstore.statistics.records] == [
            f"bytes={came}-{len(LARGE) - 1}"
        ]


@asynchronous
async def test_damaged_pieces_are_fetched_again(tmp_path: Path) -> None:
    async with bench(CacheFolder(tmp_path)) as made:
        made.put("large", LARGE)
        await read(made.store, made.url("large"), 0, len(LARGE), step=len(LARGE))
        for file in tmp_path.glob("*/*"):  # noqa: ASYNC240 - a test
            content = bytearray(file.read_bytes())
            content[1000] ^= 1
            file.write_bytes(content)
        data, _ = await read(made.store, made.url("large"), 0, len(LARGE), step=len(LARGE))
        assert data == LARGE


@asynchronous
async def test_a_cancelled_read_leaves_no_thread_that_reads_its_view(backend: Backend) -> None:
    async with backend() as made:
        made.put("large", LARGE)
        view = memoryview(bytearray(len(LARGE)))

        async def fill() -> None:
            async with made.store.open_range(made.url("large"), 0, len(LARGE)) as body:
                await body.fill(view, lambda _: (task.cancel(), None)[1])

        task = asyncio.create_task(fill())
        with pytest.raises(asyncio.CancelledError):
            await task
        view[:] = bytes(len(view))
        data, _ = await read(made.store, made.url("large"), 0, len(LARGE), step=len(LARGE))
        assert data == LARGE


class Named(ReadOnly):
    """A store of one object, with a given ETag."""

    def __init__(self, etag: str | None) -> None:
        self.etag = etag
        self.asked = 0

    @asynccontextmanager
    async def open_range(
        self, url: str, start: int, stop: int, *, etag: str | None = None
    ) -> AsyncIterator[Given]:
        self.asked += 1
        yield Given(ObjectInfo(url, len(LARGE), self.etag), LARGE[start:stop])

    async def list(self, prefix: str, *, recursive: bool = True) -> AsyncIterator[ObjectInfo]:
        yield ObjectInfo(prefix)

    async def aclose(self) -> None:
        pass


@pytest.mark.parametrize(
    ("etag", "pinned", "asked"),
    [
        ('"a"', None, 1),
        ('"a"', '"a"', 1),
        ('W/"a"', None, 3),
        ('W/"a"', '"a"', 3),  # a proxy compresses, say: these are not the bytes of that version
        (None, None, 3),
    ],
)
@asynchronous
async def test_weak_versions_are_not_kept(etag: str | None, pinned: str | None, asked: int) -> None:
    named, cache = Named(etag), PieceCache(ProcessMemory(SIZE), SIZE)
    store = CachedStore(named, cache)
    for _ in range(3):
        data, _ = await read(store, "https://host/x", 5, 5000, etag=pinned)
        assert data == LARGE[5:5000]
    assert named.asked == asked
    cache.close()


@asynchronous
async def test_the_loop_is_never_blocked(backend: Backend) -> None:
    async with backend() as made:
        made.put("large", LARGE)
        with blockbuster_ctx("streamrec.stores.cache"):
            for start in (0, 1000):
                data, _ = await read(made.store, made.url("large"), start, len(LARGE))
                assert data == LARGE[start:]
