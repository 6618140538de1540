"""Finds the counted range that names given shards, as ``train-{00000..00127}``. No I/O."""

from __future__ import annotations

import re
from os.path import commonprefix
from typing import TYPE_CHECKING

from streamrec.errors import ConfigError
from streamrec.masking import masked
from streamrec.stores.source_text import expand, is_glob

if TYPE_CHECKING:
    from collections.abc import Collection

DIGITS = "0123456789"


def counted_range(urls: Collection[str]) -> str | None:
    """Return the range that stands for exactly these URLs; ``None``: none does, or it is secret."""
    if len(urls) < 2:
        return None
    first, *_, last = sorted(urls, key=lambda url: (len(url), url))
    head = commonprefix([first, last]).rstrip(DIGITS)  # noqa: RUF071 - characters are meant
    one, other = (re.fullmatch(r"(\d+)(.*)", url[len(head) :], re.DOTALL) for url in (first, last))
    if not one or not other or int(other[1]) - int(one[1]) + 1 != len(urls):
        return None
    found = f"{head}{{{one[1]}..{other[1]}}}{other[2]}"
    return found if masked(found) == found and _stands_for(found, urls) else None


def _stands_for(source: str, urls: Collection[str]) -> bool:
    try:
        return not is_glob(source) and set(expand(source)) == set(urls)
    except ConfigError:  # a name with braces of its own
        return False
