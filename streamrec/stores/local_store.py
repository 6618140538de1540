"""The store of local files: plain paths and ``file://`` URLs.

A new object is a hidden file in its directory, so that renaming it is atomic; globs skip it. Its
writer holds a lock, which the kernel releases when the process ends. A part file without a lock was
left behind, and the next writer of the object removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn

from streamrec.config.named_files import check_regular, open_regular
from streamrec.config.places import FILE
from streamrec.errors import ConfigError, ObjectNotFound, StoreUnavailable
from streamrec.masking import masked
from streamrec.stores.base.foreign_errors import local_meaning, translate_errors
from streamrec.stores.base.new_object import BUFFER, GuardedObject
from streamrec.stores.base.protocol import (
    ObjectInfo,
    check_pin,
    check_range,
    file_version,
    in_thread,
    let_pass,
)
from streamrec.surroundings import absolute

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
    from concurrent.futures import Executor
    from io import FileIO

    from streamrec.stores.base.protocol import BeforeRequest, NewObject


class PartFile:
    """A new hidden file for an object, locked while it is written.

    Args:
        path: The object's path.

    Raises:
        OSError: It cannot be created.
        ConfigError: The working directory, which the path is below, was deleted.
    """

    def __init__(self, path: Path) -> None:
        path = absolute(path)  # the program may change its directory before the end
        if path.is_dir():
            raise IsADirectoryError(None, "is a directory")
        if path.exists():
            check_regular(path.stat())  # the object's name would replace a device or a FIFO
        self._object = path
        names = _names(path)
        self._path, self._file = next(filter(None, map(_create, names)))
        self.write, self.flush = self._file.write, self._file.flush
        # Each writer takes the first free name, so what others left stands right behind.
        while _remove_if_left(next(names)):
            pass

    def commit(self) -> None:
        """Make the object visible: rename the file, and only then release the lock."""
        self._file.flush()
        # The bytes first: a new name may reach the disk before them, and a power failure in between
        # would leave an empty object.
        os.fsync(self._file.fileno())
        self._path.replace(self._object)
        # Closing releases the lock; a part file without one is taken for what a killed writer left.
        self._file.close()
        _sync_directory(self._object.parent)

    def discard(self) -> None:
        """Remove the file, unless it is committed."""
        if not self._file.closed:
            # Where it may not be removed any more, the next writer of the object removes it.
            with contextlib.suppress(OSError):
                self._path.unlink()
        # Closing flushes, which fails again on a full disk; the file is removed anyway.
        with contextlib.suppress(OSError):
            self._file.close()


def remove_left(directory: Path, prefixes: tuple[str, ...]) -> None:
    """Remove the part files without a writer, of objects whose names begin with a prefix."""
    for part in directory.iterdir():
        if part.name.endswith(".part") and part.name.removeprefix(".").startswith(prefixes):
            _remove_if_left(part)


def _sync_directory(path: Path) -> None:
    """Flush a directory to the disk, so that a new name in it survives a power failure."""
    directory = os.open(path, os.O_RDONLY)
    # Some network filesystems refuse this; the object is visible all the same.
    with contextlib.suppress(OSError):
        os.fsync(directory)
    os.close(directory)


def _names(path: Path) -> Iterator[Path]:
    """Yield the names that an object's part files may have, one for each concurrent writer."""
    # The names are fixed, because searching a directory of many shards takes long.
    yield path.with_name(f".{path.name}.part")
    for number in count(1):
        yield path.with_name(f".{path.name}.{number}.part")


def _create(part: Path) -> tuple[Path, IO[bytes]] | None:
    """Create and lock the file; return ``None`` if another writer has it."""
    while True:
        _remove_if_left(part)
        try:
            file = part.open("xb", buffering=BUFFER)
        except FileExistsError:
            return None
        # Without support for locks, every part file counts as being written and none is removed.
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        if _is_at(part, file.fileno()):
            return part, file
        file.close()  # another writer removed it before it was locked


