"""Tables of JSON objects: one a line, or one array of them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from itertools import chain, islice
from shlex import quote
from typing import TYPE_CHECKING, Any, ClassVar

from streamrec.errors import ConfigError, DataError
from streamrec.sources.source import SourceKind, files_of
from streamrec.sources.table import (
    OPTIONS,
    FeatureChoice,
    RowTable,
    TableOptions,
    TextPiece,
    last_end,
    text_pieces,
)
from streamrec.sources.table_values import JsonNumber, RowError, SampledType, widen, with_parts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Unpack

    import numpy as np
    import numpy.typing as npt

    from streamrec.sources.source import ReadsIn
    from streamrec.stores.stored_files import StoredFile


_ESCAPED = re.compile(rb"\\.", re.DOTALL)
_SPACE = b" \t\r\n"
"""What may stand between the parts of JSON."""
_CORRECT = "give an array of objects; if the file is cut off, write it anew"
_MOST_SHOWN = 40
"""Characters of a text in a message."""
_SPAN = 1 << 20
"""Bytes that are looked at together: looking takes up to 18 times as much memory."""


@dataclass(frozen=True)
class ArrayPiece(TextPiece):
    """Whole elements of an array, with what stands before and after them.

    Args:
        first: The number of its first element, from 0.
        is_last: The array ends here.
    """

    first: int
    is_last: bool


@cache
def _brackets() -> npt.NDArray[np.int8]:
    """Return the step that each byte takes into brackets or out of them."""
    import numpy as np

    steps = np.zeros(256, np.int8)
    steps[list(b"{[")] = 1
    steps[list(b"}]")] = -1
    return steps


def _bounds(data: bytes, *, is_first: bool) -> tuple[npt.NDArray[Any], npt.NDArray[Any], int]:
    """Return the places of the elements' first bytes, those after them, and the open brackets."""
    import numpy as np

    # An escaped quote does not end a text; two other characters in its place keep all places.
    octets = np.frombuffer(_ESCAPED.sub(b"__", data) if b"\\" in data else data, np.uint8)
    depth, quotes = int(not is_first), 0
    starts, ends = [np.empty(0, np.intp)], [np.empty(0, np.intp)]
    for at in range(0, len(octets), _SPAN):
        span = octets[at : at + _SPAN]
        steps = _brackets()[span]
        # Behind an odd number of quotes stands a text.
        before = np.cumsum(span == ord('"'), dtype=np.int32) + quotes
        steps[before % 2 == 1] = 0  # in a text
        places = np.flatnonzero(steps)
        steps = steps[places]
        depths = np.cumsum(steps, dtype=np.int32) + depth
        # Depth 1 is the array, so an element opens the second.
        starts.append(places[(depths == 2) & (steps > 0)] + at)
        ends.append(places[(depths == 1) & (steps < 0)] + at + 1)
        depth, quotes = int(depths[-1]) if len(depths) else depth, int(before[-1])
    return np.concatenate(starts), np.concatenate(ends), depth


class _Ends:
    """The search for the last end of a line, or of an element where the file is an array."""

    def __init__(self) -> None:
        self.is_array: bool | None = None
        self.elements = 0
        """Elements before the place where the data begins."""

    def __call__(self, data: bytes) -> int:
        """Return the place after the last line or element; 0: none ends."""
        # The first character that is not white space tells it, for all of the file.
        if self.is_array is None:
            begin = data.lstrip()[:1]
            if not begin:
                return 0
            self.is_array = begin == b"["
        if not self.is_array:
            return last_end(data)
        _, ends, _ = _bounds(data, is_first=self.elements == 0)
        if not len(ends):
            return 0
        self.elements += len(ends)
        return int(ends[-1])


