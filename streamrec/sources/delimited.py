"""Tables of separated values: CSV and TSV."""

from __future__ import annotations

import csv
import io
import logging
import re
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, ClassVar, Self

from streamrec.errors import ConfigError, DataError
from streamrec.sources.source import Option, SourceKind, files_of
from streamrec.sources.table import (
    MOST_BYTES,
    OPTIONS,
    FeatureChoice,
    RowTable,
    TableOptions,
    last_end,
    text_pieces,
)
from streamrec.sources.table_values import RowError, SampledType, with_parts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Unpack

    import numpy as np
    import numpy.typing as npt

    from streamrec.sources.source import ReadsIn
    from streamrec.sources.table import TextPiece
    from streamrec.sources.table_columns import TableRows
    from streamrec.stores.stored_files import StoredFile


class RowEnds:
    """The search for the last line feed that ends a row, as Python's ``csv`` reads rows.

    A double quote opens a value only at its beginning, and is a character like others elsewhere.
    Where quotes are not closed in 64 MiB, the last line feed counts: most likely it ends a row.

    Args:
        delimiter: The character between values.
    """

    def __init__(self, delimiter: str) -> None:
        self._delimiter = delimiter.encode()
        escaped = re.escape(self._delimiter)
        text, inner = rb'[^"\n]++', rb'[^"]*+(?:""[^"]*+)*+"'
        opening = rb'(?:\A|(?<=[\r\n])|(?<=%b))"' % escaped
        other = rb'(?!\A)(?<![\r\n])(?<!%b)"' % escaped
        # Possessive quantifiers: a pattern that may try again would take quadratic time on damaged
        # quotes.
        self._rows = re.compile(rb"(?:(?:%b|%b%b|%b)*+\n)*+" % (text, opening, inner, other))

    def __call__(self, data: bytes) -> int:
        """Return the place after the last row of data that begins with a row; 0: none ends."""
        end = self._end(data)
        return last_end(data) if not end and len(data) > MOST_BYTES else end

    def _end(self, data: bytes) -> int:
        if b'"' not in data:
            return last_end(data)
        import numpy as np

        quotes = np.flatnonzero(np.frombuffer(data, np.uint8) == ord(b'"'))
        # The quick way by parity holds only if each odd quote opens a value; else the pattern reads
        # row by row.
        if not self._all_open_values(data, quotes[::2]):
            match = self._rows.match(data)
            return match.end() if match else 0
        # Doubled quotes inside of quotes keep the number even: RFC 4180.
        end = last_end(data)
        while end and np.searchsorted(quotes, end) % 2:
            end = data.rfind(b"\n", 0, end - 1) + 1
        return end

    def _all_open_values(self, data: bytes, quotes: npt.NDArray[np.int64]) -> bool:
        """Return whether every other quote begins a value, or doubles the quote before it."""
        if len(self._delimiter) > 1:
            return False
        import numpy as np

        before = np.frombuffer(b"\n" + data, np.uint8)[quotes]
        return bool(np.isin(before, np.frombuffer(self._delimiter + b'\r\n"', np.uint8)).all())


SAMPLE = 1000
"""Rows by which types are found."""
MOST_VALUE = 1 << 30
"""The most characters of a value, as of a record's bytes; Python's own limit is 131,072."""
INDEX = "index"
"""The name of a first column without one, which Pandas writes of a table's index."""
_OTHERS = {"a semicolon": ";", "a tab": "\t", "a bar": "|", "a comma": ","}
"""Characters that other tables have between values."""
log = logging.getLogger("streamrec.write")
_OTHER_BYTE = re.compile("[\udc80-\udcff]")
"""A byte that is not UTF-8, as Python decodes it."""


