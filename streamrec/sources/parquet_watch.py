"""A look at the headers of Parquet's pages while Arrow reads them, before it decompresses them.

The pages of a large row group in a store are not held in memory, so their headers are met only on
their way.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from streamrec.sources.held_file import HeldFile
from streamrec.sources.parquet_pages import page_at

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from streamrec.sources.parquet_pages import PageHeader

LONGEST = 16 << 20
"""Bytes of the longest header that is looked for; most have 30, and some hold long values."""


class PageWatch:
    """The headers of one column's pages in a row group.

    Args:
        begin: The first byte of the pages in the file.
        end: The byte behind the last.
        values: The values of all data pages.
        together: The values that are read together.
        check: Called with each page, and the bytes of all pages that values which are read together
            may be in.
    """

    def __init__(
        self,
        begin: int,
        end: int,
        values: int,
        together: int,
        check: Callable[[PageHeader, int], object],
    ) -> None:
        self._next, self._end = begin, end
        self._left, self._together, self._check = values, together, check
        self._seen = b""  # of a header whose end has not come
        self._pages: deque[PageHeader] = deque()
        self._size = self._values = 0

    def look(self, at: int, data: memoryview, read: Callable[[int, int], memoryview]) -> None:
        """Look at the headers in bytes that Arrow is about to get.

        Args:
            at: The place of the bytes in the file.
            data: The bytes.
            read: Reads other bytes of the file: of a header whose beginning was not read.

        Raises:
            ValueError: A header is damaged.
        """
        stop = min(at + len(data), self._end)
        while self._left > 0 and self._next < stop:
            begin = self._next + len(self._seen)
            if begin >= at:
                part = memoryview(self._seen + bytes(data[begin - at : stop - at]))
                if not self._seen:
                    part = data[begin - at : stop - at]
            else:
                part = read(self._next, min(LONGEST, self._end - self._next))
            try:
                page = page_at(part, 0)
            except EOFError:
                if stop == self._end or len(part) >= LONGEST:
                    raise ValueError("the header of a page has no end") from None
                self._seen = bytes(part)
                return
            self._seen = b""
            self._add(page)
            self._next += page.at + page.stored

    def _add(self, page: PageHeader) -> None:
        if not page.is_dictionary:
            self._pages.append(page)
            self._size += page.size
            self._values += page.values
            self._left -= page.values
            # A page counts until so many values are behind it that none of it is read with them.
            while self._values - self._pages[0].values >= self._together:
                first = self._pages.popleft()
                self._size -= first.size
                self._values -= first.values
        self._check(page, self._size)


class WatchedFile(HeldFile):
    """A file that Arrow reads, with a look at the headers of pages.

    Args:
        source: The file, opened by Arrow.
        watches: The headers of the columns that are read.
    """

    def __init__(self, source: Any, watches: Sequence[PageWatch]) -> None:
        super().__init__(source)
        self._watches = watches

    def _from_source(self, at: int, size: int) -> Any:
        data = super()._from_source(at, size)
        view = memoryview(data).cast("B")
        for watch in self._watches:
            watch.look(at, view, self._other)
        return data

    def _other(self, at: int, size: int) -> memoryview:
        return memoryview(super()._from_source(at, size)).cast("B")
