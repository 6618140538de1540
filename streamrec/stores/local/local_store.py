"""The store of local files: plain paths and ``file://`` URLs."""

from __future__ import annotations

import io
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from streamrec.config.places import FILE
from streamrec.errors import ObjectNotFound, StoreUnavailable
from streamrec.stores.base.foreign_errors import local_meaning, translated
from streamrec.stores.base.new_object import GuardedObject
from streamrec.stores.base.protocol import ObjectInfo, check_pin, check_range, in_thread, let_pass
from streamrec.stores.base.regular_file import open_regular
from streamrec.stores.base.versions import file_version
from streamrec.stores.local.part_file import PartFile, remove_left

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from concurrent.futures import Executor
    from io import FileIO

    from streamrec.stores.base.protocol import BeforeRequest, NewObject


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
        with translated(url, writing=True):
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
        with translated(url, writing=True):
            await in_thread(function, *arguments, executor=self._threads)

    async def aclose(self) -> None:
        """Stop the threads; no files are open between ranges."""
        self._threads.shutdown(wait=False)


def path_of(url: str) -> str:
    """Return the path of a ``file://`` URL or path; nothing in it is decoded or expanded."""
    return url.removeprefix(FILE)


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