def _remove_if_left(part: Path) -> bool:
    """Remove the file unless a writer holds it; return whether it existed."""
    try:
        # A link is not followed: what it leads to is nobody's part file.
        file = os.open(part, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_at(part, file):  # else it has just been renamed to the object
            part.unlink()
    except OSError:
        pass  # another writer holds it, or the filesystem does not support locks
    finally:
        os.close(file)
    return True


def _is_at(path: Path, file: int) -> bool:
    """Return whether the path names the open file."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(file))
    except FileNotFoundError:
        return False


class LocalBody:
    """A range of an open file; each read is one call in a thread, directly into the view."""

    def __init__(self, info: ObjectInfo, file: FileIO, length: int, threads: Executor) -> None:
        self.info = info
        self._file = file
        self._left = length
        self._threads = threads

    async def fill(self, view: memoryview, on_received: Callable[[int], None]) -> None:
        """Fill a view with as many calls as that takes; see :class:`RangeBody`."""
        view = view[: self._left]
        while view:
            try:
                count = await in_thread(self._read, view, executor=self._threads)
            except OSError as error:
                _refuse(self.info.url, error)
            if not count:
                raise StoreUnavailable(
                    f"the file ends {self._left} bytes before its size; check that nothing "
                    "rewrites it",
                    url=self.info.url,
                )
            self._left -= count
            view = view[count:]
            on_received(count)

    def _read(self, view: memoryview) -> int:
        """Read into the view, and close the file after its last byte."""
        count = self._file.readinto(view)
        # Closing here saves the event loop a system call.
        if count == self._left:
            self._file.close()
        return count


class LocalStore:
    """The store of local files; what may wait for a disk is done in threads.

    Args:
        _storage_options: A disk has none; stores are made in the same way.
        before_request: Called before a file is opened or a directory is read.
    """

    def __init__(
        self,
        _storage_options: Mapping[str, Any] | None = None,
        *,
        before_request: BeforeRequest = let_pass,
    ) -> None:
        self._before_request = before_request
        # Data in the page cache is copied by the thread's core; more threads would only compete.
        self._threads = ThreadPoolExecutor(max(2, os.cpu_count() or 1), "streamrec-read")

    @asynccontextmanager
    async def open_range(
        self, url: str, start: int, stop: int, *, etag: str | None = None
    ) -> AsyncIterator[LocalBody]:
        """Read a range; the version is inode, mtime and size; see :class:`Store`."""
        check_range(start, stop)
        self._before_request(stop - start)
        file, info, length = await _open_in_thread(url, start, stop)
        try:
            check_pin(url, etag, info.etag)
            yield LocalBody(info, file, length, self._threads)
        finally:
            file.close()

    async def list(self, prefix: str, *, recursive: bool = True) -> AsyncIterator[ObjectInfo]:
        """List the directories below a prefix, one call in a thread each; see :class:`Store`."""
        seen: set[tuple[int, int]] = set()
        pending = [prefix[: prefix.rfind("/") + 1]]
        while pending:
            self._before_request(0)
            files, directories = await in_thread(_scan, pending.pop(), prefix, seen)
            for info in files:
                yield info
            if recursive:
                pending += directories

    def put(self, url: str, *, make_directory: bool = False, spooled: bool = False) -> NewObject:  # noqa: ARG002 - a file is spooled anyway
        """Begin a hidden file, which is renamed when it is complete; see :class:`Store`."""
        path = Path(path_of(url))
        with translate_errors(url, writing=True):
            if make_directory:
                path.parent.mkdir(parents=True, exist_ok=True)
            return GuardedObject(url, PartFile(path))

    async def delete(self, url: str) -> None:
        """Remove a file; see :class:`Store`."""
        with suppress(ObjectNotFound):
            await self._call(url, Path(path_of(url)).unlink)

    async def copy(self, url: str, other: str, size: int) -> None:  # noqa: ARG002 - of any size
        """Rename a file; see :class:`Copying`."""
        await self._call(other, Path(path_of(url)).replace, path_of(other))

    async def remove_left(self, directory: str, prefixes: Sequence[str]) -> None:
        """Remove part files without a writer; see :class:`Cleaning`."""
        await self._call(directory, remove_left, Path(path_of(directory)), tuple(prefixes))

    async def _call(self, url: str, function: Callable[..., object], *arguments: object) -> None:
        with translate_errors(url, writing=True):
            await in_thread(function, *arguments, executor=self._threads)

    async def aclose(self) -> None:
        """Stop the threads; no files are open between ranges."""
        self._threads.shutdown(wait=False)


def path_of(url: str) -> str:
    """Return the path of a ``file://`` URL or path; nothing in it is decoded or expanded.

    Raises:
        ConfigError: No file can have this name.
    """
    path = url.removeprefix(FILE)
    try:
        is_name = b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        is_name = False
    if not is_name:
        raise ConfigError(f"{masked(url)!r} cannot be the name of a file; correct it")
    return path


async def _open_in_thread(url: str, start: int, stop: int) -> tuple[FileIO, ObjectInfo, int]:
    """Open the file in a thread; close it if the call is cancelled."""
    opened: list[FileIO] = []
    try:
        return await in_thread(_open, url, start, stop, opened)
    except BaseException:
        for file in opened:
            file.close()
        raise


def _open(url: str, start: int, stop: int, opened: list[FileIO]) -> tuple[FileIO, ObjectInfo, int]:
    try:
        file = io.FileIO(path_of(url), opener=open_regular)
        opened.append(file)
        info = _describe(url, os.fstat(file.fileno()))
        file.seek(start)
    except OSError as error:
        _refuse(url, error)
    return file, info, max(0, min(stop, info.size or 0) - start)


def _describe(url: str, status: os.stat_result) -> ObjectInfo:
    return ObjectInfo(url, status.st_size, file_version(status))


def _scan(
    directory: str, prefix: str, seen: set[tuple[int, int]]
) -> tuple[list[ObjectInfo], list[str]]:
    """Return a directory's files that begin with the prefix, and the directories to go on with.

    Symbolic links are followed; ``seen`` ends a loop of them.
    """
    path = path_of(directory) or "."
    try:
        here = os.stat(path)  # noqa: PTH116 - paths are plain strings here
        if (here.st_dev, here.st_ino) in seen:
            return [], []
        seen.add((here.st_dev, here.st_ino))
        with os.scandir(path) as entries:
            return _sort_out(entries, directory, prefix)
    except (FileNotFoundError, NotADirectoryError):
        return [], []
    except OSError as error:
        _refuse(directory, error)


def _sort_out(
    entries: os._ScandirIterator[str], directory: str, prefix: str
) -> tuple[list[ObjectInfo], list[str]]:
    files: list[ObjectInfo] = []
    directories: list[str] = []
    for entry in entries:
        url = directory + entry.name
        if entry.is_dir():
            if f"{url}/".startswith(prefix):
                directories.append(f"{url}/")
        elif url.startswith(prefix):
            # A FIFO, or a link that leads nowhere, is told where it is read, not left out.
            is_file = entry.is_file()
            files.append(_describe(url, entry.stat()) if is_file else ObjectInfo(url))
    return files, directories


def _refuse(url: str, error: OSError) -> NoReturn:
    """Raise streamrec's error for one of the operating system."""
    raise local_meaning(url, error) from None
