"""The ends of rows in tables of separated values, whose quoted values may hold line feeds."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from streamrec.sources.text_pieces import MOST_BYTES, last_end

if TYPE_CHECKING:
    import numpy.typing as npt


class RowEnds:
    """The search for the last line feed that ends a row, as Python's ``csv`` reads rows.

    A double quote opens a value only at its beginning, and is a character like others elsewhere.
    Where quotes are not closed in 64 MiB, the last line feed counts: most likely it ends a row.

    Args:
        delimiter: The character between values.
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
        end = self._end(data)
        return last_end(data) if not end and len(data) > MOST_BYTES else end

    def _end(self, data: bytes) -> int:
        if b'"' not in data:
            return last_end(data)
        import numpy as np

        quotes = np.flatnonzero(np.frombuffer(data, np.uint8) == ord(b'"'))
        if not self._all_open_values(data, quotes[::2]):
            found = self._rows.match(data)
            return found.end() if found else 0
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
