"""Files of lines, cut into pieces of some MB that begin with a line."""

from __future__ import annotations

import gzip
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Literal, cast

from streamrec.errors import DataError
from streamrec.sources.source import PIECE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from streamrec.stores.stored_files import StoredFile

MOST_BYTES = 64 << 20
"""The longest row that is waited for."""
_MARK = b"\xef\xbb\xbf"
"""The byte order mark that some editors put before UTF-8."""
_MEND = {
    "row": "give a file of lines",
    "element": "give a file of lines, or an array of objects",
    "document": "put a blank line between documents",
}


@dataclass(frozen=True)
class TextPiece:
    """Whole lines of a file.

    Args:
        path: The file, for messages.
        line: The number of the first line, from 1.
        data: The lines.
    """

    path: str
    line: int
    data: bytes

    @property
    def amount(self) -> int:
        """The bytes of the lines, decompressed."""
        return len(self.data)


def total_bytes(files: Sequence[StoredFile]) -> int | None:
    """Return the bytes of all files, which of compressed ones are not known."""
    return None if any(map(is_compressed, files)) else sum(file.size for file in files)


def is_compressed(file: StoredFile) -> bool:
    """Return whether a file's name says that it is compressed by gzip."""
    return file.name.endswith((".gz", ".tgz"))


@contextmanager
def open_plain(file: StoredFile) -> Iterator[IO[bytes]]:
    """Open a file to read it; a compressed one is decompressed."""
    with file.open() as stored:
        if is_compressed(file):
            with gzip.open(stored) as plain:
                yield cast("IO[bytes]", plain)
        else:
            yield stored


def last_end(data: bytes) -> int:
    """Return the place after the last line feed; 0 where there is none."""
    return data.rfind(b"\n") + 1


def text_pieces(
    file: StoredFile,
    *,
    end_of: Callable[[bytes], int] = last_end,
    what: Literal["row", "element", "document"] = "row",
    size: int | None = None,
) -> Iterator[TextPiece]:
    """Yield a file's pieces.

    Args:
        file: The file.
        end_of: Returns the place after the last end of a row; 0 where none ends.
        what: The thing that ends there, for messages.
        size: The bytes of a piece, about.

    Raises:
        DataError: A row does not end, or the file cannot be decompressed.
    """
    # A piece ends with the last row in what was read; its rest begins the next.
    rest, line, is_first = b"", 1, True
    looked = 0
    with open_plain(file) as lines:
        while data := _read(lines, size or PIECE_BYTES, file):
            rest += data.removeprefix(_MARK) if is_first else data
            is_first = False
            if len(rest) < min(2 * looked, MOST_BYTES):
                continue  # looking again at each read would take quadratic time
            end = end_of(rest)
            looked = 0 if end else len(rest)
            if end:
                yield TextPiece(str(file), line, rest[:end])
                line += rest.count(b"\n", 0, end)
                rest = rest[end:]
            elif len(rest) > MOST_BYTES:
                raise DataError(
                    f"the {what} that begins in line {line} does not end within {MOST_BYTES >> 20} "
                    f"MiB; {_MEND[what]}",
                    url=str(file),
                )
    # The last row may have no line feed.
    if rest:
        yield TextPiece(str(file), line, rest)


def _read(lines: IO[bytes], size: int, file: StoredFile) -> bytes:
    try:
        return lines.read(size)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(
            f"it cannot be decompressed: {error}; compress it anew", url=str(file)
        ) from None