@dataclass(frozen=True, kw_only=True)
class Delimited(RowTable):
    """Files of separated values with a row of names, in UTF-8 and quoted as RFC 4180 says."""

    reads_in: ClassVar[ReadsIn] = "processes"
    place: ClassVar[str] = "line {}"
    names: list[str]
    delimiter: str
    null: frozenset[str]

    @property
    def identity(self) -> Any:
        """The name and version of the rows."""
        form = {"delimiter": self.delimiter, "null": sorted(self.null)}
        return super().identity | form

    def pieces(self) -> Iterator[TextPiece]:
        """Yield whole rows of each file."""
        return chain.from_iterable(_pieces(file, self.delimiter) for file in self.files)

    def rows(self, piece: TextPiece) -> Iterator[tuple[int, list[Any] | RowError]]:
        """Yield the values of each row."""
        rows = _rows(piece, self.delimiter)
        # Each piece is read by itself, and the first one alone has the names.
        if piece.line == 1:
            next((values for _, values in rows if values), None)  # the names
        is_single = len(self.names) == 1
        for line, values in rows:
            if values:
                yield line, self._check(values)
            elif is_single:  # so Polars writes a null, and "" an empty text
                yield line, [None]

    def empty_rows(self) -> TableRows:
        """Return the rows of a piece, whose values have no names of their own."""
        from streamrec.sources.table_columns import TableRows

        null = self._nulls()
        return TableRows(
            self.features, null=null, names=self.names, given=self.given, parts=self.parts
        )

    def _check(self, values: list[str] | str) -> list[str] | RowError:
        if isinstance(values, str):
            return RowError(values)
        if len(values) != len(self.names):
            return RowError(
                f"the row has {len(values)} values, but the first row names {len(self.names)}; "
                "correct it, or leave such rows out with --on-error skip"
            )
        return values

    def _nulls(self) -> dict[str, frozenset[str]]:
        """Return the texts that stand for no value, by column; among numbers, an empty one does."""
        nothing = self.null | {""}
        return {n: self.null if t == "bytes" else nothing for n, t in self.features.items()}


def open_delimited(
    place: str,
    *,
    delimiter: str | None = None,
    null: Sequence[str] = (),
    storage_options: Mapping[str, Any] | None = None,
    **table: Unpack[TableOptions],
) -> Delimited:
    """Open tables; see :class:`Delimited`.

    Raises:
        ConfigError: There are no files, they have other columns, or an argument is wrong.
        DataError: The first row names no columns.
    """
    files = files_of(place, KIND.suffixes, storage_options)
    choice = FeatureChoice(**table)
    tabs = files[0].name.lower().removesuffix(".gz").endswith(".tsv")
    # The shell passes \t as two characters.
    delimiter = {None: "\t" if tabs else ",", "\\t": "\t"}.get(delimiter, delimiter)
    if delimiter is None or len(delimiter) != 1:
        raise ConfigError(f"--delimiter: {delimiter!r} is not one character; give one, as in ';'")
    nothing = frozenset(null)
    sampled = {file: _sample(file, delimiter, nothing) for file in files}
    names = list(sampled[files[0]])
    # In the same order, too: rows have no names.
    for file, columns in sampled.items():
        if list(columns) != names:
            raise ConfigError(
                f"{file}: its columns are {', '.join(columns)}, but those of {files[0]} are "
                f"{', '.join(names)}; write them as two datasets"
            )
    _warn_of_one_column(files[0], names)
    types = {name: SampledType() for name in names}
    for columns in sampled.values():
        for name in names:
            types[name].add(columns[name])
    columns_of_table = {name: one.dtype or "bytes" for name, one in types.items()}
    return Delimited(
        files=files,
        names=names,
        features=choice.choose(columns_of_table, str(files[0])),
        delimiter=delimiter,
        null=nothing,
        key=choice.key,
        given=frozenset(choice.given),
        parts=with_parts(types),
    )


KIND = SourceKind(
    "csv",
    open_delimited,
    (".csv", ".tsv", ".csv.gz", ".tsv.gz"),
    (
        *OPTIONS,
        Option(
            name="delimiter",
            metavar="CHAR",
            help="CSV: the character between values.  [comma; tab in .tsv]",
        ),
        Option(
            name="null",
            metavar="TEXT",
            is_repeatable=True,
            help="CSV: a text that stands for a missing value. Repeatable.",
        ),
    ),
)


def _pieces(file: StoredFile, delimiter: str) -> Iterator[TextPiece]:
    return text_pieces(file, end_of=RowEnds(delimiter))


