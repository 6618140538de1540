"""Files and objects that are read by blocking calls, all of each in one version."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamrec.stores.base.protocol import check_pin
from streamrec.stores.base.regular_file import open_regular
from streamrec.stores.base.versions import file_version

if TYPE_CHECKING:
    from streamrec.stores.base.protocol import ObjectInfo
    from streamrec.stores.blocking import BlockingStores


class PinnedObject(io.RawIOBase):
    """An object that is read by ranges, each by a request.

    Args:
        stores: The stores.
        found: The object, with its size and version.
    """

    def __init__(self, stores: BlockingStores, found: ObjectInfo) -> None:
        self._stores, self._found, self._at = stores, found, 0

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
        data, _ = self._stores.read(self._found, self._at, stop)
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
