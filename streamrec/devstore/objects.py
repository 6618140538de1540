"""Where the objects are: the interface of the backends, and the one in memory."""

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
    """The ETag of an object that was written in one piece: the MD5 of its content."""
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def split_name(name: str) -> tuple[str, str]:
    """``bucket/key`` as bucket and key.

    Raises:
        KeyError: One of them is missing.
    """
    bucket, _, key = name.partition("/")
    if not bucket or not key:
        raise KeyError(name)
    return bucket, key


@dataclass(frozen=True, slots=True)
class Stored:
    """What is known about an object without its content."""

    size: int
    etag: str
    """Without quotes."""
    modified: float
    """Seconds since 1970."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Kept from the request that wrote it: Content-Type, x-amz-meta-…"""
    generation: int = 1
    """Google's word for the version; a later one is larger."""
    crc32c: int | None = None
    """Where it is known."""


class Content(Protocol):
    """An open object: replacing or deleting it meanwhile does not change what is read."""

    def read(self, start: int, stop: int) -> bytes | memoryview:
        """Bytes ``[start, stop)``."""
        ...

    def close(self) -> None:
        """Give back what reading needs."""
        ...


class Objects(MutableMapping[str, bytes]):
    """Buckets of objects; as a mapping, whole contents by ``bucket/key``.

    Everything may be called from any thread. A missing bucket or object is a KeyError.
    """

    @abstractmethod
    def buckets(self) -> list[str]:
        """Names, sorted."""

    @abstractmethod
    def create_bucket(self, bucket: str) -> None:
        """Make the bucket, unless it is there."""

    @abstractmethod
    def delete_bucket(self, bucket: str) -> None:
        """Remove an empty bucket."""

    @abstractmethod
    def keys_of(self, bucket: str, prefix: str = "") -> list[str]:
        """Keys, sorted as S3 sorts them; some that do not begin with the prefix may be left out."""

    @abstractmethod
    async def describe(self, bucket: str, key: str) -> Stored:
        """Size, ETag, …; what takes time to find out is done in a thread."""

    @abstractmethod
    def open(self, bucket: str, key: str) -> Content:
        """Begin to read."""

    @abstractmethod
    def write(
        self,
        bucket: str,
        key: str,
        data: bytes,
        headers: Mapping[str, str] = NO_HEADERS,
        etag: str | None = None,
    ) -> Stored:
        """Replace the object as a whole, in a bucket that is made if missing."""

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
        """The view goes when the last write that refers to it does."""


class MemoryObjects(Objects):
    """Objects as ``bytes``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._buckets: dict[str, dict[str, tuple[bytes, Stored]]] = {}
        self._sorted: dict[str, list[str]] = {}
        self._generation = 0

    def buckets(self) -> list[str]:
        """Names, sorted."""
        with self._lock:
            return sorted(self._buckets)

    def create_bucket(self, bucket: str) -> None:
        """Make the bucket, unless it is there."""
        with self._lock:
            self._create(bucket)

    def delete_bucket(self, bucket: str) -> None:
        """Remove an empty bucket."""
        with self._lock:
            del self._buckets[bucket], self._sorted[bucket]

    def keys_of(self, bucket: str, prefix: str = "") -> list[str]:
        """Keys, sorted."""
        with self._lock:
            keys = self._sorted[bucket]
            return keys[bisect_left(keys, prefix) :]

    async def describe(self, bucket: str, key: str) -> Stored:
        """Size, ETag and the rest."""
        return self._buckets[bucket][key][1]

    def open(self, bucket: str, key: str) -> Content:
        """Begin to read."""
        return _MemoryContent(self._buckets[bucket][key][0])

    def write(
        self,
        bucket: str,
        key: str,
        data: bytes,
        headers: Mapping[str, str] = NO_HEADERS,
        etag: str | None = None,
    ) -> Stored:
        """Replace the object as a whole."""
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
