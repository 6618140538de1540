"""Objects that are files ``ROOT/bucket/key``."""

from __future__ import annotations

import asyncio
import hashlib
import os
from functools import partial
from typing import TYPE_CHECKING

from streamrec.devstore.objects import Content, ReadOnlyObjects, StoredObject, split_name

if TYPE_CHECKING:
    from pathlib import Path


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
        files = (path for path in (base / parent).rglob("*") if path.is_file())
        return sorted(filter(_encodable, (str(path.relative_to(base)) for path in files)))

    async def describe(self, bucket: str, key: str) -> StoredObject:
        """Return the object's size, ETag, …; the content is hashed in a thread."""
        path = self._file(bucket, key)
        status = path.stat()
        version = (path, status.st_mtime_ns, status.st_size)
        if version not in self._known:
            self._known[version] = await asyncio.to_thread(_stored, *version)
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


def _plain(name: str) -> bool:
    """Return whether each part of a path is a plain file name, and not ``.`` or ``..``."""
    return all(part not in ("", ".", "..") for part in name.split("/"))


def _encodable(key: str) -> bool:
    """Return whether a file's name is valid UTF-8, as keys must be."""
    return not any("\ud800" <= letter <= "\udfff" for letter in key)


def _stored(path: Path, modified: int, size: int) -> StoredObject:
    """Return the metadata of a file, whose time of modification is in nanoseconds."""
    with path.open("rb") as file:
        etag = hashlib.file_digest(file, "md5").hexdigest()
    return StoredObject(size, etag, modified / 1e9, generation=modified)
