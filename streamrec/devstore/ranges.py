"""The Range header (RFC 9110, section 14) as S3 interprets it. Pure: no I/O."""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["Span", "Unsatisfiable", "parse_range", "unsatisfied"]

# Python refuses to convert more than 4,300 digits; no header needs as many.
_ONE_RANGE = re.compile(r"([0-9]{0,4000})-([0-9]{0,4000})")


class Span(NamedTuple):
    """Bytes ``[start, stop)`` of an object of ``size`` bytes; never empty."""

    start: int
    stop: int
    size: int

    @property
    def content_range(self) -> str:
        """The value of the Content-Range header."""
        return f"bytes {self.start}-{self.stop - 1}/{self.size}"


class Unsatisfiable(Exception):
    """The range begins past the end, asks for the last 0 bytes, or the object is empty."""


def unsatisfied(size: int) -> str:
    """Return the value of Content-Range in a 416 response."""
    return f"bytes */{size}"


def parse_range(header: str | None, size: int) -> Span | None:
    """Return the bytes that a Range header selects.

    As in S3, a header with several ranges is ignored, and no range of an empty object can be
    satisfied.

    Args:
        header: The header's value; None if the request has none.
        size: The object's size in bytes.

    Returns:
        The span; None if the header is absent or to be ignored (another unit, malformed).

    Raises:
        Unsatisfiable: The response must be a 416.
    """
    unit, separator, given = (header or "").partition("=")
    match = _ONE_RANGE.fullmatch(given.strip(" \t"))
    if unit.strip().lower() != "bytes" or not separator or match is None:
        return None
    first, last = match.groups()
    if not first:
        return _suffix(last, size)
    if last and int(last) < int(first):
        return None
    if int(first) >= size:
        raise Unsatisfiable
    return Span(int(first), min(int(last) + 1, size) if last else size, size)


def _suffix(last: str, size: int) -> Span | None:
    if not last:
        return None
    if int(last) == 0 or size == 0:
        raise Unsatisfiable
    return Span(max(0, size - int(last)), size, size)
