"""The computation of one page of a listing. Pure: no I/O."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from streamrec.devstore.ranges import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

LARGEST_PAGE = 1000
"""Most keys and common prefixes on a page, together: S3's own limit."""


@dataclass(frozen=True, slots=True)
class ListingPage:
    """The sorted keys and common prefixes of a page, and the token of the next one."""

    keys: tuple[str, ...]
    prefixes: tuple[str, ...]
    token: str | None
    """The last name on the page, percent-encoded; None on the last page."""


def page_limit(query: Mapping[str, str], name: str) -> int:
    """Return the most keys and common prefixes on a page, from a query's parameter ``name``.

    Raises:
        Refusal: The value is not a number.
    """
    text = query.get(name, str(LARGEST_PAGE))
    if not re.fullmatch("[0-9]{1,10}", text):
        message = f"{name} must be an integer between 0 and 2147483647"
        raise Refusal(400, "InvalidArgument", message)
    return min(int(text), LARGEST_PAGE)


def list_page(
    keys: Sequence[str],
    *,
    prefix: str = "",
    delimiter: str = "",
    start_after: str = "",
    start: str = "",
    token: str | None = None,
    max_keys: int = LARGEST_PAGE,
) -> ListingPage:
    """Return one page of the keys.

    Args:
        keys: All keys of the bucket, sorted.
        prefix: The beginning of the keys to list.
        delimiter: Keys that are equal up to the first delimiter after the prefix become one common
            prefix.
        start_after: A name; the page begins after it.
        start: A key; the page begins with it or after it (GCS).
        token: The token of the page before; it overrides ``start_after``.
        max_keys: Most keys and prefixes on the page.
    """
    after = start_after if token is None else unquote(token)
    first = max(bisect_left(keys, max(prefix, start)), bisect_right(keys, after) if after else 0)
    names = _names(keys, first, prefix, delimiter)
    later = ((name, common) for name, common in names if name != after)
    page = list(islice(later, max_keys))
    return ListingPage(
        tuple(name for name, common in page if not common),
        tuple(name for name, common in page if common),
        quote(page[-1][0]) if page and any(later) else None,
    )


def _names(keys: Sequence[str], at: int, prefix: str, delimiter: str) -> Iterator[tuple[str, bool]]:
    """Yield the names to list, and ``True`` with those that are common prefixes of keys."""
    while at < len(keys) and keys[at].startswith(prefix):
        cut = keys[at].find(delimiter, len(prefix)) if delimiter else -1
        name = keys[at] if cut < 0 else keys[at][: cut + len(delimiter)]
        yield name, cut >= 0
        at = at + 1 if cut < 0 else bisect_right(keys, name, key=lambda key: key[: len(name)])
