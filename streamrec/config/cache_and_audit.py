"""The settings of what a stream writes for itself and for others: its cache and its audit log."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypeVar, get_args

from streamrec.config.arguments import seconds_of
from streamrec.config.lazy_settings import LazySettings, read_plainly
from streamrec.config.places import absolute, absolute_options
from streamrec.config.plain_values import (
    NONE,
    Kind,
    anything,
    byte_count,
    dict_of,
    either,
    number,
    one_of,
    text,
)
from streamrec.masking import Hidden
from streamrec.surroundings import home

if TYPE_CHECKING:
    from pydantic import AfterValidator, BeforeValidator, Field

    from streamrec.config.validation import Bytes

S = TypeVar("S", bound=LazySettings)

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


def cache_in_full(cache: object) -> Any:
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
    if isinstance(cache, Mapping):
        _check_keys(cache, CacheSettings)
    return {"folder": cache} if isinstance(cache, str | os.PathLike) else cache


def read_cache(cache: object) -> CacheSettings:
    """Return the settings that a size, a folder or a mapping stands for.

    Raises:
        ValueError: It is not plainly right.
    """
    return _settings_of(CacheSettings, cache_in_full(cache))


_AUDIT_KINDS: Mapping[str, Kind] = {
    "url": text,
    "every": number(1, 1e7),
    "storage_options": either(NONE, lambda options: Hidden(dict_of(anything)(options))),
}


class AuditSettings(LazySettings):
    """The settings of the audit log."""

    url: Annotated[str, Field(min_length=1)]
    """The URL or path of the log's directory."""
    every: Annotated[float, Field(ge=1, le=1e7)] = 300.0
    """Seconds of training, at most, that one object of the log holds."""
    storage_options: Annotated[dict[str, Any], AfterValidator(Hidden)] | None = None
    """Options for the log's store; ``None``: those of the source."""

    kinds = _AUDIT_KINDS


def log_in_full(audit: object) -> Any:
    """Return the mapping that a URL or path stands for, with absolute paths."""
    # TOML has no null, for which these two stand.
    if audit is None or audit is False or audit == "":
        return None
    if isinstance(audit, AuditSettings):
        return audit
    full: dict[str, Any] = dict(audit) if isinstance(audit, Mapping) else {"url": audit}
    _check_keys(full, AuditSettings)
    url = full.get("url")
    if url is None or url == "":
        raise ValueError("has no url; give the URL or path of a directory")
    if isinstance(url, str | os.PathLike):
        full["url"] = _directory_of(absolute(os.fspath(url)))
    if isinstance(full.get("every"), str):
        full["every"] = seconds_of(full["every"], "every")
    if isinstance(full.get("storage_options"), Mapping):
        full["storage_options"] = absolute_options(full["storage_options"])
    return full


def _directory_of(url: str) -> str:
    """Return a URL or path with one slash at its end.

    Raises:
        ValueError: It is a scheme alone.
    """
    directory = url.rstrip("/")
    if directory.endswith(":"):
        raise ValueError(f"is {url!r}, which names no directory; give one, as s3://bucket/run-7/")
    return directory + "/"


def read_audit(audit: object) -> AuditSettings:
    """Return the settings that a URL, a path or a mapping stands for.

    Raises:
        ValueError: They are not plainly right.
    """
    return _settings_of(AuditSettings, log_in_full(audit))


def _check_keys(given: Mapping[str, Any], kind: type[LazySettings]) -> None:
    if unknown := sorted(given.keys() - kind.defaults.keys()):
        raise ValueError(f"has no key {unknown[0]!r}; its keys are {', '.join(kind.defaults)}")


def _settings_of(kind: type[S], full: object) -> S:
    """Return the settings that a mapping holds, or those that were given."""
    if isinstance(full, kind):
        return full
    if type(full) is not dict or (plain := read_plainly(kind, full)) is None:
        raise ValueError
    return kind.model_construct(**plain)
