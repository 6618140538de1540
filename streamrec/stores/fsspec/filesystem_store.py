"""The store over fsspec's filesystems, for schemes without their own: az, hdfs, hf, memory, ….

A filesystem has no conditional reads as HTTP has. The version is therefore looked up when a range
begins, unless it is known, and again after the last byte. Each piece is read into memory of its
own, and copied from there. The keys of ``info`` are those of fsspec's own filesystems and of adlfs,
gcsfs, huggingface_hub, s3fs, ossfs and pyarrow.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from streamrec.config.named_files import check_archive
from streamrec.config.places import split_chain
from streamrec.errors import (
    ConfigError,
    ObjectNotFound,
    StoreError,
    StoreMisbehaved,
    StoreUnavailable,
)
from streamrec.masking import without_values
from streamrec.stores.base.foreign_errors import translate_errors
from streamrec.stores.base.protocol import (
    NO_SIZE,
    ObjectInfo,
    check_pin,
    check_range,
    in_thread,
    let_pass,
)
from streamrec.stores.base.protocol import version_of as made_of
from streamrec.stores.fsspec.filesystem_writer import FilesystemWriter, shared_filesystem

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from fsspec import AbstractFileSystem

    from streamrec.config.places import ChainedURL
    from streamrec.stores.base.protocol import BeforeRequest, NewObject


PIECE_BYTES = 8 << 20
"""Bytes of one read. They are held in addition to the buffer that they are copied to."""
MAX_KNOWN = 8192
"""Number of objects whose size and version are remembered."""


class FilesystemBody:
    """A range read piece by piece; the last piece is returned only after a check of the version."""

    def __init__(self, store: FilesystemStore, info: ObjectInfo, start: int, stop: int) -> None:
        self.info = info
        self._store = store
        self._at = start
        self._stop = stop
        self._ready = memoryview(b"")

    async def fill(self, view: memoryview, on_received: Callable[[int], None]) -> None:
        """Copy bytes of the current piece, and of the next ones; see :class:`RangeBody`."""
        while view and (self._ready or self._at < self._stop):
            if not self._ready:
                stop = min(self._at + PIECE_BYTES, self._stop)
                data = await self._store.read(self.info, self._at, stop, last=stop == self._stop)
                self._at, self._ready = stop, memoryview(data)
            count = min(len(view), len(self._ready))
            view[:count] = self._ready[:count]
            self._ready, view = self._ready[count:], view[count:]
            on_received(count)


class FilesystemStore:
    """A store of objects of one scheme, read through its fsspec filesystem.

    Args:
        scheme: fsspec's name of the scheme: the first of a chain such as
            ``zip://x::s3://bucket/a.zip``.
        storage_options: The filesystem's options; for a chain, by the scheme of each link.
        before_request: Called before each call of the filesystem, which mostly is one request.

    Raises:
        ConfigError: The filesystem's package is not installed.
    """

    def __init__(
        self,
        scheme: str,
        storage_options: Mapping[str, Any] | None = None,
        *,
        before_request: BeforeRequest = let_pass,
    ) -> None:
        options = dict(storage_options or {})
        self._before_request = before_request
        self._anonymous = scheme == "s3" and bool(options.get("anon"))
        asynchronous = filesystem_class(scheme).async_impl
        self._calls = FilesystemCalls(options, asynchronous=asynchronous)
        self._writer = FilesystemWriter(lambda url: shared_filesystem(url, options))
        self._known: dict[str, ObjectInfo] = {}

    @asynccontextmanager
    async def open_range(
        self, url: str, start: int, stop: int, *, etag: str | None = None
    ) -> AsyncIterator[FilesystemBody]:
        """Read a range; see :class:`Store`.

        The version is the filesystem's ETag, hash or mtime. If it has none of these, a change of
        the object is not detected.
        """
        check_range(start, stop)
        info = self._known.get(url)
        # An empty range has no last byte after which the version would be checked.
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
        """Return a piece of an object; check the object's version after the last one of a range.

        Raises:
            ObjectChanged: It is no longer the version that ``info`` names.
            StoreError: The read failed.
        """
        try:
            named = {"start": start, "end": stop}
            _, data = await self._call(info.url, "cat_file", stop - start, **named)
            _check_length(info.url, len(data), stop - start)
        except StoreError:
            await self._check_version(info)  # if the object has changed, that is the error to raise
            raise
        if last:
            await self._check_version(info)
        return bytes(data)

    async def list(self, prefix: str, *, recursive: bool = True) -> AsyncIterator[ObjectInfo]:
        """List directories, with one call for each; see :class:`Store`.

        A missing bucket is empty too, because filesystems do not tell it from a missing directory.
        """
        comparable = None
        async for info in self._walk(split_chain(prefix), recursive=recursive):
            if comparable is None:
                # Some filesystems list another kind of version than they report for one object.
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

    def put(self, url: str, *, make_directory: bool = False, spooled: bool = False) -> NewObject:
        """Begin a temporary file, which is uploaded when it is complete; see :class:`Store`."""
        return self._writer.put(url, make_directory=make_directory, spooled=spooled)

    async def delete(self, url: str) -> None:
        """Delete an object; see :class:`Store`."""
        self._before_request(0)
        await self._writer.delete(url)

    async def copy(self, url: str, other: str, size: int) -> None:  # noqa: ARG002 - of any size
        """Copy an object; see :class:`Copying`."""
        self._before_request(0)
        await self._writer.copy(url, other)

    async def aclose(self) -> None:
        """Drop every filesystem, and close its connections where it has a method for that."""
        self._writer.close()
        self._known.clear()
        await self._calls.aclose()

    async def _entries(self, directory: ChainedURL) -> Sequence[dict[str, Any]]:
        """Return the entries of a directory, each named by the last part of its path."""
        try:
            path, found = await self._call("".join(directory), "ls", detail=True)
        except ObjectNotFound:
            return []
        own = path.strip("/")
        # Listing a file gives the file.
        inside = [entry for entry in found if entry["name"].strip("/") != own]
        return [{**entry, "name": entry["name"].rstrip("/").rpartition("/")[2]} for entry in inside]

    async def _stat(self, url: str) -> ObjectInfo:
        _, entry = await self._call(url, "info")
        if entry.get("type") == "directory":
            hint = "this is a directory; name its shards, as in …/*.tfrecord"
            raise StoreError(hint, url=url)
        size = size_of(entry)
        if size is None:
            raise StoreMisbehaved(
                "the filesystem does not report the object's size; copy the shards to another "
                "store",
                url=url,
            )
        # It goes to the end, as the first of them is forgotten when there are too many.
        self._known.pop(url, None)
        if len(self._known) >= MAX_KNOWN:
            del self._known[next(iter(self._known))]
        self._known[url] = ObjectInfo(url, size, version_of(entry))
        return self._known[url]

    async def _check_version(self, info: ObjectInfo) -> None:
        if info.etag is not None:
            check_pin(info.url, info.etag, (await self._stat(info.url)).etag)

    async def _call(self, url: str, method: str, size: int = 0, **named: object) -> tuple[str, Any]:
        """Call a method of the filesystem; return its path for the URL, and the method's result."""
        self._before_request(size)
        with translate_errors(url, anonymous=self._anonymous):
            return await self._calls.call(split_chain(url), method, **named)


