"""Names of the objects beside a dataset's shards: its indexes, manifests."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from streamrec.config.places import is_http, split_chain
from streamrec.errors import ConfigError
from streamrec.masking import masked

if TYPE_CHECKING:
    from collections.abc import Sequence

SUFFIX = ".streamrec-index"
"""The end of an index's name."""
KEYS = ".streamrec-keys"
"""The end of the name of an index of a key."""
LENGTHS = ".streamrec-lengths"
"""The end of the name of an index of lengths."""
SIGNED = "?..."
"""The end of the name of a shard whose URL is of http and has a query."""
COMPANIONS = (SUFFIX, KEYS, LENGTHS, ".streamrec-manifest.json", ".streamrec-part")
"""The ends of names beside a dataset's shards; patterns for shards never match such names."""

_NUMBERED = re.compile(r"(.*[^/])-\d{5}-of-\d{5}(?:\.[^/]*)?", re.DOTALL)


def is_companion(name: str) -> bool:
    """Return whether a path or URL is not that of a shard: an index, a manifest, a part file.

    ``.name.part`` is the file of a writer that has not finished, or was killed.
    """
    last = name.rpartition("/")[2]
    return last.endswith(COMPANIONS) or (last.startswith(".") and last.endswith(".part"))


def index_url(urls: Sequence[str]) -> str:
    """Return the URL of a dataset's index: what its shards' URLs begin with, and ``SUFFIX``.

    For ``s3://b/train-00000-of-00128.tfrecord`` and the others it is ``s3://b/train`` and the
    suffix. Only the shards' numbers are left out where all are of one such name: ``fold-1`` and
    ``fold-2`` in one directory have an index each.
    """
    names = {_dataset_of(url) for url in urls}
    if len(set(urls)) > 1 and len(names) == 1 and None not in names:
        return f"{names.pop()}{SUFFIX}"
    shared = os.path.commonprefix([plain_url(url) for url in urls])  # noqa: RUF071 - of characters
    directory, slash, stem = shared.rpartition("/")
    if len(set(urls)) > 1:
        # Digits and separators that all numbers begin with are not a part of the dataset's name.
        stem = stem.rstrip("0123456789-_.=")
    # Without a stem the name would begin with a dot, which hides the file.
    return f"{directory}{slash}{stem or 'shards'}{SUFFIX}"


def index_places(urls: Sequence[str]) -> list[str]:
    """Return the URLs at which the index of these shards may stand: the first that exists is it.

    A single shard that has the name of one among others, as ``train-00000-of-00128.tfrecord`` has,
    is found in the index of all, too.

    Raises:
        ConfigError: Some shards are in an archive that does not hold the others.
    """
    name = _dataset_of(urls[0]) if len(urls) == 1 else None
    places = [index_url(urls), *([] if name is None else [f"{name}{SUFFIX}"])]
    return [f"{place}{shared_ending(urls)}" for place in places]


def _dataset_of(url: str) -> str | None:
    """Return the URL of a numbered shard without its number; ``None``: it has none."""
    found = _NUMBERED.fullmatch(plain_url(url))
    return None if found is None else found[1]


def plain_url(url: str) -> str:
    """Return a URL without what follows the name: a query of http, or the archive of a chain.

    Both stand after the names of what is beside a shard, too; the query may be a signature.
    """
    if "?" not in url and "::" not in url:  # most of a million
        return url
    return url.partition("?")[0] if is_http(url) else url.removesuffix(split_chain(url).after)


def shared_ending(urls: Sequence[str]) -> str:
    """Return what follows the names of all shards: a query of http, with its ``?``, or an archive.

    A query that they share may be a signature of their folder, which opens what is beside them,
    too. It is an empty text where each has its own.

    Raises:
        ConfigError: Some shards are in an archive that does not hold the others.
    """
    behind = {url.removeprefix(plain_url(url)) for url in urls}
    if len(behind) == 1:
        return behind.pop()
    if archives := {split_chain(url).after for url in urls} - {""}:
        raise ConfigError(
            f"not all shards are in one archive, as some are in {masked(min(archives))[2:]}, so "
            "nothing stands beside all of them; read one archive at a time, or name the index by "
            "its URL"
        )
    return ""
