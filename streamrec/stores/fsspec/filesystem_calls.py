"""Calls of fsspec's filesystems: in the running loop, or in threads with an instance each."""

from __future__ import annotations

import asyncio
import inspect
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

from streamrec.errors import ConfigError
from streamrec.masking import without_values
from streamrec.stores.base import in_thread

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fsspec import AbstractFileSystem

    from streamrec.stores.source_text import ChainedURL

__all__ = ["AsyncCaller", "FilesystemCaller", "ThreadedCaller", "filesystem_class"]

THREADS = 32
"""Threads of one store; many, because they mostly wait for the network."""
_HOLDERS = ("_session", "_s3", "service_client", "ftp")
"""Attributes in which the filesystems of http, S3, Azure and FTP keep an object to close."""


class FilesystemCaller(Protocol):
    """A caller of filesystems' methods."""

    async def call(self, place: ChainedURL, method: str, **named: object) -> tuple[str, Any]:
        """Call a method with the URL's path; return the path and the method's result."""
        ...

    async def aclose(self) -> None:
        """Close all filesystems."""
        ...


class AsyncCaller:
    """Asynchronous filesystems, one for each server or account, called in the running loop."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = {**options, "asynchronous": True}
        self._open: dict[object, AbstractFileSystem] = {}

    async def call(self, place: ChainedURL, method: str, **named: object) -> tuple[str, Any]:
        """See :class:`FilesystemCaller`."""
        key = _server_of(place)
        if key not in self._open:
            self._open[key] = _make(place, self._options)
        filesystem = self._open[key]
        filesystem.invalidate_cache()  # a remembered listing may be outdated
        path = filesystem._strip_protocol(place.link)  # noqa: SLF001 - fsspec's way of asynchronous use
        return path, await getattr(filesystem, f"_{method}")(path, **named)

    async def aclose(self) -> None:
        """See :class:`FilesystemCaller`."""
        while self._open:
            _, filesystem = self._open.popitem()
            for held in _closable(filesystem):
                closing = held.close()
                if inspect.isawaitable(closing):
                    await closing


class ThreadedCaller:
    """Blocking filesystems, one for each thread and server, as in fsspec's own cache."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options
        self._pool: ThreadPoolExecutor | None = None
        self._open: dict[object, AbstractFileSystem] = {}

    async def call(self, place: ChainedURL, method: str, **named: object) -> tuple[str, Any]:
        """See :class:`FilesystemCaller`."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="streamrec-filesystem")
        return await in_thread(self._call, place, method, named, executor=self._pool)

    async def aclose(self) -> None:
        """See :class:`FilesystemCaller`."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.submit(self._close)
            await asyncio.to_thread(pool.shutdown)

    def _call(self, place: ChainedURL, method: str, named: Mapping[str, object]) -> tuple[str, Any]:
        key = (threading.get_ident(), _server_of(place))
        if key not in self._open:
            self._open[key] = _make(place, self._options)
        filesystem = self._open[key]
        filesystem.invalidate_cache()
        path = filesystem._strip_protocol(place.link)  # noqa: SLF001 - as fsspec's own callers do
        return path, getattr(filesystem, method)(path, **named)

    def _close(self) -> None:
        while self._open:
            _, filesystem = self._open.popitem()
            for held in _closable(filesystem):
                held.close()


def filesystem_class(scheme: str) -> type[AbstractFileSystem]:
    """Return fsspec's class for a scheme.

    Raises:
        ConfigError: Its package is missing or broken.
    """
    from fsspec import get_filesystem_class

    try:
        found: type[AbstractFileSystem] = get_filesystem_class(scheme)
    except (ImportError, ValueError) as error:
        raise ConfigError(
            f"{scheme}:// cannot be read here: {error}; install the scheme's package"
        ) from None
    return found


def _make(place: ChainedURL, options: Mapping[str, Any]) -> AbstractFileSystem:
    """Make a filesystem outside of fsspec's cache of instances.

    Raises:
        ConfigError: The filesystem refuses the options.
    """
    from fsspec.core import url_to_fs

    try:
        filesystem, _ = url_to_fs("".join(place), skip_instance_cache=True, **options)
    except (TypeError, ValueError, KeyError, ImportError) as error:
        scheme = place.link.partition("://")[0]
        said = without_values(str(error), options)
        raise ConfigError(
            f"storage_options: {scheme}'s filesystem refuses them: {said}; correct the options"
        ) from None
    filesystem.retries = 1  # of s3fs; the pipeline retries
    return filesystem


def _server_of(place: ChainedURL) -> object:
    """Return a key of the filesystem: server, account and archive, without the path in it."""
    scheme = place.link.partition("://")[0]
    named = filesystem_class(scheme)._get_kwargs_from_urls(place.link)  # noqa: SLF001 - meant for this
    return place.before, scheme, place.after, tuple(sorted(map(repr, named.items())))


def _closable(filesystem: AbstractFileSystem) -> list[Any]:
    """Return the objects that hold connections, since filesystems share no method to close them."""
    held = (getattr(filesystem, name, None) for name in _HOLDERS)
    return [one for one in (*held, filesystem) if hasattr(one, "close")]
