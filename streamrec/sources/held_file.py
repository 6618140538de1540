"""A file for Arrow of which a part is held in memory, so that it is requested once."""

from __future__ import annotations

from typing import Any


class HeldFile:
    """A file that Arrow reads, of which a part has been read already.

    Args:
        source: The file, opened by Arrow.
    """

    closed = False

    def __init__(self, source: Any) -> None:
        self._source, self._begin, self._at = source, 0, 0
        self._data: Any = None

    def hold(self, begin: int, size: int) -> None:
        """Read a part, in place of the one that is held."""
        self._data = None
        self._begin, self._data = begin, self._from_source(begin, size)

    def read_at(self, at: int, size: int) -> memoryview:
        """Return bytes of any place, without going there."""
        return memoryview(self._bytes(at, size)).cast("B")

    def close(self) -> None:
        """Close the file."""
        self.closed = True
        self._source.close()

    def seek(self, to: int, whence: int = 0) -> int:
        """Go to a byte."""
        self._at = to + (0, self._at, self._source.size())[whence]
        return self._at

    def tell(self) -> int:
        """Return the place of the next byte."""
        return self._at

    def read(self, size: int) -> Any:
        """Read the next bytes."""
        data = self._bytes(self._at, size)
        self._at += data.size
        return data

    def _bytes(self, at: int, size: int) -> Any:
        begin = at - self._begin
        if self._data is not None and begin >= 0 and begin + size <= self._data.size:
            return self._data.slice(begin, size)
        return self._from_source(at, size)

    def _from_source(self, at: int, size: int) -> Any:
        self._source.seek(at)
        return self._source.read_buffer(size)
