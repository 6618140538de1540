"""The protocols of a store, a range's body and a new object, and rules that all stores share."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np

from streamrec.config.schemes import SCHEMES
from streamrec.errors import ConfigError, ObjectChanged, StoreError, StoreUnavailable
from streamrec.flow.cleanup import wait_out
from streamrec.flow.retry import Backoff, Silence, retry
from streamrec.masking import masked_repr
from streamrec.stores.base.troubles import tell

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncIterator, Callable, Sequence
    from concurrent.futures import Executor
    from contextlib import AbstractAsyncContextManager

    from streamrec.values.columns import ByteArray, Bytes


_T = TypeVar("_T")

NO_SIZE = 1 << 63
"""The least number of bytes that no object has, as it does not fit a signed number."""

BeforeRequest: TypeAlias = "Callable[[int], None]"
"""A function that is called before each request that asks a store for something, a range, a page or
anything else, with the bytes of an object that it asks for. What it raises is raised in place of
sending."""


def let_pass(size: int) -> None:
    """Let a request be sent: the :data:`BeforeRequest` where nothing limits them."""


_HTTP_URL = re.compile(
    r"(?si:(?P<scheme>https?://)(?:[^/?#]*@)?(?P<place>[^?#]*)(?P<query>\?[^#]*)?(?:#.*)?)"
)
_WITH_BUCKETS = "|".join(prefix for prefix, line in SCHEMES.items() if line.has_buckets)
_BUCKET_URL = re.compile(
    rf"(?si:(?:{_WITH_BUCKETS})://(arn:[^/]*:accesspoint[:/][^/]+|[^/]+)(?:/(.*))?)"
)
_USER = re.compile(r"(?i)\b((?:https?|s?ftp|ssh|smb|webdav|webhdfs)://)[^/?#@]*@")
"""The user in a URL. In other schemes the name before an ``@`` is an Azure container or a GitHub
repository."""


@dataclass(slots=True, unsafe_hash=True)  # not frozen: each of a million would take twice as long
class ObjectInfo:
    """The metadata of an object, which never changes; ``None``: it was not looked up yet."""

    url: str
    size: int | None = None
    """Bytes."""
    etag: str | None = None
    """The version, made by :func:`streamrec.stores.base.protocol.version_of`."""
    encoding: str | None = None
    """The stored object's Content-Encoding, such as ``gzip``; ranges are then those of the encoded
    bytes. ``None``: no encoding, or not looked up yet."""

    __repr__ = masked_repr

    def __post_init__(self) -> None:
        if self.size is not None and not 0 <= self.size < NO_SIZE:
            raise ValueError(f"an object cannot have {self.size} bytes")


class RangeBody(Protocol):
    """The bytes of one range, as they arrive."""

    @property
    def info(self) -> ObjectInfo:
        """The object's metadata, with its size and the version that is being read."""
        ...

    async def fill(self, view: memoryview, on_received: Callable[[int], None]) -> None:
        """Fill a view, or as much of it as the range has left.

        Args:
            view: Writable bytes; nothing is written to it once this call has returned or raised.
            on_received: Called with the number of new bytes each time some have arrived; what it
                raises is raised.

        Raises:
            StoreUnavailable: The body broke off; ``on_received`` was called for all bytes before
                that. One that is silent is the caller's to give up.
        """
        ...


class NewObject(Protocol):
    """An object that is being written, and is not visible until it is committed.

    Its methods block: writers are threads, and to hand each block to a loop costs more than to
    write it to a disk. ``discard`` follows in any case.
    """

    def write(self, data: Bytes) -> int:
        """Append bytes, and return how many; parts that are complete may be sent."""
        ...

    def flush(self) -> None:
        """Hand bytes that are held to the operating system, where the object is a file."""
        ...

    def commit(self) -> None:
        """Make the object visible under its name, in place of an older one."""
        ...

    def discard(self) -> None:
        """Remove what was written, unless it is committed; a second call does nothing."""
        ...


