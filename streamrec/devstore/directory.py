"""Objects kept as files ``ROOT/bucket/key``. Files that other programs put there are served too."""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import crc32c

from streamrec.devstore.errors import Refusal
from streamrec.devstore.objects import NO_HEADERS, Objects, Stored, digest, split_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["DirectoryObjects"]

HASHED_SLICE = 1 << 20


class _FileContent:
    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self, start: int, stop: int) -> bytes:
        # In the event loop's thread: the files are in the page cache, and a thread costs more.
        return os.pread(self._file, stop - start, start)

    def close(self) -> None:
        os.close(self._file)


class DirectoryObjects(Objects):
    """A backend that keeps objects as files below a directory.

    An ETag is the MD5 of the content. It is computed when it is first needed, and again when the
    file's time or size has changed. Names directly below the root that begin with a dot belong to
    the backend.

    Args:
        root: The directory that holds the buckets; created if missing.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._unfinished = self.root / ".unfinished"
        self._unfinished.mkdir(parents=True, exist_ok=True)
        self._hashing = threading.Lock()
        self._known: dict[Path, Stored] = {}

    def buckets(self) -> list[str]:
        """Return the buckets' names, sorted."""
        entries = self.root.iterdir()
        return sorted(e.name for e in entries if e.is_dir() and not e.name.startswith("."))

    def create_bucket(self, bucket: str) -> None:
        """Create the bucket, unless it exists."""
        self._path(bucket).mkdir(exist_ok=True)

    def delete_bucket(self, bucket: str) -> None:
        """Remove an empty bucket, and the empty directories in it."""
        for directory, _, _ in os.walk(self._bucket(bucket), topdown=False):
            Path(directory).rmdir()

    def keys_of(self, bucket: str, prefix: str = "") -> list[str]:
        """Return the sorted keys below the directory of the prefix; only that one is searched."""
        base = self._bucket(bucket)
        parent = prefix.rpartition("/")[0]
        if parent and not _plain(parent):
            return []
        return sorted(key for key in _files(base, base / parent) if _encodable(key))

    async def describe(self, bucket: str, key: str) -> Stored:
        """Return the object's size, ETag, …; the content is hashed in a thread."""
        path = self._file(bucket, key)
        found = self._current(path)
        return await asyncio.to_thread(self._hash, path) if found is None else found

    def open(self, bucket: str, key: str) -> _FileContent:
        """Open the object's file, which stays readable if it is replaced meanwhile."""
        return _FileContent(self._file(bucket, key))

    def write(
        self,
        bucket: str,
        key: str,
        data: bytes,
        headers: Mapping[str, str] = NO_HEADERS,
        etag: str | None = None,
    ) -> Stored:
        """Replace the file atomically."""
        path = self._path(bucket, key)
        self._make_room(path)
        handle, temporary = tempfile.mkstemp(dir=self._unfinished)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        modified, size = _version(Path(temporary))
        crc, etag = crc32c.crc32c(data), etag or digest(data)
        stored = Stored(size, etag, modified / 1e9, headers, modified, crc)
        Path(temporary).replace(path)
        self._known[path] = stored
        return stored

    def remove(self, bucket: str, key: str) -> None:
        """Delete the file, and the directories that it leaves empty."""
        path = self._file(bucket, key)
        path.unlink()
        self._known.pop(path, None)
        for parent in path.relative_to(self.root / bucket).parents[:-1]:
            directory = self.root / bucket / parent
            if any(directory.iterdir()):
                return
            directory.rmdir()

    def __getitem__(self, name: str) -> bytes:
        return self._file(*split_name(name)).read_bytes()

    def _current(self, path: Path) -> Stored | None:
        """Return the known metadata, unless the file has changed since."""
        known = self._known.get(path)
        is_current = known is not None and (known.generation, known.size) == _version(path)
        return known if is_current else None

    def _hash(self, path: Path) -> Stored:
        with self._hashing:  # a second thread finds the result of the first
            if found := self._current(path):
                return found
            modified, size = _version(path)
            headers = self._known[path].headers if path in self._known else NO_HEADERS
            etag, crc = _digests_of(path)
            stored = Stored(size, etag, modified / 1e9, headers, modified, crc)
            self._known[path] = stored
            return stored

    def _bucket(self, bucket: str) -> Path:
        path = self._path(bucket)
        if not path.is_dir():
            raise KeyError(bucket)
        return path

    def _file(self, bucket: str, key: str) -> Path:
        path = self._path(bucket, key)
        if not path.is_file():
            raise KeyError(f"{bucket}/{key}")
        return path

    def _path(self, bucket: str, key: str | None = None) -> Path:
        parts = [bucket] if key is None else [bucket, *key.split("/")]
        if bucket.startswith(".") or not _plain("/".join(parts)):
            message = "This store keeps objects as files, and the name is no valid path of a file."
            raise Refusal(400, "InvalidArgument", message)
        return self.root.joinpath(*parts)

    def _make_room(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise _both_file_and_directory() from None
        if path.is_dir():
            raise _both_file_and_directory()


def _plain(name: str) -> bool:
    """Return whether each part of a path is a plain file name, and not ``.`` or ``..``."""
    return all(part not in ("", ".", "..") and "\0" not in part for part in name.split("/"))


def _encodable(key: str) -> bool:
    """Return whether a file's name is valid UTF-8, as keys must be."""
    return not any("\ud800" <= letter <= "\udfff" for letter in key)


def _files(base: Path, directory: Path) -> Iterator[str]:
    for parent, _, names in os.walk(directory):
        inside = os.path.relpath(parent, base)
        yield from (name if inside == "." else f"{inside}/{name}" for name in names)


def _version(path: Path) -> tuple[int, int]:
    """Return the modification time in nanoseconds, and the size."""
    status = path.stat()
    return status.st_mtime_ns, status.st_size


def _digests_of(path: Path) -> tuple[str, int]:
    """Return the MD5 and the CRC-32C of a file."""
    md5, crc = hashlib.md5(usedforsecurity=False), 0
    with path.open("rb") as file:
        while piece := file.read(HASHED_SLICE):
            md5.update(piece)
            crc = crc32c.crc32c(piece, crc)
    return md5.hexdigest(), crc


def _both_file_and_directory() -> Refusal:
    message = "This store keeps objects as files: one name cannot be a file and a directory."
    return Refusal(409, "OperationAborted", message)
