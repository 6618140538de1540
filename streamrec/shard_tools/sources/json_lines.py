"""Tables of JSON objects, one a line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

from streamrec.errors import ConfigError, DataError
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
    encode_table,
    widen,
)
from streamrec.shard_tools.sources.text_pieces import text_pieces, total_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from streamrec.shard_tools.sources.source import ReadsIn, Refuse
    from streamrec.shard_tools.sources.text_pieces import TextPiece
    from streamrec.stores.stored_files import StoredFile

__all__ = ["JSONLines", "json_object", "open_json_lines"]

SUFFIXES = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")
SAMPLE = 1000
"""Rows by which names and types are found."""


@dataclass(frozen=True)
class JSONLines(Divisible):
    """Files of one JSON object a line. Objects in objects are named ``outer/inner``."""

    reads_in: ClassVar[ReadsIn] = "processes"
    unit: ClassVar[str] = "bytes"
    labels: ClassVar[None] = None
    features: dict[str, str]
    lists: frozenset[str]
    is_chosen: bool
    """The features are those of the user, so others are left out; else others are refused."""
    key: str | None

    @property
    def total(self) -> int | None:
        """The bytes of all files, which of compressed ones are not known."""
        return total_bytes(self.files)

    @property
    def identity(self) -> Any:
        """The name and version of the rows."""
        return table_identity(self.files, self.features, self.key)

    def pieces(self) -> Iterator[TextPiece]:
        """Yield whole lines of each file."""
        for file in self.files:
            yield from text_pieces(file)

    def read(self, piece: TextPiece, refuse: Refuse) -> Block:
        """Parse rows."""
        rows = TableRows(self.features, self.lists)
        for number, line in enumerate(piece.data.splitlines(), piece.line):
            if not line.strip():
                continue
            try:
                rows.add(number, self._known(json_object(line)))
            except RowError as error:
                rows.add(number, error)
        columns, missing, _ = rows.columns(
            lambda number, error: refuse(DataError(f"line {number}: {error}", url=piece.path))
        )
        records, keys = encode_table(columns, missing, self.key)
        return Block(records, len(piece.data), keys)

    def _known(self, values: dict[str, Any]) -> dict[str, Any]:
        if not self.is_chosen and (unknown := values.keys() - self.features.keys()):
            name = min(unknown)
            if values[name] not in (None, []):
                raise RowError(
                    f"{name!r} is in none of the first {SAMPLE} rows; name all features with "
                    "--features"
                )
        return values


def json_object(line: bytes) -> dict[str, Any]:
    """Return the values of a JSON object, those of objects in it by ``outer/inner``.

    Raises:
        RowError: It is none.
    """
    try:
        value = json.loads(line.decode(errors="surrogatepass"))
    except ValueError as error:
        raise RowError(f"it is no JSON: {error}; correct it") from None
    except RecursionError:
        raise RowError("it is nested too deeply; correct it") from None
    if not isinstance(value, dict):
        raise RowError("it is no JSON object; give one object with names and values a line")
    return dict(_flat(value)) if dict in map(type, value.values()) else value


def _flat(values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from ((f"{name}/{inner}", held) for inner, held in _flat(value))
        else:
            yield name, value


def open_json_lines(
    place: str,
    *,
    features: Mapping[str, str | None] | None = None,
    key: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> JSONLines:
    """Open JSON lines; see :class:`JSONLines`.

    Raises:
        ConfigError: There are none, or an argument is wrong.
    """
    files = files_of(place, SUFFIXES, storage_options)
    found: dict[str, str | None] = {}
    lists: set[str] = set()
    for row in _sample(files):
        widen(found, lists, row)
    known = {name: dtype or "bytes" for name, dtype in found.items()}
    # A feature with a type need not be in the first rows.
    known |= {name: dtype for name, dtype in (features or {}).items() if dtype is not None}
    if not known:
        raise ConfigError(f"{files[0]}: there is no JSON object with values in it; correct SOURCE")
    wanted = selected(known, features, str(files[0]), key)
    return JSONLines(files, wanted, frozenset(lists), features is not None, key)


def _sample(files: list[StoredFile]) -> Iterator[dict[str, Any]]:
    for file in files:
        piece = next(text_pieces(file), None)
        for line in islice(piece.data.splitlines() if piece else (), SAMPLE):
            try:
                yield json_object(line)
            except RowError:
                continue