class Store(Protocol):
    """A place of objects, which are read by ranges, without retries or a cache."""

    def open_range(
        self, url: str, start: int, stop: int, *, etag: str | None = None
    ) -> AbstractAsyncContextManager[RangeBody]:
        """Begin to read bytes ``[start, stop)`` of an object, clipped to its end.

        A start at or past the end is not an error: the body is empty and knows the object's size.

        Args:
            url: The object's URL.
            start: The first byte, from 0.
            stop: One past the last byte.
            etag: The required version; ``None`` accepts any.

        Raises:
            ObjectNotFound: There is no such object.
            AccessDenied: The store does not allow it.
            ObjectChanged: The object has another version than ``etag``.
            StoreUnavailable: Retryable: network, 429, 5xx.
            StoreMisbehaved: The response contradicts the request.
        """
        ...

    def list(self, prefix: str, *, recursive: bool = True) -> AsyncIterator[ObjectInfo]:
        """Yield the objects whose URLs begin with a prefix, in no particular order.

        Args:
            prefix: The beginning of a URL: ``s3://bucket/train-``, or ``s3://bucket/dir/``.
            recursive: ``False`` leaves out objects with a further ``/`` after the prefix.

        Raises:
            ObjectNotFound: There is no such bucket. (A missing directory is empty.)
        """
        ...

    def put(self, url: str, *, make_directory: bool = False, spooled: bool = False) -> NewObject:
        """Begin a new object, which appears complete, or not at all. This blocks.

        Args:
            url: The object's URL.
            make_directory: Make a missing directory, if the store has directories.
            spooled: Keep it in a local temporary file until it is complete: for many objects at
                once, whose parts would take much memory.

        Raises:
            ConfigError: The URL names no object.
            StoreError: As in reading, also from the object's methods.
        """
        ...

    async def delete(self, url: str) -> None:
        """Delete an object; one that is not there is not an error.

        Raises:
            StoreError: As in reading.
        """
        ...

    async def aclose(self) -> None:
        """Close connections and files. Bodies that are still open fail."""
        ...


@runtime_checkable
class Copying(Protocol):
    """A store that copies an object by itself; for others :func:`publish` reads and writes it."""

    async def copy(self, url: str, other: str, size: int) -> None:
        """Show an object under another name, in place of an older one.

        A store that can rename it does; elsewhere both names are there.

        Args:
            url: The object's URL.
            other: The other name, in the same directory.
            size: The object's bytes.
        """
        ...


@runtime_checkable
class Cleaning(Protocol):
    """A store in which something is left of a writer that was killed."""

    async def remove_left(self, directory: str, prefixes: Sequence[str]) -> None:
        """Remove what killed writers left of objects whose names begin with a prefix.

        Args:
            directory: A URL up to its last slash.
            prefixes: What the names in it begin with.
        """
        ...


def check_range(start: int, stop: int) -> None:
    """Check that ``[start, stop)`` is a range of bytes.

    Raises:
        ValueError: The range is negative or runs backwards.
    """
    if not 0 <= start <= stop:
        raise ValueError(f"[{start}, {stop}) is not a range of bytes; start must be from 0 to stop")


def check_pin(url: str, pinned: str | None, found: str | None) -> None:
    """Compare the pinned version with the one that the store names.

    Raises:
        ObjectChanged: They differ, or the store names no version.
    """
    if pinned is None or (found is not None and same_version(pinned, found)):
        return
    raise ObjectChanged(
        f"this run reads version {pinned}, but the store now has {found or 'one without a name'}; "
        "start a new run, or put the old object back",
        url=url,
    )


def quote_option(option: str) -> str:
    """Return an option for a message: a name in quotes, an expression as it is."""
    return repr(option) if option.isidentifier() else option


def split_bucket(url: str) -> tuple[str, str | None]:
    """Split a URL of S3 or GCS into bucket (or access point's ARN) and the name in it.

    Returns:
        The bucket and the name; ``None`` in place of the name if no slash follows the bucket.

    Raises:
        ConfigError: The URL names no bucket.
    """
    found = _BUCKET_URL.fullmatch(url)
    if not found:
        scheme = url.partition("://")[0]
        raise ConfigError(f"{url}: this names no bucket; write {scheme}://bucket/object")
    return found[1], found[2]


def check_new_object(url: str) -> None:
    """Check that a URL of S3 or GCS names an object that can be written.

    Raises:
        ConfigError: It names a bucket alone.
        StoreError: It names a directory.
    """
    _, name = split_object(url)
    if name.endswith("/"):
        raise tell("directory", url, writing=True)


def split_object(url: str) -> tuple[str, str]:
    """Split a URL of S3 or GCS into bucket and object.

    Raises:
        ConfigError: The URL names no bucket, or no object in it.
    """
    bucket, name = split_bucket(url)
    if not name:
        scheme = url.partition("://")[0]
        raise ConfigError(f"{url}: this names no object; write {scheme}://bucket/object")
    return bucket, name


