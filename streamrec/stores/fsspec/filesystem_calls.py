"""Calls of fsspec's filesystems: in the running loop, or in threads with an instance each."""

from __future__ import annotations

import asyncio
import inspect
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from streamrec.config.named_files import check_archive
from streamrec.errors import ConfigError
from streamrec.masking import without_values
from streamrec.stores.base.protocol import in_thread

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fsspec import AbstractFileSystem

    from streamrec.stores.base.source_text import ChainedURL

THREADS = 32
"""Threads of one store; many, because they mostly wait for the network."""
_HOLDERS = ("_session", "_s3", "service_client", "ftp")
"""Attributes in which the filesystems of http, S3, Azure and FTP keep an object to close."""


class FilesystemCalls:
    """The filesystems of one store: one for each server or account, and for each thread.

    An asynchronous filesystem is called in the running loop. Any other, and a chain of them, is
    called in threads, because fsspec's instances are not thread-safe.

    Args:
        options: The filesystems' options.
        asynchronous: ``True`` if the scheme's filesystem is asynchronous.
    """

    def __init__(self, options: Mapping[str, Any], *, asynchronous: bool) -> None:
        self._options = options
        self._asynchronous = asynchronous
        self._pool: ThreadPoolExecutor | None = None
        self._open: dict[tuple[int | None, object], AbstractFileSystem] = {}

    async def call(self, place: ChainedURL, method: str, **named: object) -> tuple[str, Any]:
        """Call a method with the URL's path; return the path and the method's result."""
        if self._asynchronous and not (place.before or place.after):
            filesystem, path = self._find(None, place, {**self._options, "asynchronous": True})
            return path, await getattr(filesystem, f"_{method}")(path, **named)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="streamrec-filesystem")
        return await in_thread(self._call, place, method, named, executor=self._pool)

    async def aclose(self) -> None:
        """Close all filesystems."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await asyncio.to_thread(pool.shutdown)
        while self._open:
            (thread, _), filesystem = self._open.popitem()
            for held in _closable(filesystem):
                closing = held.close() if thread is None else await asyncio.to_thread(held.close)
                if inspect.isawaitable(closing):
                    await closing

    def _call(self, place: ChainedURL, method: str, named: Mapping[str, object]) -> tuple[str, Any]:
        filesystem, path = self._find(threading.get_ident(), place, self._options)
        return path, getattr(filesystem, method)(path, **named)

    def _find(
        self, thread: int | None, place: ChainedURL, options: Mapping[str, Any]
    ) -> tuple[AbstractFileSystem, str]:
        """Return the filesystem of a thread (``None``: of the loop), and the URL's path in it."""
        key = (thread, _server_of(place))
        if key not in self._open:
            self._open[key] = _make(place, options)
        filesystem = self._open[key]
        filesystem.invalidate_cache()  # a remembered listing may be outdated
        return filesystem, filesystem._strip_protocol(place.link)  # noqa: SLF001 - as fsspec does


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
        ConfigError: The filesystem refuses the options, or an archive is a FIFO or a device.
    """
    from fsspec.core import url_to_fs

    check_archive("".join(place))
    check_by_scheme(place, options)
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


def check_by_scheme(place: ChainedURL, options: Mapping[str, Any]) -> None:
    """Check that no option is meant for what holds an archive, and given to the archive's link.

    Raises:
        ConfigError: One is; fsspec would leave it out in silence.
    """
    holder = place.after.rpartition("::")[2].partition("://")
    first = (place.before or place.link).partition(":")[0]
    if not holder[1] or holder[0] in options:
        return
    theirs = _parameters(filesystem_class(holder[0])) - _parameters(filesystem_class(first))
    if misplaced := sorted(theirs & options.keys()):
        raise ConfigError(
            f"storage_options: those of a chain are by the scheme of their link; put "
            f"{', '.join(map(repr, misplaced))} into a mapping of its own, as in "
            f"{{{holder[0]!r}: {{{misplaced[0]!r}: ...}}}}"
        )


def _parameters(kind: type) -> set[str]:
    makers = (vars(base)["__init__"] for base in kind.__mro__ if "__init__" in vars(base))
    made = (inspect.signature(make).parameters for make in makers if inspect.isfunction(make))
    return {name for parameters in made for name in parameters}


def _server_of(place: ChainedURL) -> object:
    """Return a key of the filesystem: server, account and archive, without the path in it."""
    scheme = place.link.partition("://")[0]
    named = filesystem_class(scheme)._get_kwargs_from_urls(place.link)  # noqa: SLF001 - meant for this
    return place.before, scheme, place.after, tuple(sorted(map(repr, named.items())))


def _closable(filesystem: AbstractFileSystem) -> list[Any]:
    """Return the objects that hold connections, since filesystems share no method to close them."""
    held = (getattr(filesystem, name, None) for name in _HOLDERS)
    return [one for one in (*held, filesystem) if hasattr(one, "close")]
