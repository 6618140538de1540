"""Tables of JSON objects: one a line, or one array of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import chain, islice
from shlex import quote
from typing import TYPE_CHECKING, Any, ClassVar

from streamrec.errors import ConfigError, DataError
from streamrec.sources.json_array import ArrayPiece, elements_of, json_pieces
from streamrec.sources.kind import SourceKind
from streamrec.sources.source import files_of
from streamrec.sources.table import OPTIONS, FeatureChoice, RowTable, TableOptions
from streamrec.sources.table_values import JsonNumber, RowError, SampledType, widen, with_parts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Unpack

    from streamrec.sources.source import ReadsIn
    from streamrec.sources.text_pieces import TextPiece
    from streamrec.stores.stored_files import StoredFile

SAMPLE = 1000
"""Rows by which names and types are found."""


@dataclass(frozen=True, kw_only=True)
class JSONLines(RowTable):
    """Files of one JSON object a line, or of one array of objects.

    Objects in objects are named ``outer/inner``. ``given`` also has the features with both texts
    and numbers.
    """

    reads_in: ClassVar[ReadsIn] = "processes"
    choice: FeatureChoice

    def pieces(self) -> Iterator[TextPiece]:
        """Yield whole rows of each file."""
        return chain.from_iterable(map(json_pieces, self.files))

    def rows(self, piece: TextPiece) -> Iterator[tuple[str, dict[str, Any] | RowError]]:
        """Yield the values of each row."""
        keeps_numbers = any(self.features.get(name) == "bytes" for name in self.given)
        for place, row in _rows(piece):
            try:
                yield place, self._check(_values(row, keeps_numbers=keeps_numbers))
            except RowError as error:
                yield place, error

    def _check(self, values: dict[str, Any]) -> dict[str, Any]:
        unknown = filter(self.choice.takes, values.keys() - self.features.keys())
        for name in sorted(unknown):
            if values[name] not in (None, []):
                raise RowError(
                    f"{name!r} is not in the first {SAMPLE} rows; add --type "
                    f"{quote(f'{name}=TYPE')}, or leave it out with --drop {quote(name)}"
                )
        return values


def _rows(piece: TextPiece) -> Iterator[tuple[str, bytes | RowError]]:
    """Yield the place and the text of each row, or the error that stands there."""
    if isinstance(piece, ArrayPiece):
        yield from elements_of(piece)
        return
    for number, line in enumerate(piece.data.splitlines(), piece.line):
        if line.strip():
            yield f"line {number}", line


def _values(row: bytes | RowError, *, keeps_numbers: bool = False) -> dict[str, Any]:
    if isinstance(row, RowError):
        raise row
    return json_object(row, keeps_numbers=keeps_numbers)


def json_object(row: bytes, *, keeps_numbers: bool = False) -> dict[str, Any]:
    """Return the values of a JSON object, those of objects in it by ``outer/inner``.

    Args:
        row: The object.
        keeps_numbers: Give numbers with a point or an exponent with their text.

    Raises:
        RowError: It is not an object, or one name stands for two values.
    """
    try:
        value: Any = (_KEEPS_NUMBERS if keeps_numbers else _DECODER).decode(row.decode())
    except UnicodeDecodeError:
        raise RowError("there are bytes that are not UTF-8; convert the file to it") from None
    except json.JSONDecodeError as error:
        raise RowError(_why_not(error)) from None
    except RowError:
        raise
    except ValueError as error:
        raise RowError(f"it is not JSON: {error}; correct it") from None
    except RecursionError:
        raise RowError("it is nested too deeply; correct it") from None
    if not isinstance(value, dict):
        raise RowError("it is not a JSON object; give one object with names and values a row")
    values: dict[str, Any] = value
    if dict in map(type, values.values()):
        values = _distinct(list(_flat(values)))
    if b"\\u" in row:
        _check_names(values)
    return values


def _why_not(error: json.JSONDecodeError) -> str:
    """Return why a text is not JSON, and what to do."""
    text = error.doc.strip()
    if text.startswith("{") and error.pos >= len(error.doc.rstrip()):
        return "its object does not end; give one object a line, or one array of objects"
    what = error.msg.removesuffix(" at")
    return f"it is not JSON: {what} at character {error.pos + 1}; correct it"


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise RowError(
            f"two values are named {twice!r}, and a record has one feature of a name; rename one"
        )
    return values


_DECODER = json.JSONDecoder(object_pairs_hook=_distinct, parse_constant=JsonNumber)
_KEEPS_NUMBERS = json.JSONDecoder(
    object_pairs_hook=_distinct, parse_constant=JsonNumber, parse_float=JsonNumber
)


def _flat(values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from ((f"{name}/{inner}", held) for inner, held in _flat(value))
        else:
            yield name, value


def _check_names(values: dict[str, Any]) -> None:
    for name in values:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise RowError(f"the name {name!r} has half of a character; correct it") from None


def open_json_lines(
    place: str,
    *,
    storage_options: Mapping[str, Any] | None = None,
    **table: Unpack[TableOptions],
) -> JSONLines:
    """Open JSON lines; see :class:`JSONLines`.

    Raises:
        ConfigError: There are no files, or an argument is wrong.
        DataError: No row can be read.
    """
    files = files_of(place, KIND.suffixes, storage_options)
    choice = FeatureChoice(**table)
    sampled: dict[str, SampledType] = {}
    lists: set[str] = set()
    wrong: DataError | None = None
    for row in chain.from_iterable(map(_sample, files)):
        if isinstance(row, DataError):
            wrong = wrong or row
        else:
            widen(sampled, lists, row)
    types = {name: one.dtype or "bytes" for name, one in sampled.items()}
    types |= choice.given  # a feature with a type need not be in the first rows
    if not types:
        empty = "there is no JSON object with values in it; correct SOURCE"
        raise wrong or ConfigError(f"{files[0]}: {empty}")
    mixed = {name for name, one in sampled.items() if one.is_mixed}
    return JSONLines(
        files=files,
        features=choice.choose(types, str(files[0])),
        lists=frozenset(lists),
        choice=choice,
        given=frozenset(mixed | choice.given.keys()),
        parts=with_parts(sampled),
        key=choice.key,
    )


KIND = SourceKind(
    "jsonl", open_json_lines, (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz"), OPTIONS
)


def _sample(file: StoredFile) -> Iterator[dict[str, Any] | DataError]:
    """Yield the first rows, and the errors of those that cannot be read."""
    rows = chain.from_iterable(map(_rows, json_pieces(file)))
    for place, row in islice(rows, SAMPLE):
        try:
            yield _values(row)
        except RowError as error:
            yield DataError(f"{place}: {error}", url=str(file))
