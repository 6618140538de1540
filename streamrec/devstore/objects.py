"""The interface of backends, which hold the objects, and the backend in memory."""

from __future__ import annotations

import hashlib
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NoReturn

from streamrec.devstore.errors import Refusal

NO_HEADERS: Mapping[str, str] = MappingProxyType({})


def digest(data: bytes | memoryview) -> str:
    """Return the ETag of an object: the MD5 of its content."""
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def etag_of_parts(etags: Sequence[str]) -> str:
    """Return the ETag of an object of parts with these ETags, whose content is not read again.

    Source: AWS, "Amazon S3 User Guide", "Checking object integrity": the MD5 of the parts' MD5s,
    and the number of parts.
    """
    return f"{digest(bytes.fromhex(''.join(etags)))}-{len(etags)}"


def split_name(name: str) -> tuple[str, str]:
    """Split ``bucket/key``.

    Raises:
        KeyError: The bucket or the key is missing.
    """
    bucket, _, key = name.partition("/")
    if not bucket or not key:
        raise KeyError(name)
    return bucket, key


@dataclass(frozen=True, slots=True)
class StoredObject:
    """The metadata of an object."""

    size: int
    etag: str
    """The ETag, without quotes."""
    modified: float
    """The time of modification, in seconds since 1970."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """The headers that each read returns, such as Content-Encoding."""
    generation: int = 1
    """Google's version number; later ones are larger."""


@dataclass(frozen=True, slots=True)
class Content:
    """The content of an open object, which stays as it is if the object is replaced or deleted."""

    read: Callable[[int, int], bytes | memoryview]
    """A function that returns bytes from a start on, up to a stop at most."""
    close: Callable[[], object] = lambda: None
    """A function that releases the resources."""


class Objects(MutableMapping[str, bytes]):
    """A backend: buckets of objects, and a mapping of whole contents by ``bucket/key``.

    All methods may be called from any thread. They raise KeyError for a missing bucket or object.
    """

    @abstractmethod
    def buckets(self) -> list[str]:
        """Return the buckets' names, sorted."""

    @abstractmethod
    def keys_of(self, bucket: str, prefix: str = "") -> list[str]:
        """Return the keys in S3's order; those that do not begin with the prefix are optional."""

    @abstractmethod
    async def describe(self, bucket: str, key: str) -> StoredObject:
        """Return the object's metadata; slow work, such as hashing, is done in a thread."""

    @abstractmethod
    def open(self, bucket: str, key: str) -> Content:
        """Open the object's content for reading."""

    @abstractmethod
    def create_bucket(self, bucket: str) -> None:
        """Create the bucket, unless it exists."""

    @abstractmethod
    def write(
        self,
        bucket: str,
        key: str,
        data: bytes,
        headers: Mapping[str, str] = NO_HEADERS,
        etag: str | None = None,
    ) -> StoredObject:
        """Write or replace the object as a whole; a missing bucket is created.

        Args:
            bucket: The bucket's name.
            key: The object's key.
            data: The object's content.
            headers: The headers that each later read returns.
            etag: The ETag, where it is known; else it is the MD5 of the content.
        """

    def __setitem__(self, name: str, data: bytes) -> None:
        self.write(*split_name(name), data)

    def __iter__(self) -> Iterator[str]:
        for bucket in self.buckets():
            yield from (f"{bucket}/{key}" for key in self.keys_of(bucket))

    def __len__(self) -> int:
        return sum(len(self.keys_of(bucket)) for bucket in self.buckets())


def _refuse(*_: object, **__: object) -> NoReturn:
    raise Refusal(405, "MethodNotAllowed")


class ReadOnlyObjects(Objects):
    """A backend of objects that cannot be changed."""

    def create_bucket(self, bucket: str) -> None:
        """Refuse to create a bucket, unless it exists."""
        if bucket not in self.buckets():
            _refuse()

    write = __delitem__ = _refuse


class MemoryObjects(Objects):
    """A backend that keeps objects in memory."""

    def __init__(self) -> None:
        self._writing = threading.Lock()
        self._buckets: dict[str, dict[str, tuple[bytes, StoredObject]]] = {}
        self._generation = 0

    def buckets(self) -> list[str]:
        """Return the buckets' names, sorted."""
        return sorted(self._buckets)

    def create_bucket(self, bucket: str) -> None:
        """Create the bucket, unless it exists."""
        self._buckets.setdefault(bucket, {})

    def keys_of(self, bucket: str, _prefix: str = "") -> list[str]:
        """Return the keys, sorted."""
        return sorted(self._buckets[bucket])

    async def describe(self, bucket: str, key: str) -> StoredObject:
        """Return the object's metadata."""
        return self._buckets[bucket][key][1]

    def open(self, bucket: str, key: str) -> Content:
        """Open the object's content for reading."""
        view = memoryview(self._buckets[bucket][key][0])
        return Content(lambda start, stop: view[start:stop])

    def write(
        self,
        bucket: str,
        key: str,
        data: bytes,
        headers: Mapping[str, str] = NO_HEADERS,
        etag: str | None = None,
    ) -> StoredObject:
        """Write or replace the object as a whole; a missing bucket is created."""
        etag, now = etag or digest(data), time.time()
        with self._writing:
            self._generation = max(self._generation + 1, int(now * 1e6))
            stored = StoredObject(len(data), etag, now, headers, self._generation)
            self._buckets.setdefault(bucket, {})[key] = (bytes(data), stored)
        return stored

    def __getitem__(self, name: str) -> bytes:
        bucket, key = split_name(name)
        return self._buckets[bucket][key][0]

    def __delitem__(self, name: str) -> None:
        bucket, key = split_name(name)
        del self._buckets[bucket][key]
