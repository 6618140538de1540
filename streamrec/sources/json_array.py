"""Files that are one JSON array, cut into pieces of whole elements."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from streamrec.errors import DataError
from streamrec.sources.table_values import RowError
from streamrec.sources.text_pieces import TextPiece, last_end, text_pieces

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    import numpy.typing as npt

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
    """Whole elements of an array, with what stands before and behind them.

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
    """Return the places of the elements' first bytes, those behind them, and the open brackets."""
    import numpy as np

    octets = np.frombuffer(_ESCAPED.sub(b"__", data) if b"\\" in data else data, np.uint8)
    depth, quotes = int(not is_first), 0
    starts, ends = [np.empty(0, np.intp)], [np.empty(0, np.intp)]
    for at in range(0, len(octets), _SPAN):
        span = octets[at : at + _SPAN]
        steps = _brackets()[span]
        before = np.cumsum(span == ord('"'), dtype=np.int32) + quotes
        steps[before % 2 == 1] = 0  # in a text
        places = np.flatnonzero(steps)
        steps = steps[places]
        depths = np.cumsum(steps, dtype=np.int32) + depth
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
        """Return the place behind the last line or element; 0: none ends."""
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
    held: TextPiece | None = None
    for piece in text_pieces(file, end_of=ends, what="element"):
        if not ends.is_array:
            yield piece
            continue
        if held is not None:
            yield ArrayPiece(held.path, held.line, held.data, first, is_last=False)
            first = before
        held, before = piece, ends.elements
    if held is not None:
        yield ArrayPiece(held.path, held.line, held.data, first, is_last=True)


def elements_of(piece: ArrayPiece) -> Iterator[tuple[str, bytes | RowError]]:
    """Yield each element with its place, and an error for what wrongly stands before it.

    Raises:
        DataError: The array does not end behind its last element.
    """
    import numpy as np

    starts, ends, depth = _bounds(piece.data, is_first=piece.first == 0)
    lines = np.flatnonzero(np.frombuffer(piece.data, np.uint8) == ord("\n"))

    def line(at: int) -> str:
        return f"line {piece.line + int(np.searchsorted(lines, at))}"

    at, wanted = 0, b"[" if piece.first == 0 else b","
    number = piece.first
    for start, end in zip(starts.tolist(), ends.tolist(), strict=False):
        place = f"element {number}, {line(start)}"
        if (between := piece.data[at:start].strip(_SPACE)) != wanted:
            yield place, RowError(f"before it stands {_shown(between)}, not {_shown(wanted)} alone")
        yield place, piece.data[start:end]
        at, wanted, number = end, b",", number + 1
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
        at: The place behind the last element.
        number: The elements of the array.
        open_at: The place of an element that does not end.
    """
    if open_at is not None:
        return open_at, f"element {number} of the array has no end"
    rest = data[at:].strip(_SPACE)
    where = len(data) - len(data[at:].lstrip(_SPACE))
    if number:
        behind = f"behind element {number - 1} of the array"
        what = f"stands {_shown(rest)}, not ']' alone" if rest else "the file ends, without a ']'"
        return None if rest == b"]" else (where, f"{behind} {what}")
    is_empty = rest.startswith(b"[") and rest[1:].strip(_SPACE) == b"]"
    return None if is_empty else (where, f"the array {_shown(rest)} has no object")


def _shown(text: bytes) -> str:
    shown = text[: _MOST_SHOWN + 1].decode(errors="backslashreplace")
    return repr(shown if len(shown) <= _MOST_SHOWN else f"{shown[:_MOST_SHOWN]}...")
