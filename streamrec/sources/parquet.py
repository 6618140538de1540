"""The reading of Parquet in batches whose bytes are known before they are decoded."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from streamrec.errors import DataError
from streamrec.sources.arrow_fields import module
from streamrec.sources.parquet_pages import page_at, pages_of, row_values
from streamrec.sources.source import PIECE, PIECE_ROWS, Memory
from streamrec.values.columns import offsets_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    import numpy.typing as npt

    from streamrec.sources.parquet_pages import PageHeader
    from streamrec.stores.stored_files import StoredFile

    Numbers = npt.NDArray[np.int64]


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
        # The old part goes first: both together would be twice the memory that was admitted.
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


LONGEST = 16 << 20
"""Bytes of the longest header that is looked for; most have 30, and some hold long values."""


class PageWatch:
    """The headers of one column's pages in a row group, met while Arrow reads them.

    The pages of a large row group in a store are not held in memory, so they are looked at on their
    way, before Arrow decompresses them.

    Args:
        begin: The first byte of the pages in the file.
        end: The byte after the last.
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
            # Arrow reads in blocks of its own, so a header may begin in one and end in the next.
            begin = self._next + len(self._seen)
            if begin >= at:
                part = memoryview(self._seen + bytes(data[begin - at : stop - at]))
                if not self._seen:
                    part = data[begin - at : stop - at]
            else:
                # Arrow begins to read after the first byte of this header.
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


_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
"""Bytes of a value, by the physical type."""
_LEVELS = 4
"""Bytes that a value of a list takes besides: its two levels."""
_OFFSET = 8
"""Bytes that a value whose length is its own takes besides."""
_BUFFER = 4 << 20
"""Bytes of one request for a column of a row group that is not read as a whole."""


