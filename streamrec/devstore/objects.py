"""The interface of backends, which hold the objects, and the backend in memory."""

from __future__ import annotations

import hashlib
import threading
import time
from abc import abstractmethod
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

import crc32c

__all__ = ["Content", "MemoryObjects", "Objects", "Stored", "digest", "split_name"]

NO_HEADERS: Mapping[str, str] = MappingProxyType({})


def digest(data: bytes | memoryview) -> str:
    """Return the ETag of an object that is written in one piece: the MD5 of its content."""
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


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
class Stored:
    """The metadata of an object."""

    size: int
    etag: str
    """The ETag, without quotes."""
    modified: float
    """The time of modification, in seconds since 1970."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """The headers kept from the request that wrote it: Content-Type, x-amz-meta-…"""
    generation: int = 1
    """Google's version number; later ones are larger."""
    crc32c: int | None = None
    """The CRC-32C of the content, if it is known."""


class Content(Protocol):
    """The content of an open object, which stays as it is if the object is replaced or deleted."""

    def read(self, start: int, stop: int) -> bytes | memoryview:
        """Return bytes from ``start`` on, up to ``stop`` at most."""
        ...

    def close(self) -> None:
        """Release the resources."""
        ...


class Objects(MutableMapping[str, bytes]):
    """A backend: buckets of objects, and a mapping of whole contents by ``bucket/key``.

    All methods may be called from any thread. They raise KeyError for a missing bucket or object.
    """

    @abstractmethod
    def buckets(self) -> list[str]:
        """Return the buckets' names, sorted."""

    @abstractmethod
    def create_bucket(self, bucket: str) -> None:
        """Create the bucket, unless it exists."""

    @abstractmethod
    def delete_bucket(self, bucket: str) -> None:
        """Remove an empty bucket."""

    @abstractmethod
    def keys_of(self, bucket: str, prefix: str = "") -> list[str]:
        """Return the keys in S3's order; those that do not begin with the prefix are optional."""

    @abstractmethod
    async def describe(self, bucket: str, key: str) -> Stored:
        """Return the object's metadata; slow work, such as hashing, is done in a thread."""

    @abstractmethod
    def open(self, bucket: str, key: str) -> Content:
        """Open the object's content for reading."""

    @abstractmethod
    def write(
        self,
        bucket: str,
        key: str,
        data: bytes,
        headers: Mapping[str, str] = NO_HEADERS,
        etag: str | None = None,
    ) -> Stored:
        """Write or replace the object as a whole; a missing bucket is created."""

    @abstractmethod
    def remove(self, bucket: str, key: str) -> None:
        """Delete the object."""

    def __setitem__(self, name: str, data: bytes) -> None:
        bucket, key = split_name(name)
        self.write(bucket, key, data)

    def __delitem__(self, name: str) -> None:
        self.remove(*split_name(name))

    def __iter__(self) -> Iterator[str]:
        for bucket in self.buckets():
            yield from (f"{bucket}/{key}" for key in self.keys_of(bucket))

    def __len__(self) -> int:
        return sum(len(self.keys_of(bucket)) for bucket in self.buckets())


class _MemoryContent:
    def __init__(self, data: bytes) -> None:
        self._view = memoryview(data)

    def read(self, start: int, stop: int) -> memoryview:
        return self._view[start:stop]

    def close(self) -> None:
        """Do nothing: writes to the socket may still refer to the view."""


class MemoryObjects(Objects):
    """A backend that keeps objects in memory."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._buckets: dict[str, dict[str, tuple[bytes, Stored]]] = {}
        self._sorted: dict[str, list[str]] = {}
        self._generation = 0

    def buckets(self) -> list[str]:
        """Return the buckets' names, sorted."""
        with self._lock:
            return sorted(self._buckets)

    def create_bucket(self, bucket: str) -> None:
        """Create the bucket, unless it exists."""
        with self._lock:
            self._create(bucket)

    def delete_bucket(self, bucket: str) -> None:
        """Remove an empty bucket."""
        with self._lock:
            del self._buckets[bucket], self._sorted[bucket]

    def keys_of(self, bucket: str, prefix: str = "") -> list[str]:
        """Return the keys, sorted."""
        with self._lock:
            keys = self._sorted[bucket]
            return keys[bisect_left(keys, prefix) :]

    async def describe(self, bucket: str, key: str) -> Stored:
        """Return the object's metadata."""
        return self._buckets[bucket][key][1]

    def open(self, bucket: str, key: str) -> Content:
        """Open the object's content for reading."""
        return _MemoryContent(self._buckets[bucket][key][0])

    def write(
        self,
        bucket: str,
        key: str,
        data: bytes,
        headers: Mapping[str, str] = NO_HEADERS,
        etag: str | None = None,
    ) -> Stored:
        """Write or replace the object as a whole."""
        crc = crc32c.crc32c(data)
        with self._lock:
            self._create(bucket)
            now = time.time()
            self._generation = max(self._generation + 1, int(now * 1e6))
            stored = Stored(len(data), etag or digest(data), now, headers, self._generation, crc)
            if key not in self._buckets[bucket]:
                insort(self._sorted[bucket], key)
            self._buckets[bucket][key] = (bytes(data), stored)
        return stored

    def remove(self, bucket: str, key: str) -> None:
        """Delete the object."""
        with self._lock:
            del self._buckets[bucket][key]
            keys = self._sorted[bucket]
            del keys[bisect_left(keys, key)]

    def __getitem__(self, name: str) -> bytes:
        bucket, key = split_name(name)
        return self._buckets[bucket][key][0]

    def _create(self, bucket: str) -> None:
        self._buckets.setdefault(bucket, {})
        self._sorted.setdefault(bucket, [])
