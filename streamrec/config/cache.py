"""The settings of the cache: what it keeps, its folder and its size."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, get_args

from streamrec.config.lazy_settings import LazySettings, read_plainly
from streamrec.config.places import absolute
from streamrec.config.plain_values import NONE, Kind, byte_count, either, one_of, text
from streamrec.surroundings import home

if TYPE_CHECKING:
    from pydantic import AfterValidator, BeforeValidator, Field

    from streamrec.config.validation import Bytes

Kept: TypeAlias = Literal["ranges", "pictures", "mapped", "batches"]
"""What a cache keeps: ranges as they came from a store; these and the pictures that were decoded of
them, or what ``map`` made of each record; or batches as they were decoded."""

KINDS: tuple[str, ...] = get_args(Kept)

MEMORY = "memory"
"""The folder's name that stands for the memory of the process."""
LEAST = 16 << 20
"""Bytes of the smallest cache: a few ranges."""

_SIZE = re.compile(r"(?i)\s*[\d.]+\s*(?:[kmgtpe]?i?b?)?\s*")
_SIZE_AND_MORE = re.compile(r"(?i)\s*[\d.]+\s*[kmgtpe]i?b?\b[^/]*\s[^/]*")


def _folder(folder: object) -> object:
    if isinstance(folder, os.PathLike):
        folder = os.fspath(folder)
    return absolute_folder(folder)


def absolute_folder(folder: object, directory: str | None = None) -> object:
    """Return a cache's folder with an absolute path; all else as it is."""
    # A home directory is looked up where the cache is opened.
    if not isinstance(folder, str) or folder == MEMORY or folder.startswith("~"):
        return folder
    return absolute(folder, directory)


def absolute_cache(cache: object, directory: str) -> object:
    """Return the setting ``cache`` of a file in a directory, with an absolute path."""
    if isinstance(cache, Mapping):
        return {**cache, "folder": absolute_folder(cache.get("folder"), directory)}
    is_size = isinstance(cache, str) and _SIZE.fullmatch(cache)
    return cache if is_size else absolute_folder(cache, directory)


def _large_enough(size: int | None) -> int | None:
    if size is not None and size < LEAST:
        raise ValueError(
            "has less than the 16 MiB that a few ranges need; set it to 16 MiB or more"
        )
    return size


_KINDS: Mapping[str, Kind] = {
    "of": one_of(*KINDS),
    "folder": lambda folder: either(NONE, text)(_folder(folder)),
    "size": either(NONE, byte_count(LEAST)),
}


class CacheSettings(LazySettings):
    """The settings of the cache."""

    of: Kept = "ranges"
    folder: Annotated[str | None, BeforeValidator(_folder)] = None
    """The folder, or ``"memory"``; ``None``: one in the user's cache directory."""
    size: Annotated[Bytes | None, AfterValidator(_large_enough)] = None
    """The most bytes; ``None``: four fifths of what the disk has free for it, or, in memory, a
    quarter of the machine's."""
    key: Annotated[str, Field(min_length=1)] | None = None
    """The name of what ``map`` makes, in place of a digest of the function; for "mapped" alone."""

    kinds = _KINDS


def default_folder(of: Kept = "ranges") -> Path | None:
    """Return the folder in the user's cache directory (``XDG_CACHE_HOME``, or ``~/.cache``).

    ``None``: the user has no home.
    """
    named = os.environ.get("XDG_CACHE_HOME", "")
    at_home = home()
    # The XDG specification has relative paths ignored.
    if named.startswith("/"):
        return Path(named) / "streamrec" / of
    return None if at_home is None else at_home / ".cache" / "streamrec" / of


def in_full(cache: object) -> Any:
    """Return the mapping that a size, a folder or ``"memory"`` stands for."""
    # TOML has no null, for which these two stand.
    if cache is False or cache == "":
        return None
    # bool is an int: True would be a size of one byte.
    if cache is True:
        raise ValueError('is True; give a size such as "4GiB", a folder, or "memory"')
    if isinstance(cache, int | float) or (isinstance(cache, str) and _SIZE.fullmatch(cache)):
        return {"size": cache}
    if isinstance(cache, str) and _SIZE_AND_MORE.fullmatch(cache):
        raise ValueError(
            f"is {cache!r}; give a size alone, such as \"4GiB\", or a folder, such as './{cache}'"
        )
    if cache in KINDS:
        raise ValueError(
            f"is {cache!r}, which would be a folder; give {{'of': {cache!r}}}, or './{cache}' for "
            "a folder of this name"
        )
    fields = CacheSettings.defaults
    if isinstance(cache, Mapping) and (unknown := sorted(cache.keys() - fields.keys())):
        raise ValueError(f"has no key {unknown[0]!r}; its keys are {', '.join(fields)}")
    return {"folder": cache} if isinstance(cache, str | os.PathLike) else cache


def read_cache(cache: object) -> CacheSettings:
    """Return the settings that a size, a folder or a mapping stands for.

    Raises:
        ValueError: It is not plainly right.
    """
    full = in_full(cache)
    if isinstance(full, CacheSettings):
        return full
    if type(full) is not dict or (plain := read_plainly(CacheSettings, full)) is None:
        raise ValueError
    return CacheSettings.model_construct(**plain)
