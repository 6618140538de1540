"""The hidden file in which a local object grows until it is complete.

It stands beside the object, so that renaming it is atomic, and globs skip it. Whoever writes it
holds a lock on it, which the kernel releases with the process, however that ends: so one without a
lock was left behind, and the next writer of the object removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from itertools import count
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["BUFFER", "PartFile"]

BUFFER = 1 << 20
"""Bytes that are collected before they go to the file: a shard's records are often small."""


class PartFile:
    """A new hidden file for an object, locked for as long as it is written.

    Args:
        path: The object's.

    Raises:
        OSError: It cannot be created.
    """

    def __init__(self, path: Path) -> None:
        self._object = path
        names = _names(path)
        self._path, self.file = next(filter(None, map(_created, names)))
        while _left_by_another(next(names)):
            pass

    def publish(self) -> None:
        """Give it the object's name; the lock is held until it has it."""
        self._path.replace(self._object)
        self.file.close()

    def remove(self) -> None:
        """Remove it, unless it is published."""
        if not self.file.closed:
            self._path.unlink(missing_ok=True)
        # Closing flushes, and a full disk refuses that a second time; the file goes anyway.
        with contextlib.suppress(OSError):
            self.file.close()


def _names(path: Path) -> Iterator[Path]:
    """Yield the names of an object's hidden file, and of those of others who write it meanwhile.

    They are known beforehand, since to look for them in a directory of many shards takes long.
    """
    yield path.with_name(f".{path.name}.part")
    for number in count(1):
        yield path.with_name(f".{path.name}.{number}.part")


def _created(part: Path) -> tuple[Path, IO[bytes]] | None:
    """Create and lock the file; ``None``: another writer has it."""
    while True:
        _left_by_another(part)
        try:
            file = part.open("xb", buffering=BUFFER)
        except FileExistsError:
            return None
        # Where there are no locks every file counts as written, and none is ever removed.
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        if _is_at(part, file.fileno()):
            return part, file
        file.close()  # taken for one left behind, before it was locked


def _left_by_another(part: Path) -> bool:
    """Remove the file if nobody writes it; return whether there was one at all."""
    try:
        file = os.open(part, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_at(part, file):  # else it has just been published: it is the object
            part.unlink()
    except OSError:
        pass  # somebody writes it, or the filesystem knows no locks
    finally:
        os.close(file)
    return True


def _is_at(path: Path, file: int) -> bool:
    """Return whether the open file is the one of that name."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(file))
    except FileNotFoundError:
        return False
