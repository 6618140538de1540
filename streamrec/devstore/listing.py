"""The computation of one page of a listing. Pure: no I/O."""

from __future__ import annotations

import base64
import binascii
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

from streamrec.devstore.errors import Refusal

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Page", "list_page"]

LARGEST_PAGE = 1000
"""Most keys and common prefixes on a page, together: S3's own limit."""


@dataclass(frozen=True, slots=True)
class Page:
    """The sorted keys and common prefixes of a page, and the token of the next one."""

    keys: tuple[str, ...]
    prefixes: tuple[str, ...]
    token: str | None
    """The ``continuation-token`` of the next page; None on the last one."""


def list_page(
    keys: Sequence[str],
    *,
    prefix: str = "",
    delimiter: str = "",
    start_after: str = "",
    start: str = "",
    stop: str = "",
    token: str | None = None,
    max_keys: int = LARGEST_PAGE,
) -> Page:
    """Return one page of the keys.

    Args:
        keys: All keys of the bucket, sorted.
        prefix: The beginning of the keys to list.
        delimiter: Keys that are equal up to the first delimiter after the prefix become one common
            prefix.
        start_after: A name; the page begins after it.
        start: A key; the page begins with it or after it (GCS).
        stop: A key; the listing ends before it (GCS). Empty: no end.
        token: The token of the page before; it overrides ``start_after``.
        max_keys: Most keys and prefixes on the page.

    Raises:
        Refusal: The token is not valid.
    """
    after = start_after if token is None else _decode(token)
    found: list[str] = []
    rolled: list[str] = []
    at = max(bisect_left(keys, prefix), bisect_left(keys, start))
    at = max(at, bisect_right(keys, after) if after else 0)
    end = bisect_left(keys, stop) if stop else len(keys)
    last = after
    while at < end and keys[at].startswith(prefix):
        group = _group(keys[at], prefix, delimiter)
        if group is not None and group == after:
            at = _past(keys, group)
            continue
        if len(found) + len(rolled) >= min(max_keys, LARGEST_PAGE):
            more = _encode(last) if max_keys > 0 else None
            return Page(tuple(found), tuple(rolled), more)
        last = keys[at] if group is None else group
        (found if group is None else rolled).append(last)
        at = at + 1 if group is None else _past(keys, group)
    return Page(tuple(found), tuple(rolled), None)


def _group(key: str, prefix: str, delimiter: str) -> str | None:
    """Return the common prefix that replaces the key in the listing, or None."""
    end = key.find(delimiter, len(prefix)) if delimiter else -1
    return None if end < 0 else key[: end + len(delimiter)]


def _past(keys: Sequence[str], group: str) -> int:
    """Return the index after the last key that begins with the group."""
    return bisect_right(keys, group, key=lambda key: key[: len(group)])


def _encode(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode()).decode()


def _decode(token: str) -> str:
    try:
        return base64.b64decode(token.encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeError):
        raise Refusal(400, "InvalidArgument", "The continuation token is incorrect") from None