def _warn_of_one_column(file: StoredFile, names: list[str]) -> None:
    """Tell where the separator is probably another one."""
    inside = [what for what, one in _OTHERS.items() if len(names) == 1 and one in names[0]]
    if inside:
        log.warning(
            "%s: its only column is named %r, with %s in it; if that stands between values, give "
            "it as --delimiter",
            file,
            names[0],
            inside[0],
        )


class _Lines:
    """The lines of a text, which can be read again from one of them on."""

    def __init__(self, text: str) -> None:
        # With newline="" a carriage return within quotes stays what it is.
        self._lines = list(io.StringIO(text, newline=""))
        self.next = 0
        """The number of the line that is read next."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        if self.next == len(self._lines):
            raise StopIteration
        self.next += 1
        return self._lines[self.next - 1]


@contextmanager
def _long_values() -> Iterator[None]:
    """Let values be long in a block of code: Python's limit belongs to the whole program."""
    before = csv.field_size_limit(MOST_VALUE)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _rows(piece: TextPiece, delimiter: str) -> Iterator[tuple[int, list[str] | str]]:
    """Yield each row's first line and its values; in place of what is wrong, the reason.

    Behind a row whose quotes do not close, the next line is read as a row: most likely it is one.
    """
    # A byte that is not UTF-8 costs its own row alone.
    text = piece.data.decode(errors="surrogateescape")
    is_utf8 = not _has_other_bytes(text)
    lines = _Lines(text)
    rows = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        first = lines.next
        # strict: without it a quote within a value would be read as text, in silence.
        try:
            values = _next_row(rows, lines)
        except StopIteration:
            return
        except csv.Error as error:
            yield (
                piece.line + first,
                f"double quotes open here and do not close well ({error}); correct them",
            )
            lines.next = first + 1
            continue
        if not is_utf8 and any(map(_has_other_bytes, values)):
            yield piece.line + first, "there are bytes that are not UTF-8; convert the file to it"
        else:
            yield piece.line + first, values


def _next_row(rows: Iterator[list[str]], lines: _Lines) -> list[str]:
    first = lines.next
    try:
        return next(rows)
    except csv.Error as error:
        if "field limit" not in str(error):
            raise
    # Again, from its first line: the limit holds for the program, so it is lifted for this row
    # alone.
    lines.next = first
    with _long_values():
        return next(rows)


def _has_other_bytes(text: str) -> bool:
    return not text.isascii() and _OTHER_BYTE.search(text) is not None


def _sample(file: StoredFile, delimiter: str, null: frozenset[str]) -> dict[str, SampledType]:
    """Return the types that the first rows tell, by the columns' names."""
    rows = chain.from_iterable(_rows(piece, delimiter) for piece in _pieces(file, delimiter))
    # Blank lines before the names are passed over.
    names = next((values for _, values in rows if values), [])
    types = {name: SampledType() for name in _names(names, file)}
    for _, values in islice(rows, SAMPLE):
        if isinstance(values, list) and len(values) == len(types):
            for sampled, value in zip(types.values(), values, strict=True):
                sampled.take_text(value if value and value not in null else None)
    return types


def _names(row: list[str] | str, file: StoredFile) -> list[str]:
    """Return the names of the columns that the first row has.

    Raises:
        DataError: It has none, or one of them twice.
    """
    if isinstance(row, str):
        raise DataError(f"line 1, which must name the columns: {row}", url=str(file))
    if not any(row):
        raise DataError("the first row must name the columns; add such a row", url=str(file))
    named = row
    if not row[0] and INDEX not in row:
        named = [INDEX, *row[1:]]
        log.warning("%s: column 1 has no name, as an index of Pandas; it becomes %r", file, INDEX)
    for number, name in enumerate(named, 1):
        if not name:
            raise DataError(f"column {number} has no name; name it in the first row", url=str(file))
        if (first := named.index(name) + 1) < number:
            raise DataError(
                f"columns {first} and {number} are both named {name!r}, and a record has one "
                "feature of a name; rename one in the first row",
                url=str(file),
            )
    return named