def _check_length(url: str, count: int, wanted: int) -> None:
    if count < wanted:
        raise StoreUnavailable(
            f"the read ended {wanted - count} bytes early; check the network", url=url
        )
    if count > wanted:
        raise StoreMisbehaved(
            f"a read of {wanted} bytes returned {count}, so the filesystem does not support "
            "ranges; copy the shards to another store",
            url=url,
        )


def _related(directory: str, prefix: str) -> bool:
    """Return whether a path below the directory may begin with the prefix."""
    return directory.startswith(prefix) or prefix.startswith(directory)


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
        # Threads first: they use the filesystems that are closed below.
        pool, self._pool = self._pool, None
        if pool is not None:
            await _in_thread(pool.shutdown, at_exit=partial(pool.shutdown, wait=False))
        while self._open:
            (thread, _), filesystem = self._open.popitem()
            for held in _closable(filesystem):
                closing = held.close() if thread is None else await _in_thread(held.close)
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


async def _in_thread(call: Callable[[], Any], at_exit: Callable[[], Any] | None = None) -> Any:
    """Call a function in a thread; at the interpreter's end, which starts no thread, here.

    Args:
        call: The function.
        at_exit: Called in its place at the interpreter's end, when the pools' threads have ended.
    """
    try:
        called = asyncio.get_running_loop().run_in_executor(None, call)
    except RuntimeError:
        return (at_exit or call)()
    return await called


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
            "storage_options of a chained URL must be grouped by scheme; put "
            f"{', '.join(map(repr, misplaced))} into a mapping for {holder[0]!r}, as in "
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


_IDENTITIES = (
    "generation", "ETag", "etag", "e_tag", "lfs", "blob_id", "sha", "sha256", "oid", "md5Hash",
    "md5", "Content-MD5", "content_md5", "Digest", "checksum", "hash", "CRC",
)  # fmt: skip
_TIMES = (
    "mtime", "modified", "LastModified", "last_modified", "Last-Modified", "modify",
    "modificationTime", "updated", "date_time", "time", "created",
)  # fmt: skip


def size_of(info: Mapping[str, Any]) -> int | None:
    """Return the size in bytes, or ``None`` if the filesystem does not report a possible one."""
    size = info.get("size")
    return int(size) if isinstance(size, int | float) and 0 <= size < NO_SIZE else None


def version_of(info: Mapping[str, Any]) -> str | None:
    """Return the version in the form of an ETag: a hash or number, else times and size.

    Returns:
        The version; ``None`` if the filesystem reports none of them.
    """
    for name in _IDENTITIES:
        if info.get(name):
            return made_of(etag=_text(info[name]))
    parts = [_text(info[name]) for name in ("ino", *_TIMES) if info.get(name)]
    # An inode alone tells no versions apart: a file that is written in place keeps it.
    known = any(info.get(name) for name in _TIMES)
    return made_of(etag="-".join([*parts, _text(info.get("size"))])) if known else None


def _text(value: object) -> str:
    if isinstance(value, bytes | bytearray):
        return value.hex()
    if isinstance(value, datetime):  # some filesystems list a number, but report a date
        return str((value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp())
    if isinstance(value, Mapping):  # of huggingface_hub: size, sha256, pointer_size
        return str(value.get("sha256") or sorted(value.items()))
    return str(value)
