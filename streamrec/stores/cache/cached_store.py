"""The store that answers from a cache, and asks another store for the rest."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

from streamrec.errors import ObjectChanged
from streamrec.flow.cleanup import until_done
from streamrec.stores.base.protocol import ObjectInfo, check_range, in_thread, is_strong
from streamrec.stores.cache.shelves import ENCODING, PIECE, Piece, end_of_gap, piece_at

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import AsyncIterator, Callable, Iterator

    from streamrec.stores.base.protocol import NewObject, RangeBody, Store
    from streamrec.stores.cache.piece_cache import PieceCache

_T = TypeVar("_T")


NOT_ASKED = "the store was not asked"
"""The message of the cancellation of a range that was still looked up in the cache."""


class CachedStore:
    """A store that keeps the ranges that it reads from another one, and reads them but once.

    Objects without a strong ETag (or a generation) are not cached: nothing would tell their
    versions apart. A version that was read is taken for the present one as long as the store lives,
    so that a second pass needs no request, even where no listing has named the versions.

    Args:
        store: The store to ask.
        cache: Keeps the ranges.
    """

    def __init__(self, store: Store, cache: PieceCache) -> None:
        self.store = store
        self.cache = cache
        self.known: dict[str, ObjectInfo] = {}
        """The objects that were read, by URL: those with a strong version, and empty ones."""

    def __repr__(self) -> str:
        return f"<CachedStore of {self.store!r}>"

    @asynccontextmanager
    async def open_range(
        self, url: str, start: int, stop: int, *, etag: str | None = None
    ) -> AsyncIterator[CachedBody]:
        """Begin to read a range; see :class:`Store`."""
        check_range(start, stop)
        async with AsyncExitStack() as requests:
            body = CachedBody(self, requests, ObjectInfo(url, etag=etag), start, stop)
            await body.open()
            yield body

    def list(self, prefix: str, *, recursive: bool = True) -> AsyncIterator[ObjectInfo]:
        """Yield the objects that the store lists; see :class:`Store`."""
        return self.store.list(prefix, recursive=recursive)

    def put(self, url: str, *, make_directory: bool = False, spooled: bool = False) -> NewObject:
        """Begin an object in the store; see :class:`Store`."""
        # It would else be taken for the present version, and served without a request.
        self.known.pop(url, None)
        return self.store.put(url, make_directory=make_directory, spooled=spooled)

    async def delete(self, url: str) -> None:
        """Delete an object in the store; see :class:`Store`."""
        self.known.pop(url, None)
        await self.store.delete(url)

    async def aclose(self) -> None:
        """Close the store; the cache may serve others."""
        await self.store.aclose()


class CachedBody:
    """The bytes of one range, from the cache and from requests for what it lacks."""

    def __init__(
        self,
        store: CachedStore,
        requests: AsyncExitStack,
        wanted: ObjectInfo,
        start: int,
        stop: int,
    ) -> None:
        self.info = wanted
        self.requests = self.cached = 0
        """The number of requests that were sent, and the bytes that the cache gave."""
        self._store, self._cache = store, store.cache
        self._open_requests = requests
        self._at, self._stop = start, stop
        self._key: str | None = None
        self._pieces: list[Piece] = []
        self._request: RangeBody | None = None
        self._request_stop = start

    def count(self, counts: Counter[str]) -> None:
        """Add what this range has cost to a run's counters."""
        counts["requests"] += self.requests
        counts["cache_bytes"] += self.cached
        counts["cache_hits"] += not self.requests

    async def open(self) -> None:
        """Learn the object's facts: from its first piece, or from the answer to a request."""
        known, pinned = self._store.known.get(self.info.url), self.info.etag
        version = pinned or (known.etag if known else None)
        if known and known.etag == version and self._at >= min(self._stop, known.size or 0):
            self.info, self._stop = known, self._at  # nothing is there
            return
        if version and is_strong(version) and await self._find(version):
            return
        try:
            await self._ask(version)
        except ObjectChanged:
            # A version that was only remembered gives way to the one that is there now.
            if pinned is not None:
                raise
            await self._ask(None)

    async def fill(self, view: memoryview, on_received: Callable[[int], None]) -> None:
        """Fill a view; see :class:`RangeBody`."""
        writes: list[asyncio.Future[None]] = []
        try:
            while view and self._at < self._stop:
                piece = None if self._request else piece_at(self._pieces, self._at)
                if piece is not None:
                    count = await self._load(piece, view, on_received)
                elif not (count := await self._receive(view, on_received, writes)):
                    return  # the response ended early
                view = view[count:]
        finally:
            await until_done(*writes)  # they read the view, which the caller may reuse

    async def _find(self, version: str) -> bool:
        """Look the range up; return whether its first byte is cached."""
        self._key = self._cache.key_of(self.info.url, version)
        try:
            self._pieces = await self._in_thread(self._cache.find, self._key, self._at, self._stop)
        except asyncio.CancelledError as error:
            raise asyncio.CancelledError(NOT_ASKED) from error
        first = piece_at(self._pieces, self._at)
        if first is None:
            return False
        self.info = ObjectInfo(self.info.url, first.size, version, first.encoding or None)
        self._stop = min(self._stop, first.size)
        return True

    async def _load(
        self, piece: Piece, view: memoryview, on_received: Callable[[int], None]
    ) -> int:
        """Read from a piece; return 0 if it is gone, and forget it."""
        view = view[: min(piece.end, self._stop) - self._at]
        if not await self._in_thread(self._cache.load_part, piece, self._at, view):
            # Another process may have removed it, or its checksum is wrong: the store is asked
            # instead.
            self._pieces.remove(piece)
            return 0
        self._at += len(view)
        self.cached += len(view)
        on_received(len(view))
        return len(view)

    async def _receive(
        self,
        view: memoryview,
        on_received: Callable[[int], None],
        writes: list[asyncio.Future[None]],
    ) -> int:
        """Receive bytes up to the end of a piece, and begin to keep them."""
        request = self._request or await self._ask(self.info.etag)
        # Up to a multiple of PIECE, so that what is kept lies where other ranges will look for it.
        view = view[: min(self._request_stop, (self._at // PIECE + 1) * PIECE) - self._at]
        count = 0

        def received(more: int) -> None:
            nonlocal count
            count += more
            on_received(more)

        try:
            await request.fill(view, received)
        finally:
            writes += self._begin_to_keep(view[:count])
            self._at += count
        # The connection is given back at once: what follows may come from the cache for long.
        if self._at == self._request_stop:
            self._request = None
            await self._open_requests.aclose()
        return count

    async def _ask(self, version: str | None) -> RangeBody:
        """Send a request for the bytes up to the next cached piece."""
        url = self.info.url
        self._request_stop = end_of_gap(self._pieces, self._at, self._stop)
        self.requests += 1
        opened = self._store.store.open_range(url, self._at, self._request_stop, etag=version)
        try:
            request = await self._open_requests.enter_async_context(opened)
        except ObjectChanged:
            # What was found is of the old version, and must not be joined to bytes of the new one.
            self._store.known.pop(url, None)
            self._pieces = []
            raise
        self._request = request
        self._learn(request.info)
        return request

    def _learn(self, info: ObjectInfo) -> None:
        self.info = info
        if info.size is not None:
            self._stop = min(self._stop, info.size)
            self._request_stop = min(self._request_stop, info.size)
        strong = info.etag if info.etag is not None and is_strong(info.etag) else None
        # An empty object needs no version, as it has no bytes to confuse.
        if strong or info.size == 0:
            self._store.known[info.url] = info
        self._key = self._cache.key_of(info.url, strong) if strong else None

    def _begin_to_keep(self, data: memoryview) -> Iterator[asyncio.Future[None]]:
        """Begin to keep bytes that were received; a request that broke off gives fewer of them."""
        size, encoding = self.info.size, self.info.encoding or ""
        if not data or self._key is None or size is None or not ENCODING.fullmatch(encoding):
            return
        piece = Piece(self._key, self._at, self._at + len(data), size, encoding)
        run = asyncio.get_running_loop().run_in_executor
        yield run(self._cache.threads, self._cache.keep, piece, data)

    async def _in_thread(self, function: Callable[..., _T], *arguments: object) -> _T:
        return await in_thread(function, *arguments, executor=self._cache.threads)
