"""Files and objects that are read by blocking calls, all of each in one version."""

from __future__ import annotations

import asyncio
import io
import os
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamrec.errors import StoreError
from streamrec.flow.bridge import Bridge
from streamrec.flow.cleanup import all_of
from streamrec.stores.base import ObjectInfo, check_pin
from streamrec.stores.open import Stores
from streamrec.stores.read_range import read_range
from streamrec.stores.regular_file import open_regular
from streamrec.stores.versions import file_version

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from streamrec.values.columns import ByteArray

AT_ONCE = 32
"""Objects that are requested at the same time."""


class Ranges:
    """The stores of objects, for callers without an event loop.

    Args:
        storage_options: fsspec's options.
    """

    def __init__(self, storage_options: Mapping[str, Any]) -> None:
        self._bridge, self._stores = Bridge(), Stores(storage_options)
        holder = self._bridge.call(_held(self._stores))
        weakref.finalize(self, _close, self._bridge, holder)

    def read(self, found: ObjectInfo, start: int, stop: int) -> tuple[ByteArray, ObjectInfo]:
        """Read a range of an object in its version, with retries.

        Raises:
            StoreError: It cannot be read, or is another version now.
        """
        return self._bridge.call(self._read(found, start, stop))

    def read_all(self, found: Sequence[ObjectInfo], most: int | None = None) -> list[Any]:
        """Return objects' bytes and facts as :meth:`read` does; errors in place of some.

        Args:
            found: The objects.
            most: The bytes to read of each; ``None``: all.
        """
        return self._bridge.call(self._read_all(found, most))

    async def _read(self, found: ObjectInfo, start: int, stop: int) -> tuple[ByteArray, ObjectInfo]:
        return await read_range(self._stores.store_for(found.url), found, start, stop)

    async def _read_all(self, found: Sequence[ObjectInfo], most: int | None) -> list[Any]:
        limit = asyncio.Semaphore(AT_ONCE)

        async def read(one: ObjectInfo) -> Any:
            try:
                async with limit:
                    return await self._read(one, 0, (one.size or 0) if most is None else most)
            except StoreError as error:
                return error

        return list(await all_of(map(read, found)))


async def _held(stores: Stores) -> asyncio.Task[None]:
    """Return a task that closes stores when it is cancelled, as the end of a bridge does."""
    holder = asyncio.get_running_loop().create_task(_hold(stores))
    await asyncio.sleep(0)  # it has begun
    return holder


async def _hold(stores: Stores) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        await stores.aclose()


def _close(bridge: Bridge, _holder: asyncio.Task[None]) -> None:
    """End the bridge; the collector may call this in any thread, so nothing is waited for."""
    if bridge.is_here:
        bridge.close()


class PinnedObject(io.RawIOBase):
    """An object that is read by ranges, each by a request.

    Args:
        ranges: Its store.
        found: The object, with its size and version.
    """

    def __init__(self, ranges: Ranges, found: ObjectInfo) -> None:
        self._ranges, self._found, self._at = ranges, found, 0

    def readable(self) -> bool:
        """Return true."""
        return True

    def seekable(self) -> bool:
        """Return true."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a byte."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._found.size or 0}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer, with one request."""
        stop = min(self._at + len(buffer), self._found.size or 0)
        if stop <= self._at:
            return 0
        data, _ = self._ranges.read(self._found, self._at, stop)
        buffer[: len(data)] = data.data
        self._at += len(data)
        return len(data)


class PinnedFile(io.FileIO):
    """A local file that is compared with its version after each read.

    Args:
        path: The path.
        version: The version.
    """

    def __init__(self, path: str, version: str | None) -> None:
        super().__init__(path, "r", opener=open_regular)
        self._version = version
        try:
            self._check()  # of an empty one nothing is read
        except BaseException:
            self.close()
            raise

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer.

        Raises:
            ObjectChanged: The file is another one now.
        """
        count = super().readinto(buffer)
        self._check()
        return count or 0

    def readall(self) -> bytes:
        """Return all bytes to the end that the file has now: one that grows has no other.

        Raises:
            ObjectChanged: The file is another one now.
        """
        left = os.fstat(self.fileno()).st_size - self.tell()
        pieces: list[bytes] = []
        while left > 0 and (piece := self.read(left)):
            pieces.append(piece)
            left -= len(piece)
        self._check()
        return b"".join(pieces)

    def _check(self) -> None:
        check_pin(str(self.name), self._version, file_version(os.fstat(self.fileno())))


def check_file(path: str, version: str | None) -> None:
    """Compare a local file, which a library has read, with its version.

    Raises:
        ObjectChanged: The file is another one now.
    """
    check_pin(path, version, file_version(Path(path).stat()))
