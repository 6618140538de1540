"""Files of lines, cut into pieces of some MB that begin with a line."""

from __future__ import annotations

import gzip
import re
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, cast

import numpy as np

from streamrec.errors import DataError
from streamrec.shard_tools.sources.source import PIECE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import numpy.typing as npt

__all__ = ["TextPiece", "opened", "text_pieces", "total_bytes"]

MOST_BYTES = 64 << 20
"""The longest row, or quoted text, that is waited for."""
_MARK = b"\xef\xbb\xbf"
"""The byte order mark that some editors put before UTF-8."""


@dataclass(frozen=True)
class TextPiece:
    """Whole lines of a file.

    Args:
        path: The file.
        line: The number of the first line, from 1.
        data: The lines.
    """

    path: Path
    line: int
    data: bytes


def total_bytes(files: Sequence[Path]) -> int | None:
    """Return the bytes of all files, which of compressed ones are not known."""
    if any(file.suffix == ".gz" for file in files):
        return None
    return sum(file.stat().st_size for file in files)


def opened(path: Path) -> IO[bytes]:
    """Open a file to read it; one whose name ends in ``.gz`` is decompressed."""
    if path.suffix == ".gz":
        return cast("IO[bytes]", gzip.open(path))
    return path.open("rb")


def text_pieces(path: Path, *, delimiter: str | None = None) -> Iterator[TextPiece]:
    """Yield a file's pieces.

    Double quotes that are never closed take up to 64 MiB into one piece; those behind it are whole
    rows again.

    Args:
        path: The file.
        delimiter: Stands between values, of which those in double quotes may hold line feeds;
            ``None``: lines have no values.

    Raises:
        DataError: A line does not end.
    """
    end_of = _last_end if delimiter is None else _RowEnds(delimiter)
    rest, line, is_first = b"", 1, True
    with opened(path) as file:
        while data := file.read(PIECE_BYTES):
            rest += data.removeprefix(_MARK) if is_first else data
            is_first = False
            end = end_of(rest)
            if not end and len(rest) > MOST_BYTES:
                end = _last_end(rest)
            if end:
                yield TextPiece(path, line, rest[:end])
                line += rest.count(b"\n", 0, end)
                rest = rest[end:]
            elif len(rest) > MOST_BYTES:
                raise DataError(
                    f"line {line} does not end in {MOST_BYTES >> 20} MiB; give a file of lines",
                    url=str(path),
                )
    if rest:
        yield TextPiece(path, line, rest)


def _last_end(data: bytes) -> int:
    """Return the place behind the last line feed; 0 where there is none."""
    return data.rfind(b"\n") + 1


class _RowEnds:
    """The search for the last line feed that ends a row, as Python's ``csv`` reads rows.

    A double quote opens a value only at its beginning, and is a character like others elsewhere.
    """

    def __init__(self, delimiter: str) -> None:
        self._delimiter = delimiter.encode()
        own = re.escape(self._delimiter)
        text, inner = rb'[^"\n]++', rb'[^"]*+(?:""[^"]*+)*+"'
        opening = rb'(?:\A|(?<=[\r\n])|(?<=%b))"' % own
        other = rb'(?!\A)(?<![\r\n])(?<!%b)"' % own
        self._rows = re.compile(rb"(?:(?:%b|%b%b|%b)*+\n)*+" % (text, opening, inner, other))

    def __call__(self, data: bytes) -> int:
        """Return the place behind the last row of data that begins with a row; 0: none ends."""
        if b'"' not in data:
            return _last_end(data)
        quotes = np.flatnonzero(np.frombuffer(data, np.uint8) == ord(b'"'))
        if not self._all_open_values(data, quotes[::2]):
            found = self._rows.match(data)
            return found.end() if found else 0
        # Doubled quotes inside of quotes keep the number even: RFC 4180.
        end = _last_end(data)
        while end and np.searchsorted(quotes, end) % 2:
            end = data.rfind(b"\n", 0, end - 1) + 1
        return end

    def _all_open_values(self, data: bytes, quotes: npt.NDArray[np.int64]) -> bool:
        """Return whether every other quote begins a value, or doubles the quote before it."""
        if len(self._delimiter) > 1:
            return False
        before = np.frombuffer(b"\n" + data, np.uint8)[quotes]
        return bool(np.isin(before, np.frombuffer(self._delimiter + b'\r\n"', np.uint8)).all())
