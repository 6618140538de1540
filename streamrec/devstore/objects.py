"""The backends, which hold the objects: in memory, as files, or as repetitions of a few files.

A TFRecord shard repeated end to end is a valid TFRecord shard. Terabytes of valid shards thus take
the memory of one.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import cycle
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

from pydantic import Field, PositiveInt, field_validator

from streamrec.config.lazy_settings import validate
from streamrec.config.validation import Settings
from streamrec.devstore.refusals import Refusal
from streamrec.errors import ConfigError

LARGEST_PIECE = 1 << 20


def _plain(name: str) -> bool:
    """Return whether each part of a path is a plain file name, and not ``.`` or ``..``."""
    return all(part not in ("", ".", "..") for part in name.split("/"))


def _encodable(key: str) -> bool:
    """Return whether a file's name is valid UTF-8, as keys must be."""
    return not any("\ud800" <= letter <= "\udfff" for letter in key)


def _describe(path: Path, modified: int, size: int) -> StoredObject:
    """Return the metadata of a file, whose time of modification is in nanoseconds."""
    with path.open("rb") as file:
        etag = hashlib.file_digest(file, "md5").hexdigest()
    return StoredObject(size, etag, modified / 1e9, generation=modified)


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
            # By the clock, as Google's, and rising even if the clock goes back.
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


class Recipe(Settings):
    """The description of a bucket's objects."""

    templates: list[Path] = Field(min_length=1)
    """Files with the contents, not empty; the objects use them in turn."""
    name: str = "shard-{:05}"
    """The name of an object, to be formatted with its number, from 0."""
    objects: PositiveInt
    """The number of objects."""
    copies: PositiveInt = 1
    """The number of times that an object repeats its template."""

    @field_validator("name")
    @classmethod
    def _check_numbered(cls, name: str) -> str:
        try:
            different = name.format(0) != name.format(1)
        except (ValueError, LookupError):
            different = False
        if not different:
            raise ValueError("holds no number; write it like shard-{:05}")
        return name


class SyntheticObjects(ReadOnlyObjects):
    """A read-only backend of synthetic objects.

    Args:
        recipes: The recipe of each bucket, by its name.

    Raises:
        OSError: A template cannot be read.
        ConfigError: A template is empty.
    """

    def __init__(self, recipes: Mapping[str, Recipe]) -> None:
        self._buckets = {bucket: _objects_of(recipe) for bucket, recipe in recipes.items()}
        self._keys = {bucket: sorted(objects) for bucket, objects in self._buckets.items()}

    @classmethod
    def from_json(cls, plain: Any) -> SyntheticObjects:
        """Return the backend for a JSON object of recipes by bucket.

        Raises:
            ConfigError: The argument is not such an object, or names or values are wrong.
        """
        if not isinstance(plain, dict) or not all(isinstance(one, dict) for one in plain.values()):
            raise ConfigError(
                "synthetic objects must be a JSON object of recipes by bucket; correct the file"
            )
        return cls(
            {name: validate(Recipe, one, where=name, strict=False) for name, one in plain.items()}
        )

    def buckets(self) -> list[str]:
        """Return the buckets' names, sorted."""
        return sorted(self._buckets)

    def keys_of(self, bucket: str, _prefix: str = "") -> list[str]:
        """Return the keys, sorted."""
        return self._keys[bucket]

    async def describe(self, bucket: str, key: str) -> StoredObject:
        """Return the object's metadata; each template is hashed once, in a thread."""
        template = self._buckets[bucket][key]
        # cached_property keeps its value there: only the first call needs a thread.
        if "stored" not in vars(template):
            await asyncio.to_thread(lambda: template.stored)
        return template.stored

    def open(self, bucket: str, key: str) -> Content:
        """Open the object's content for reading."""
        return Content(self._buckets[bucket][key].read)

    def __getitem__(self, name: str) -> bytes:
        bucket, _, key = name.partition("/")
        template = self._buckets[bucket][key]
        return bytes(template.content) * template.copies


class _Template:
    def __init__(self, path: Path, copies: int) -> None:
        # Not mapped from the file: reading an evicted page again would delay all responses.
        self.content = memoryview(path.read_bytes())
        if not self.content:
            raise ConfigError(f"{path} is empty; name a file that holds a shard")
        self.modified = path.stat().st_mtime
        self.copies = copies

    @cached_property
    def stored(self) -> StoredObject:
        """The metadata of the template's objects."""
        # Not the MD5 of the content, which may be larger than memory; other contents have another
        # one all the same.
        etag = digest(f"{digest(self.content)} {self.copies}".encode())
        return StoredObject(len(self.content) * self.copies, etag, self.modified)

    def read(self, start: int, stop: int) -> memoryview:
        """Return bytes from ``start`` on, up to the end of a copy, in memory that all share."""
        # A read ends with a copy of the template, and the sender asks again.
        begin = start % len(self.content)
        return self.content[begin : begin + min(stop - start, LARGEST_PIECE)]


def _objects_of(recipe: Recipe) -> dict[str, _Template]:
    """Return the template of each object by its key."""
    templates = cycle([_Template(path, recipe.copies) for path in recipe.templates])
    return {recipe.name.format(n): next(templates) for n in range(recipe.objects)}


class DirectoryObjects(ReadOnlyObjects):
    """A read-only backend of the files below a directory.

    An ETag is the MD5 of the content. It is computed when it is first needed, and again when the
    file's time or size has changed.

    Args:
        root: The directory that holds the buckets.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._known: dict[tuple[Path, int, int], StoredObject] = {}

    def buckets(self) -> list[str]:
        """Return the buckets' names, sorted."""
        return sorted(entry.name for entry in self.root.iterdir() if entry.is_dir())

    def keys_of(self, bucket: str, prefix: str = "") -> list[str]:
        """Return the sorted keys below the directory of the prefix; only that one is searched."""
        if bucket not in self.buckets():
            raise KeyError(bucket)
        base, parent = self.root / bucket, prefix.rpartition("/")[0]
        if parent and not _plain(parent):
            return []
        # A store has no directories, and links that lead nowhere are no objects.
        files = (path for path in (base / parent).rglob("*") if path.is_file())
        return sorted(filter(_encodable, (str(path.relative_to(base)) for path in files)))

    async def describe(self, bucket: str, key: str) -> StoredObject:
        """Return the object's size, ETag, …; the content is hashed in a thread."""
        path = self._file(bucket, key)
        status = path.stat()
        version = (path, status.st_mtime_ns, status.st_size)
        if version not in self._known:
            self._known[version] = await asyncio.to_thread(_describe, *version)
        return self._known[version]

    def open(self, bucket: str, key: str) -> Content:
        """Open the object's file, which stays readable if it is replaced meanwhile."""
        file = os.open(self._file(bucket, key), os.O_RDONLY | os.O_CLOEXEC)
        # In the event loop's thread: the files are in the page cache, and a thread costs more.
        return Content(
            lambda start, stop: os.pread(file, stop - start, start), partial(os.close, file)
        )

    def __getitem__(self, name: str) -> bytes:
        return self._file(*split_name(name)).read_bytes()

    def _file(self, bucket: str, key: str) -> Path:
        name = f"{bucket}/{key}"
        path = self.root / name
        if not _plain(name) or not path.is_file():
            raise KeyError(name)
        return path
