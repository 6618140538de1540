"""Tables of separated values: CSV and TSV."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from streamrec.errors import ConfigError, DataError
from streamrec.shard_tools.sources.row_ends import RowEnds
from streamrec.shard_tools.sources.source import (
    Block,
    Divisible,
    files_of,
    selected,
    table_identity,
)
from streamrec.shard_tools.sources.table_columns import (
    RowError,
    TableRows,
    as_value,
    encode_table,
    join_types,
)
from streamrec.shard_tools.sources.text_pieces import text_pieces, total_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from streamrec.shard_tools.sources.source import ReadsIn, Refuse
    from streamrec.shard_tools.sources.text_pieces import TextPiece
    from streamrec.stores.stored_files import StoredFile

__all__ = ["Delimited", "open_delimited"]

SUFFIXES = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
SAMPLE = 1000
"""Rows by which types are found."""
_OTHER_BYTE = re.compile("[\udc80-\udcff]")
"""A byte that is not UTF-8, as Python decodes it."""


@dataclass(frozen=True)
class Delimited(Divisible):
    """Files of separated values with a row of names, in UTF-8 and quoted as RFC 4180 says."""

    reads_in: ClassVar[ReadsIn] = "processes"
    unit: ClassVar[str] = "bytes"
    labels: ClassVar[None] = None
    names: list[str]
    features: dict[str, str]
    delimiter: str
    null: frozenset[str]
    key: str | None

    @property
    def total(self) -> int | None:
        """The bytes of all files, which of compressed ones are not known."""
        return total_bytes(self.files)

    @property
    def identity(self) -> Any:
        """The name and version of the rows."""
        form = {"delimiter": self.delimiter, "null": sorted(self.null)}
        return table_identity(self.files, self.features, self.key) | form

    def pieces(self) -> Iterator[TextPiece]:
        """Yield whole rows of each file."""
        for file in self.files:
            yield from text_pieces(file, end_of=RowEnds(self.delimiter))

    def read(self, piece: TextPiece, refuse: Refuse) -> Block:
        """Parse rows."""
        rows = TableRows(self.features, null=self._nulls(), names=self.names)
        given = _rows(piece, self.delimiter)
        if piece.line == 1:
            next(given, None)  # the names
        for line, values in given:
            rows.add(line, self._checked(values))
        columns, missing, _ = rows.columns(
            lambda line, error: refuse(DataError(f"line {line}: {error}", url=piece.path))
        )
        records, keys = encode_table(columns, missing, self.key)
        return Block(records, len(piece.data), keys)

    def _checked(self, values: list[str] | str) -> list[str] | RowError:
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
    features: Mapping[str, str | None] | None = None,
    key: str | None = None,
    delimiter: str | None = None,
    null: Sequence[str] = (),
    storage_options: Mapping[str, Any] | None = None,
) -> Delimited:
    """Open tables; see :class:`Delimited`.

    Raises:
        ConfigError: There are none, they have other columns, or an argument is wrong.
        DataError: The first row names no columns.
    """
    files = files_of(place, SUFFIXES, storage_options)
    tabs = files[0].name.removesuffix(".gz").endswith(".tsv")
    delimiter = {None: "\t" if tabs else ",", "\\t": "\t"}.get(delimiter, delimiter)
    if delimiter is None or len(delimiter) != 1:
        raise ConfigError(f"--delimiter: {delimiter!r} is not one character; give one, as in ';'")
    nothing = frozenset(null)
    found = {file: _sampled(file, delimiter, nothing) for file in files}
    names = list(found[files[0]])
    for file, types in found.items():
        if list(types) != names:
            raise ConfigError(
                f"{file}: its columns are {', '.join(types)}, but those of {files[0]} are "
                f"{', '.join(names)}; write them apart"
            )
    known = {name: join_types(types[name] for types in found.values()) for name in names}
    wanted = selected({n: t or "bytes" for n, t in known.items()}, features, str(files[0]), key)
    return Delimited(files, names, wanted, delimiter, nothing, key)


class _Lines:
    """The lines of a text, which can be read again from one of them on."""

    def __init__(self, text: str) -> None:
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


def _rows(piece: TextPiece, delimiter: str) -> Iterator[tuple[int, list[str] | str]]:
    """Yield each row's first line and its values; in place of what is wrong, the reason.

    Behind a row whose quotes do not close, the next line is read as a row: most likely it is one.
    """
    text = piece.data.decode(errors="surrogateescape")
    is_utf8 = not _has_other_bytes(text)
    lines = _Lines(text)
    rows = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        first = lines.next
        try:
            values = next(rows)
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
        elif values:
            yield piece.line + first, values


def _has_other_bytes(text: str) -> bool:
    return not text.isascii() and _OTHER_BYTE.search(text) is not None


def _sampled(file: StoredFile, delimiter: str, null: frozenset[str]) -> dict[str, str | None]:
    """Return the types of the columns by the names of the first row."""
    piece = next(text_pieces(file, end_of=RowEnds(delimiter)), None)
    rows = _rows(piece, delimiter) if piece else iter(())
    _, names = next(rows, (1, []))
    if isinstance(names, str) or not names or len(set(names)) < len(names) or "" in names:
        raise DataError(
            "the first row must name the columns, each another; add such a row", url=str(file)
        )
    types: dict[str, str | None] = dict.fromkeys(names)
    for _, (_, values) in zip(range(SAMPLE), rows, strict=False):
        if isinstance(values, list) and len(values) == len(names):
            for name, value in zip(names, values, strict=True):
                if value and value not in null:
                    types[name] = join_types([types[name], _type_of(value)])
    return types


def _type_of(text: str) -> str:
    digits = text.removeprefix("-").isdecimal()
    for dtype in ("int64", "float32"):
        try:
            as_value(text, dtype)
        except RowError:
            continue
        # A number that is too large is a name: as a float it would lose digits.
        return "bytes" if digits and dtype == "float32" else dtype
    return "bytes"
