"""Every filesystem of fsspec's that has no store of its own here: az, hdfs, hf and many more.

What a filesystem can promise is less than what HTTP can: there is no condition on a read, so its
version is asked for when a range begins, where it is not known yet, and again when its last byte
has come. A read lands in memory of its own first, a piece at a time.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any

from streamrec.errors import (
    ObjectNotFound,
    StoreError,
    StoreMisbehaved,
    StoreUnavailable,
)
from streamrec.stores.base import ObjectInfo, PiecewiseBody, check_pin, check_range
from streamrec.stores.filesystem_calls import AsyncCaller, ThreadedCaller, filesystem_class
from streamrec.stores.filesystem_errors import translated as translated_by_type
from streamrec.stores.filesystem_info import size_of, version_of
from streamrec.stores.sources import split_chain

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from streamrec.stores.sources import ChainedURL

__all__ = ["FilesystemStore"]

PIECE_BYTES = 8 << 20
"""Bytes of one read; as much of a range is held beside the buffer that it goes to."""
MAX_KNOWN = 8192
"""Objects whose size and version are remembered."""


class FilesystemBody(PiecewiseBody):
    """A range, read piece by piece; the last one is given out once its version is certain."""

    def __init__(self, store: FilesystemStore, info: ObjectInfo, start: int, stop: int) -> None:
        self.info = info
        self._store = store
        self._at = start
        self._stop = stop
        self._ready = memoryview(b"")

    async def readinto(self, view: memoryview) -> int:
        """Copy what has come, after reading a piece where nothing has; see :class:`RangeBody`."""
        if view and not self._ready and self._at < self._stop:
            stop = min(self._at + PIECE_BYTES, self._stop)
            data = await self._store.read(self.info, self._at, stop, last=stop == self._stop)
            self._at, self._ready = stop, memoryview(data)
        count = min(len(view), len(self._ready))
        view[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count


class FilesystemStore:
    """Objects of one scheme, through its fsspec filesystem.

    An asynchronous filesystem is called in the running loop; any other in threads, each with an
    instance of its own, for fsspec promises no more than one thread for each.

    Args:
        scheme: As fsspec knows it: the first one of a chain such as ``zip://x::s3://bucket/a.zip``.
        storage_options: The filesystem's; for a chain, by the scheme of each link.
        translated: Raises the tree's errors in place of the filesystem's, given a URL.

    Raises:
        ConfigError: The filesystem's package is not installed.
    """

    def __init__(
        self,
        scheme: str,
        storage_options: Mapping[str, Any] | None = None,
        *,
        translated: Callable[[str], AbstractContextManager[None]] = translated_by_type,
    ) -> None:
        options = dict(storage_options or {})
        self._translated = translated
        self._async_caller = AsyncCaller(options) if filesystem_class(scheme).async_impl else None
        self._threaded_caller = ThreadedCaller(options)
        self._known: dict[str, ObjectInfo] = {}

    @asynccontextmanager
    async def open_range(
        self, url: str, start: int, stop: int, *, etag: str | None = None
    ) -> AsyncIterator[FilesystemBody]:
        """Begin to read; the version is the filesystem's ETag, hash or mtime; see :class:`Store`.

        Where the filesystem names none of these, changes go unnoticed.
        """
        check_range(start, stop)
        info = self._known.get(url)
        # An empty range has no last byte to look again at.
        if (
            info is None
            or etag is None
            or info.etag != etag
            or not start < min(stop, info.size or 0)
        ):
            info = await self._stat(url)
        check_pin(url, etag, info.etag)
        yield FilesystemBody(self, info, start, min(stop, info.size or 0))

    async def read(self, info: ObjectInfo, start: int, stop: int, *, last: bool) -> bytes:
        """A piece of an object, and with the last one of a range proof of its version.

        Raises:
            ObjectChanged: It is no longer the version that ``info`` names.
            StoreError: Any other of the tree's store errors.
        """
        try:
            _, data = await self._call(info.url, "cat_file", start=start, end=stop)
            _check_length(info.url, len(data), stop - start)
        except StoreError:
            await self._check_version(info)  # a change explains more than what came of it
            raise
        if last:
            await self._check_version(info)
        return bytes(data)

    async def list(self, prefix: str, *, recursive: bool = True) -> AsyncIterator[ObjectInfo]:
        """Go through directories, a call each; see :class:`Store`.

        A directory or bucket that is not there is empty: filesystems do not tell which it is.
        """
        comparable = None
        async for info in self._walk(split_chain(prefix), recursive=recursive):
            if comparable is None:
                # Some list another kind of version than they tell of a single object.
                comparable = (await self._stat(info.url)).etag == info.etag
            yield info if comparable else ObjectInfo(info.url, info.size)

    async def _walk(self, prefix: ChainedURL, *, recursive: bool) -> AsyncIterator[ObjectInfo]:
        pending = [prefix.link[: prefix.link.rfind("/") + 1]]
        while pending:
            directory = pending.pop()
            for entry in await self._entries(prefix._replace(link=directory)):
                link = directory + entry["name"]
                if entry["type"] != "directory":
                    if link.startswith(prefix.link):
                        url = "".join(prefix._replace(link=link))
                        yield ObjectInfo(url, size_of(entry), version_of(entry))
                elif recursive and _related(f"{link}/", prefix.link):
                    pending.append(f"{link}/")

    async def aclose(self) -> None:
        """Let go of every filesystem, and of its connections where it has a way to close them."""
        self._known.clear()
        if self._async_caller is not None:
            await self._async_caller.aclose()
        await self._threaded_caller.aclose()

    async def _entries(self, directory: ChainedURL) -> Sequence[dict[str, Any]]:
        """What is in a directory, by the last part of its name."""
        try:
            path, found = await self._call("".join(directory), "ls", detail=True)
        except ObjectNotFound:
            return []
        own = path.strip("/")
        # Listing a file gives the file.
        inside = [entry for entry in found if entry["name"].strip("/") != own]
        return [{**entry, "name": _last_part(entry["name"])} for entry in inside]

    async def _stat(self, url: str) -> ObjectInfo:
        _, entry = await self._call(url, "info")
        if entry.get("type") == "directory":
            hint = "this is a directory; name its shards, as in …/*.tfrecord"
            raise StoreError(hint, url=url)
        size = size_of(entry)
        if size is None:
            raise StoreMisbehaved("the filesystem names no size", url=url)
        self._known.pop(url, None)
        if len(self._known) >= MAX_KNOWN:
            del self._known[next(iter(self._known))]
        self._known[url] = ObjectInfo(url, size, version_of(entry))
        return self._known[url]

    async def _check_version(self, info: ObjectInfo) -> None:
        if info.etag is not None:
            check_pin(info.url, info.etag, (await self._stat(info.url)).etag)

    async def _call(self, url: str, method: str, **named: object) -> tuple[str, Any]:
        """Call the filesystem; its path of the URL, and what it says."""
        place = split_chain(url)
        chained = place.before or place.after
        calls = (
            self._threaded_caller if chained or self._async_caller is None else self._async_caller
        )
        with self._translated(url):
            return await calls.call(place, method, **named)


def _check_length(url: str, count: int, wanted: int) -> None:
    if count < wanted:
        raise StoreUnavailable(f"the read ended {wanted - count} bytes early", url=url)
    if count > wanted:
        raise StoreMisbehaved(
            f"a read of {wanted} bytes gave {count}; the filesystem does not know ranges",
            url=url,
        )


def _last_part(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2]


def _related(directory: str, prefix: str) -> bool:
    """Whether what lies below a directory may begin with a prefix."""
    return directory.startswith(prefix) or prefix.startswith(directory)
