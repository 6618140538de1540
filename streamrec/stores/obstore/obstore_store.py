"""The store of S3, Google, Azure and http(s) through obstore (Rust), if the options select it.

It is an alternative to the stores over aiohttp, with two limits: obstore does not pass on
``Retry-After``, and does not support names with empty parts (``a//b``).
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import obstore

from streamrec.errors import ConfigError, ObjectChanged, StoreMisbehaved, StoreUnavailable
from streamrec.masking import masked
from streamrec.stores.base import (
    BytesBody,
    ObjectInfo,
    PiecewiseBody,
    check_pin,
    check_range,
)
from streamrec.stores.obstore.obstore_config import Connection, split_place
from streamrec.stores.obstore.obstore_errors import PastTheEnd, translated

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from obstore.store import ObjectStore

__all__ = ["ObstoreStore"]

CHUNK_BYTES = 1
"""Smallest piece of a body that obstore hands over, so that bytes are available at once."""
PAGE = 1000
"""Entries of a listing that obstore hands over together."""


class ObstoreBody(PiecewiseBody):
    """The bytes of one response."""

    def __init__(self, info: ObjectInfo, answer: obstore.GetResult, length: int) -> None:
        self.info = info
        self._pieces = aiter(answer.stream(min_chunk_size=CHUNK_BYTES))
        self._left = length
        self._ready = memoryview(b"")

    async def readinto(self, view: memoryview) -> int:
        """Wait for bytes, and copy as many as fit; see :class:`RangeBody`."""
        while self._left and not self._ready:
            with translated(self.info.url):
                piece = await anext(self._pieces, None)
            if piece is None:
                early = f"the body ended {self._left} bytes early; check the network"
                raise StoreUnavailable(early, url=self.info.url)
            self._ready = memoryview(piece)[: self._left]
        count = min(len(view), len(self._ready))
        view[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        self._left -= count
        return count


class ObstoreStore:
    """A store of S3, Google, Azure or http(s) objects, with one obstore client a bucket or host.

    Args:
        storage_options: For S3, those of s3fs that obstore supports too; for http, those of
            :class:`~streamrec.stores.http.http_store.HttpStore`; else obstore's own, such as
            ``account_name``. ``verify``, ``ca_bundle`` and ``proxy`` for all of them.
    """

    def __init__(self, storage_options: Mapping[str, Any] | None = None) -> None:
        self._connection = Connection(dict(storage_options or {}))
        self._stores: dict[str, ObjectStore] = {}

    @asynccontextmanager
    async def open_range(
        self, url: str, start: int, stop: int, *, etag: str | None = None
    ) -> AsyncIterator[ObstoreBody | BytesBody]:
        """Read a range; see :class:`Store`."""
        check_range(start, stop)
        store, key = await self._find(url)
        options: dict[str, Any] = {"range": (start, max(stop, start + 1))}
        if etag is not None and not etag.startswith("W/"):
            options["if_match"] = f'"{etag.strip(chr(34))}"'
        try:
            with translated(url):
                answer = await obstore.get_async(store, key, options=options)  # type: ignore[arg-type]
        except PastTheEnd:
            yield BytesBody(await self._past_the_end(url, start, etag))
            return
        except ObjectChanged as changed:
            raise await self._with_versions(changed, url, etag) from None
        info = ObjectInfo(url, answer.meta["size"], answer.meta["e_tag"])
        check_pin(url, etag, info.etag)
        yield ObstoreBody(info, answer, max(0, min(stop, info.size or 0) - start))

    async def list(self, prefix: str, *, recursive: bool = True) -> AsyncIterator[ObjectInfo]:
        """List the directory that holds the prefix; see :class:`Store`."""
        if prefix.startswith("http"):
            raise ConfigError(f"{masked(prefix)}: http cannot list objects; name each shard")
        store, key = await self._find(prefix)
        head = prefix[: len(prefix) - len(key)]
        async for page in self._pages(store, prefix, key[: key.rfind("/") + 1], recursive):
            for meta in page:
                if meta["path"].startswith(key):
                    yield ObjectInfo(head + meta["path"], meta["size"], meta["e_tag"])

    async def aclose(self) -> None:
        """Drop the clients; obstore closes their connections."""
        self._stores.clear()
        await self._connection.aclose()

    async def _pages(
        self, store: ObjectStore, prefix: str, directory: str, recursive: bool
    ) -> AsyncIterator[Any]:
        with translated(prefix):
            if not recursive:
                yield (await obstore.list_with_delimiter_async(store, directory))["objects"]
                return
            async for page in obstore.list(store, directory, chunk_size=PAGE):
                yield page

    async def _find(self, url: str) -> tuple[ObjectStore, str]:
        place, key = split_place(url)
        if place not in self._stores:
            with translated(url):
                self._stores[place] = await self._connection.open(place)
        return self._stores[place], unquote(key) if place.startswith("http") else key

    async def _head(self, url: str) -> ObjectInfo:
        store, key = await self._find(url)
        with translated(url):
            meta = await obstore.head_async(store, key)
        return ObjectInfo(url, meta["size"], meta["e_tag"])

    async def _past_the_end(self, url: str, start: int, etag: str | None) -> ObjectInfo:
        info = await self._head(url)
        check_pin(url, etag, info.etag)
        if start < (info.size or 0):
            raise StoreMisbehaved(
                f"the server refuses byte {start} of {info.size} as past the end; check the "
                "server and any proxy before it",
                url=url,
            )
        return info

    async def _with_versions(self, changed: ObjectChanged, url: str, etag: str | None) -> Exception:
        """Return the error with both versions in its text, if the store names them."""
        try:
            check_pin(url, etag, (await self._head(url)).etag)
        except ObjectChanged as described:
            return described
        return changed
