"""Preconditions (RFC 9110, section 13), in their order of precedence. Pure: no I/O."""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Verdict", "evaluate", "range_still_holds"]

Verdict = Literal["proceed", "not modified", "failed"]


def evaluate(headers: Mapping[str, str], etag: str | None, modified: float) -> Verdict:
    """Return the verdict of a request's preconditions for an object.

    Args:
        headers: The request's headers; case-insensitive.
        etag: The object's ETag, without quotes; None if there is no object.
        modified: The object's time of modification, in seconds since 1970.
    """
    if "If-Match" in headers:
        if not _matches(headers["If-Match"], etag):
            return "failed"
    elif _later(modified, headers.get("If-Unmodified-Since")):
        return "failed"
    if "If-None-Match" in headers:
        return "not modified" if _matches(headers["If-None-Match"], etag) else "proceed"
    since = headers.get("If-Modified-Since")
    unchanged = _date(since) is not None and not _later(modified, since)
    return "not modified" if unchanged else "proceed"


def range_still_holds(headers: Mapping[str, str], etag: str, modified: float) -> bool:
    """Return whether the Range header applies, given If-Range, if there is one."""
    value = headers.get("If-Range")
    if value is None:
        return True
    if value.startswith(('"', "W/")):
        return value == f'"{etag}"'
    return _date(value) == int(modified)


def _matches(header: str, etag: str | None) -> bool:
    if etag is None:
        return False
    tags = [tag.strip() for tag in header.split(",")]
    # S3 accepts a tag without quotes too.
    return any(tag.removeprefix("W/").strip('"') == etag or tag == "*" for tag in tags)


def _later(modified: float, header: str | None) -> bool:
    date = _date(header)
    return date is not None and int(modified) > date


def _date(header: str | None) -> int | None:
    """Return a date as seconds since 1970; None if it is invalid, and thus to be ignored."""
    try:
        return int(parsedate_to_datetime(header or "").timestamp())
    except ValueError:
        return None