class _ColumnChunk(NamedTuple):
    """A column of a row group."""

    path: str
    width: int | None
    """Bytes of each value; ``None``: each has its own."""
    is_list: bool
    values: int
    size: int
    """Bytes of all its pages when they are decompressed."""
    are_numbers: bool
    """Its values are numbers of those of a dictionary, as far as the metadata know."""
    begin: int
    end: int
    """The first byte of its pages in the file, and the one past the last."""
    deepest: int
    """The largest repetition level: the lists in lists."""
    codec: str

    @property
    def each(self) -> int:
        """The bytes of a value, without those of its own length."""
        width = _OFFSET if self.width is None else self.width
        return width + (_LEVELS if self.is_list else 0)

    def size_of_row(self, rows: int) -> int:
        """Return the bytes of a row of a group of so many, on average."""
        if self.width is not None and not self.is_list:
            return self.width
        return -(-((self.width is None) * self.size + self.each * self.values) // rows)


class _ColumnPages(NamedTuple):
    """The pages of a column."""

    are_numbers: bool
    """The values are numbers of those of a dictionary, which Arrow does not repeat."""
    are_short: bool
    """A value may be as long as a page that has many."""
    largest: int
    ends: Numbers
    """The values before each page, and all."""
    sizes: Numbers
    """Bytes before each page when they are decompressed, and all."""
    lengths: Numbers | None
    """The values of each row; ``None``: they were not looked at."""

    @classmethod
    def of(cls, pages: Sequence[PageHeader], lengths: Numbers | None = None) -> Self:
        """Return pages by their headers, and the lengths of their lists."""
        sizes = np.array([page.size for page in pages], np.int64)
        values = [0 if page.is_dictionary else page.values for page in pages]
        has_dictionary = any(page.is_dictionary for page in pages)
        is_delta = any(page.is_delta for page in pages)
        return cls(
            are_numbers=has_dictionary and not is_delta,
            are_short=has_dictionary or is_delta,
            largest=int(sizes.max(initial=0)),
            ends=offsets_of(np.array(values, np.int64)),
            sizes=offsets_of(sizes),
            lengths=lengths,
        )

    def values_in(self, count: int) -> int | None:
        """Return the most values in so many rows that are read together, where they are known."""
        if self.lengths is None or not len(self.lengths):
            return None
        return int(np.add.reduceat(self.lengths, np.arange(0, len(self.lengths), count)).max())

    def most(self, values: int) -> int:
        """Return the bytes of the pages that so many values may be in, where these are most."""
        last = np.searchsorted(self.ends, self.ends[1:] - 1 + values)  # from a page's last value on
        stop = np.minimum(last, len(self.sizes) - 1)
        return int((self.sizes[stop] - self.sizes[:-1]).max(initial=0))


class ParquetReader:
    """A reader of one file.

    Args:
        file: The file.
        opened: Opens it for Arrow, with requests of so many bytes.
        memory: The bounds of what is read together.
    """

    def __init__(self, file: StoredFile, opened: Callable[..., Any], memory: Memory) -> None:
        self._file, self._opened, self._memory = file, opened, memory
        self._metadata = module("pyarrow.parquet").read_metadata(opened(file, 64 << 10))

    def batches(self, groups: range | None = None) -> Iterator[tuple[int, Any]]:
        """Yield batches of the file, or of some row groups, with their first rows' numbers.

        Raises:
            DataError: The file is damaged, or needs more memory than there is.
        """
        # Arrow trusts these numbers, and takes memory by them.
        counts = [
            self._metadata.row_group(n).num_rows for n in range(self._metadata.num_row_groups)
        ]
        if sum(counts) != self._metadata.num_rows:
            raise self._damage("its row groups do not have as many rows as it says")
        # Row groups are the unit in which tasks divide a file, and in which Arrow decodes.
        for number in groups or range(len(counts)):
            first = sum(counts[:number])
            for batch in self._group(number):
                yield first, batch
                first += batch.num_rows
            if first != sum(counts[: number + 1]):
                raise self._damage(f"row group {number} does not have as many rows as it says")

    def _group(self, number: int) -> Iterator[Any]:
        columns = list(self._columns(number))
        begin = min((column.begin for column in columns), default=0)
        size = max((column.end for column in columns), default=0) - begin
        source = self._opened(self._file)
        places: list[_ColumnPages | None] = [None] * len(columns)
        # A small row group of a store is held whole, in one request; of a large one the headers of
        # pages are watched as they come.
        is_known = self._file.is_local or size <= self._memory.record
        if is_known:
            if not self._file.is_local:
                held_file = HeldFile(source)
                held_file.hold(begin, size)
                source = module("pyarrow").PythonFile(held_file, "r")
            # The lengths of lists are looked at only where they matter: a pass over all levels
            # takes time.
            has_long = self._may_be_long(columns, number)
            places = [self._pages(column, number, source, has_long) for column in columns]
        rows = self._rows(list(zip(columns, places, strict=True)), number)
        if not is_known:
            watches = [self._watch(column, number, rows) for column in columns]
            source = module("pyarrow").PythonFile(WatchedFile(source, watches), "r")
        # Values of a dictionary stay its numbers: repeated, 8 KB of file can become a GB.
        with module("pyarrow.parquet").ParquetFile(
            source,
            metadata=self._metadata,
            read_dictionary=[
                column.path
                for column, pages in zip(columns, places, strict=True)
                if column.width is None and (pages or column).are_numbers
            ],
            buffer_size=0 if is_known else _BUFFER,
            # With it Arrow would hold the whole row group beside what is held here.
            pre_buffer=False,
            page_checksum_verification=True,
        ) as opened:
            yield from opened.iter_batches(rows, [number])

    def _columns(self, number: int) -> Iterator[_ColumnChunk]:
        group = self._metadata.row_group(number)
        for n in range(group.num_columns):
            column, kind = group.column(n), self._metadata.schema.column(n)
            # The physical type: a decimal or a date takes what it is stored as.
            width = _WIDTHS.get(kind.physical_type)
            if kind.physical_type == "FIXED_LEN_BYTE_ARRAY":
                width = max(1, kind.length)
            # Some writers tell 0 where there is no dictionary.
            places = column.dictionary_page_offset, column.data_page_offset
            begin = min((place for place in places if place), default=0)
            end = begin + column.total_compressed_size
            if not 0 <= begin <= end <= self._file.size or column.num_values < 0:
                raise self._damage("a column ends after the end of the file")
            is_list = kind.max_repetition_level > 0
            size = column.total_uncompressed_size
            are_numbers = _has_dictionary(column.encodings)
            yield _ColumnChunk(
                path=kind.path,
                width=width,
                is_list=is_list,
                values=column.num_values,
                size=size,
                are_numbers=are_numbers,
                begin=begin,
                end=end,
                deepest=kind.max_repetition_level,
                codec=column.compression,
            )

    def _may_be_long(self, columns: list[_ColumnChunk], number: int) -> bool:
        """Return whether a single list could take too much, if one had all values of its column."""
        lists = [column for column in columns if column.is_list]
        rows = self._metadata.row_group(number).num_rows
        # The lengths take memory, too.
        is_small = rows * 8 * len(lists) <= self._memory.record
        return is_small and sum(column.size_of_row(1) for column in lists) > self._memory.record

    def _pages(
        self, column: _ColumnChunk, number: int, source: Any, has_long: bool
    ) -> _ColumnPages:
        """Return the pages of a column.

        Raises:
            DataError: One is damaged, or takes too much.
        """
        source.seek(column.begin)
        data = memoryview(source.read_buffer(column.end - column.begin)).cast("B")
        headers: list[PageHeader] = []
        try:
            for page in pages_of(data, column.values):
                what = f"a page of column {column.path!r}, row group {number},"
                self._memory.check(page.size, self._memory.unit, what, self._file)
                headers.append(page)
            lengths = None
            if has_long and column.is_list:
                lengths = row_values(data, headers, column.codec, column.deepest)
        except ValueError as error:
            if isinstance(error, DataError):
                raise
            raise self._damage(str(error)) from None
        self._check_lengths(column, number, lengths)
        return _ColumnPages.of(headers, lengths)

    def _watch(self, column: _ColumnChunk, number: int, rows: int) -> PageWatch:
        """Return a look at the pages of a column that are not held, for batches of so many rows."""
        all_rows = max(1, self._metadata.row_group(number).num_rows)
        # Rows are not known before their page comes, so lists count by their mean length.
        together = -(-rows * column.values // all_rows)
        what = f"of column {column.path!r}, row group {number},"

        def check(page: PageHeader, size: int) -> None:
            self._memory.check(page.size, self._memory.unit, f"a page {what}", self._file)
            if column.width is None:
                self._memory.check(size, self._memory.unit, f"{rows} rows {what}", self._file)

        return PageWatch(
            begin=column.begin, end=column.end, values=column.values, together=together, check=check
        )

    def _check_lengths(self, column: _ColumnChunk, number: int, lengths: Numbers | None) -> None:
        """Compare the longest list of a column with what a record may take."""
        if lengths is None or not len(lengths):
            return
        if len(lengths) != self._metadata.row_group(number).num_rows:
            raise self._damage(f"row group {number} does not have as many rows as it says")
        row = int(lengths.argmax())
        what = (
            f"row {row} of row group {number}, with a list of {lengths[row]:,} values in column "
            f"{column.path!r},"
        )
        self._memory.check(int(lengths[row]) * column.each, self._memory.record, what, self._file)

    def _rows(self, columns: list[tuple[_ColumnChunk, _ColumnPages | None]], number: int) -> int:
        """Return the rows of a batch, whose bytes are bounded.

        Raises:
            RecordTooLarge: A single row takes too much.
        """
        rows = max(1, self._metadata.row_group(number).num_rows)
        each = sum(column.size_of_row(rows) for column, _ in columns)
        what = f"a row of row group {number}"
        self._memory.check(each, self._memory.record, what, self._file)
        # Halves, not the exact number: the pages of each trial have to be added up anew.
        count = max(1, min(PIECE_ROWS, PIECE // max(1, each)))
        while count > 1 and sum(_most(*one, count, rows) for one in columns) > self._memory.unit:
            count //= 2
        return count

    def _damage(self, why: str) -> DataError:
        return DataError(f"Parquet is damaged: {why}; write the file anew", url=str(self._file))


def _has_dictionary(encodings: Collection[str]) -> bool:
    # Arrow does not keep values as numbers where a part of them shares prefixes.
    has_prefixes = "DELTA_BYTE_ARRAY" in encodings
    return not has_prefixes and not {"RLE_DICTIONARY", "PLAIN_DICTIONARY"}.isdisjoint(encodings)


def _most(column: _ColumnChunk, pages: _ColumnPages | None, count: int, rows: int) -> int:
    """Return the most bytes that so many rows of a group have in a column."""
    exact = None if pages is None else pages.values_in(count)
    if column.width is not None or pages is None:
        return count * column.size_of_row(rows) if exact is None else exact * column.each
    values = -(-count * column.values // rows) if exact is None else exact
    # A page of few bytes may then expand to many long values, so each row counts as a whole page.
    if not pages.are_numbers and pages.are_short:
        return count * pages.largest
    return pages.most(values)
