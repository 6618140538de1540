"""What every store is, and the rules that all of them share."""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from streamrec.errors import ObjectChanged
from streamrec.masking import masked_repr

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from concurrent.futures import Executor
    from contextlib import AbstractAsyncContextManager

__all__ = [
    "BytesBody",
    "ObjectInfo",
    "PiecewiseBody",
    "RangeBody",
    "Store",
    "bare_url",
    "check_pin",
    "check_range",
    "in_thread",
    "same_version",
]

_T = TypeVar("_T")

_HTTP_URL = re.compile(
    r"(?si:(?P<scheme>https?://)(?:[^/?#]*@)?(?P<place>[^?#]*)(?P<query>\?[^#]*)?(?:#.*)?)"
)
_USER = re.compile(r"(?i)\b((?:https?|s?ftp|ssh|smb|webdav|webhdfs)://)[^/?#@]*@")
"""Elsewhere a name before an ``@`` is no user: a container of Azure's, a repository of GitHub's."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What is known of an object; ``None``: not known yet, for names that nobody looked up."""

    url: str
    size: int | None = None
    """Bytes."""
    etag: str | None = None
    """The version, as the store writes it: an ETag, quotes and all, or a generation; opaque."""
    encoding: str | None = None
    """The Content-Encoding that the object is stored with, such as ``gzip``: ranges are then those
    of the encoded bytes. ``None``: none, or not known yet."""

    __repr__ = masked_repr


class RangeBody(Protocol):
    """The bytes of one range, as they come."""

    @property
    def info(self) -> ObjectInfo:
        """The object, with its size and the version that is being read."""
        ...

    async def readinto(self, view: memoryview) -> int:
        """Fill the beginning of a view.

        Args:
            view: Writable bytes; nothing is written to it once this call has returned or raised.

        Returns:
            How many bytes were written; 0 at the range's end (or for an empty view).

        Raises:
            StoreUnavailable: The body broke off, or stalled.
        """
        ...

    async def fill(self, view: memoryview, on_received: Callable[[int], None]) -> None:
        """Fill a view, or as much of it as the range has left.

        Args:
            view: Writable bytes; nothing is written to it once this call has returned or raised.
            on_received: Told how many bytes more are there each time some are; what it raises is raised.

        Raises:
            StoreUnavailable: The body broke off, or stalled; of what had come ``on_received`` was told.
        """
        ...


class Store(Protocol):
    """Objects that are read by ranges. No retries here, and no cache."""

    def open_range(
        self, url: str, start: int, stop: int, *, etag: str | None = None
    ) -> AbstractAsyncContextManager[RangeBody]:
        """Begin to read bytes ``[start, stop)`` of an object, clipped to its end.

        A start at or past the end gives an empty body that knows the size, and no error.

        Args:
            url: The object.
            start: The first byte, from 0.
            stop: One past the last byte.
            etag: The version that is wanted; ``None`` takes any.

        Raises:
            ObjectNotFound: There is no such object.
            AccessDenied: The store does not allow it.
            ObjectChanged: The object has another version than ``etag``.
            StoreUnavailable: Retryable: network, 429, 5xx.
            StoreMisbehaved: The answer contradicts the request.
        """
        ...

    def list(self, prefix: str, *, recursive: bool = True) -> AsyncIterator[ObjectInfo]:
        """Go through the objects whose URLs begin with a prefix, in no particular order.

        Args:
            prefix: A URL cut anywhere: ``s3://bucket/train-`` and ``s3://bucket/dir/`` both serve.
            recursive: ``False`` leaves out what lies below a further ``/``.

        Raises:
            ObjectNotFound: There is no such bucket. (A directory that is not there is empty.)
        """
        ...

    async def aclose(self) -> None:
        """Give connections and files back. Bodies that are still open break."""
        ...


class PiecewiseBody(ABC):
    """A body that comes by calls of :meth:`RangeBody.readinto`."""

    @abstractmethod
    async def readinto(self, view: memoryview) -> int:
        """Fill the beginning of a view; see :class:`RangeBody`."""

    async def fill(self, view: memoryview, on_received: Callable[[int], None]) -> None:
        """Fill a view piece by piece; see :class:`RangeBody`."""
        while view and (count := await self.readinto(view)):
            view = view[count:]
            on_received(count)


class BytesBody(PiecewiseBody):
    """A body whose bytes are in memory already."""

    def __init__(self, info: ObjectInfo, data: bytes | memoryview = b"") -> None:
        self.info = info
        self._data = memoryview(data)

    async def readinto(self, view: memoryview) -> int:
        """Copy what fits."""
        count = min(len(view), len(self._data))
        view[:count] = self._data[:count]
        self._data = self._data[count:]
        return count


def check_range(start: int, stop: int) -> None:
    """Refuse what is no range: that is the caller's mistake, not the store's.

    Raises:
        ValueError: The range is negative or runs backwards.
    """
    if not 0 <= start <= stop:
        raise ValueError(f"[{start}, {stop}) is no range of bytes")


def same_version(one: str, other: str) -> bool:
    """Compare two ETags weakly (RFC 9110, 8.8.3.2), however a listing or a header quotes them."""
    return _opaque(one) == _opaque(other)


def _opaque(etag: str) -> str:
    return etag.strip().removeprefix("W/").strip('"')


def check_pin(url: str, pinned: str | None, found: str | None) -> None:
    """Compare the version that is wanted with the one that the store names.

    Raises:
        ObjectChanged: They differ, or the store no longer names any.
    """
    if pinned is None or (found is not None and same_version(pinned, found)):
        return
    raise ObjectChanged(
        f"this run reads version {pinned}, the store now has {found or 'one without a name'}; "
        "start a new run, or put the old object back",
        url=url,
    )


def bare_url(url: str) -> str:
    """Return the URL without what signatures change: its user, and http's query.

    An index, and a quarantine, know a shard by this name, so it stays as it is; what is shown of a
    URL is :func:`streamrec.masking.masked`.
    """
    found = _HTTP_URL.fullmatch(url)
    if not found:
        return _USER.sub(r"\1", url)
    return found["scheme"] + found["place"] + ("?..." if found["query"] else "")


async def in_thread(
    function: Callable[..., _T], *arguments: object, executor: Executor | None = None
) -> _T:
    """Run a blocking function in a thread, and be back only when it is done.

    Unlike ``asyncio.to_thread``, a cancelled call waits for its thread: it must not go on writing
    into a buffer whose owner believes that the read is over.
    """
    call = asyncio.get_running_loop().run_in_executor(executor, function, *arguments)
    try:
        return await asyncio.shield(call)
    except asyncio.CancelledError:
        while not call.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([call])
        if not call.cancelled():
            call.exception()  # retrieved: nobody else will ask for it
        raise