def bare_url(url: str) -> str:
    """Return the URL without its user, and without the query of http, where signatures stand.

    Indexes, states and caches identify a shard by this name, so its form must not change. For
    messages, use :func:`streamrec.masking.masked`.
    """
    if "@" not in url and "?" not in url and "#" not in url:  # most of a million
        return url
    found = _HTTP_URL.fullmatch(url)
    if not found:
        return _USER.sub(r"\1", url)
    return found["scheme"] + found["place"] + ("?..." if found["query"] else "")


async def in_thread(
    function: Callable[..., _T], *arguments: object, executor: Executor | None = None
) -> _T:
    """Run a blocking function in a thread, and return only when it is done, even if cancelled."""
    loop = asyncio.get_running_loop()
    return await wait_out(loop.run_in_executor(executor, function, *arguments))


_WEAK = "W/"


def version_of(
    *,
    etag: str | None = None,
    generation: str | int | None = None,
    modified: str | None = None,
    size: int | None = None,
) -> str | None:
    """Return the version of an object: its generation, else its ETag, else time and size.

    A version is text in the form of an ETag, because it is written into indexes and compared with
    what older ones hold: ``"abc"``, ``W/"abc"``, or a generation of Google's in bare digits.
    Everything that names a version makes it here: listings, responses, files and filesystems.

    A time counts whole seconds, so two versions may share one: the result is then weak.

    Args:
        etag: The ETag; some stores write it without quotes in listings.
        generation: Google's number of a version.
        modified: The time of the last change, as HTTP or as ISO 8601 writes it.
        size: The object's size in bytes.

    Returns:
        The version; ``None`` if nothing is said.
    """
    if generation:
        return str(generation)
    if etag and (bare := bare_version(etag)):
        return f'{_WEAK if not is_strong(etag) else ""}"{bare}"'
    if not modified and size is None:
        return None
    return f'{_WEAK}"{_seconds(modified) if modified else "undated"}-{size}"'


def file_version(status: os.stat_result) -> str:
    """Return the version of a local file: its inode, time and size."""
    return f'"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"'


def bare_version(version: str) -> str:
    """Return a version without quotes and the mark of a weak one, for comparison and for keys."""
    return version.strip().removeprefix(_WEAK).strip('"')


def same_version(one: str, other: str) -> bool:
    """Return whether two versions are equal by weak comparison (RFC 9110, 8.8.3.2)."""
    return bare_version(one) == bare_version(other)


def is_strong(version: str) -> bool:
    """Return whether equal versions mean equal bytes, which weak ones do not promise."""
    return bool(version) and not version.strip().startswith(_WEAK)


def _seconds(modified: str) -> str:
    """Return a time in whole seconds since 1970; listings add fractions that responses lack."""
    from email.utils import parsedate_to_datetime  # files have other versions

    for parse in (parsedate_to_datetime, datetime.fromisoformat):
        try:
            time = parse(modified.strip())
        except ValueError:
            continue
        return str(int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()))
    return modified.strip()


RETRIES = 8
"""Consecutive failures without a received byte that are retried."""
SILENCE = 60.0
"""Seconds that a server may send nothing in the middle of a body."""


async def read_range(
    store: Store, found: ObjectInfo, start: int, stop: int, *, retries: int = RETRIES
) -> tuple[ByteArray, ObjectInfo]:
    """Read bytes ``[start, stop)`` of an object, clipped to its end, and its metadata.

    A body that breaks off is resumed at its last byte, in the version that it began with.

    Args:
        store: The object's store.
        found: The object, and the version to read if it names one.
        start: The first byte, from 0.
        stop: One past the last byte.
        retries: Consecutive failures without a received byte that are retried.

    Raises:
        StoreError: It is not retryable, or the last retry failed.
    """
    memory, filled, info = np.empty(0, np.uint8), 0, found
    backoff = Backoff(Random())

    def received(silence: Silence, count: int) -> None:
        nonlocal filled
        silence.heard()
        filled += count
        backoff.reset()

    async def attempt() -> None:
        nonlocal memory, info
        async with store.open_range(info.url, start + filled, stop, etag=info.etag) as body:
            info = body.info
            # Only the answer tells the size. What an attempt that broke off has filled stays.
            if not filled:
                memory = np.empty(max(0, min(stop, info.size or 0) - start), np.uint8)
            try:
                async with Silence(SILENCE) as silence:
                    await body.fill(memory.data[filled:], partial(received, silence))
            except TimeoutError:
                raise StoreUnavailable(
                    "the server sent nothing for too long; check the server and the network",
                    url=info.url,
                ) from None
            if filled < len(memory):
                raise StoreUnavailable("the response ended early; try again", url=info.url)

    try:
        await retry(attempt, backoff, retries)
    except StoreError as error:
        raise error.at(start + filled) from None
    return memory, info
