"""The versions of objects: made from what a listing or a response says, and compared. Pure: no I/O.

A version is text in the form of an ETag, because it is written into indexes and compared with what
older ones hold: ``"abc"``, ``W/"abc"``, or a generation of Google's in bare digits. Everything that
names a version makes it here: listings, responses, files and filesystems.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os

_WEAK = "W/"


def version_of(
    *,
    etag: str | None = None,
    generation: str | int | None = None,
    modified: str | None = None,
    size: int | None = None,
) -> str | None:
    """Return the version of an object: its generation, else its ETag, else time and size.

    A time counts whole seconds, so two versions may share one: the result is then weak.

    Args:
        etag: The ETag; some stores write it without quotes in listings.
        generation: Google's number of a version.
        modified: The time of the last change, as HTTP or as ISO 8601 writes it.
        size: The object's size in bytes.

    Returns:
        The version; ``None`` if nothing is said.
    """
    if generation:
        return str(generation)
    if etag and (bare := bare_version(etag)):
        return f'{_WEAK if not is_strong(etag) else ""}"{bare}"'
    if not modified and size is None:
        return None
    return f'{_WEAK}"{_seconds(modified) if modified else "undated"}-{size}"'


def file_version(status: os.stat_result) -> str:
    """Return the version of a local file: its inode, time and size."""
    return f'"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"'


def bare_version(version: str) -> str:
    """Return a version without quotes and the mark of a weak one, for comparison and for keys."""
    return version.strip().removeprefix(_WEAK).strip('"')


def same_version(one: str, other: str) -> bool:
    """Return whether two versions are equal by weak comparison (RFC 9110, 8.8.3.2)."""
    return bare_version(one) == bare_version(other)


def is_strong(version: str) -> bool:
    """Return whether equal versions mean equal bytes, which weak ones do not promise."""
    return bool(version) and not version.strip().startswith(_WEAK)


def _seconds(modified: str) -> str:
    """Return a time in whole seconds since 1970; listings add fractions that responses lack."""
    from email.utils import parsedate_to_datetime  # files have other versions

    for parse in (parsedate_to_datetime, datetime.fromisoformat):
        try:
            time = parse(modified.strip())
        except ValueError:
            continue
        return str(int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()))
    return modified.strip()