def json_pieces(file: StoredFile) -> Iterator[TextPiece]:
    """Yield a file's pieces: lines, or elements where it begins with a bracket.

    Raises:
        DataError: As of :func:`text_pieces`.
    """
    ends, first, before = _Ends(), 0, 0
    previous: TextPiece | None = None
    for piece in text_pieces(file, end_of=ends, what="element"):
        if not ends.is_array:
            yield piece
            continue
        if previous is not None:
            yield ArrayPiece(previous.path, previous.line, previous.data, first, is_last=False)
            first = before
        previous, before = piece, ends.elements
    if previous is not None:
        yield ArrayPiece(previous.path, previous.line, previous.data, first, is_last=True)


def elements_of(piece: ArrayPiece) -> Iterator[tuple[str, bytes | RowError]]:
    """Yield each element with its place, and an error for what wrongly stands before it.

    Raises:
        DataError: The array does not end after its last element.
    """
    import numpy as np

    starts, ends, depth = _bounds(piece.data, is_first=piece.first == 0)
    lines = np.flatnonzero(np.frombuffer(piece.data, np.uint8) == ord("\n"))

    def line(at: int) -> str:
        return f"line {piece.line + int(np.searchsorted(lines, at))}"

    at, separator = 0, b"[" if piece.first == 0 else b","
    number = piece.first
    # The last element of a damaged file may have a beginning alone.
    for start, end in zip(starts.tolist(), ends.tolist(), strict=False):
        place = f"element {number}, {line(start)}"
        if (between := piece.data[at:start].strip(_SPACE)) != separator:
            must = f"the text before it must be {_show(separator)} alone"
            yield place, RowError(f"{must}, not {_show(between)}")
        yield place, piece.data[start:end]
        at, separator, number = end, b",", number + 1
    if piece.is_last:
        open_at = int(starts[len(ends)]) if depth > 1 else None
        fault = _fault_of_end(piece.data, at, number, open_at)
        if fault:
            where, what = fault
            raise DataError(f"{line(where)}: {what}; {_CORRECT}", url=piece.path)


def _fault_of_end(data: bytes, at: int, number: int, open_at: int | None) -> tuple[int, str] | None:
    """Return where and how an array does not end as it must; ``None``: it does.

    Args:
        data: The text, with the array's end.
        at: The place after the last element.
        number: The elements of the array.
        open_at: The place of an element that does not end.
    """
    if open_at is not None:
        return open_at, f"element {number} of the array has no end"
    rest = data[at:].strip(_SPACE)
    where = len(data) - len(data[at:].lstrip(_SPACE))
    if number:
        behind = f"after element {number - 1} of the array"
        what = f"stands {_show(rest)}, not ']' alone" if rest else "the file ends, without a ']'"
        return None if rest == b"]" else (where, f"{behind} {what}")
    is_empty = rest.startswith(b"[") and rest[1:].strip(_SPACE) == b"]"
    return None if is_empty else (where, f"the array {_show(rest)} has no object")


def _show(text: bytes) -> str:
    shown = text[: _MOST_SHOWN + 1].decode(errors="backslashreplace")
    return repr(shown if len(shown) <= _MOST_SHOWN else f"{shown[:_MOST_SHOWN]}...")


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
    # Python's parser has a depth, and a file may go beyond it.
    except RecursionError:
        raise RowError("it is nested too deeply; correct it") from None
    if not isinstance(value, dict):
        raise RowError("it is not a JSON object; give one object with names and values a row")
    values: dict[str, Any] = value
    # Most rows are flat, and need no second dict.
    if dict in map(type, values.values()):
        values = _distinct(list(_flat(values)))
    # Only an escape makes half of a character; bytes that are not UTF-8 were refused.
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
            yield from ((f"{name}/{inner}", item) for inner, item in _flat(value))
        else:
            yield name, value


def _check_names(values: dict[str, Any]) -> None:
    for name in values:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise RowError(f"the name {name!r} has half of a character; correct it") from None


def open_json_lines(
    place: str, *, storage_options: Mapping[str, Any] | None = None, **table: Unpack[TableOptions]
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
