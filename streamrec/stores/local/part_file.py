"""The hidden file into which a local object is written until it is complete.

It is in the object's directory, so that renaming it is atomic; globs skip it. Its writer holds a
lock, which the kernel releases when the process ends. A part file without a lock was left behind,
and the next writer of the object removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from itertools import count
from typing import IO, TYPE_CHECKING

from streamrec.stores.base.new_object import BUFFER
from streamrec.stores.base.regular_file import check_regular
from streamrec.surroundings import absolute

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class PartFile:
    """A new hidden file for an object, locked while it is written.

    Args:
        path: The object's path.

    Raises:
        OSError: It cannot be created.
        ConfigError: The working directory, which the path is below, was deleted.
    """

    def __init__(self, path: Path) -> None:
        path = absolute(path)  # the program may change its directory before the end
        if path.is_dir():
            raise IsADirectoryError(None, "is a directory")
        if path.exists():
            check_regular(path.stat())  # the object's name would replace a device or a FIFO
        self._object = path
        names = _names(path)
        self._path, self._file = next(filter(None, map(_created, names)))
        self.write, self.flush = self._file.write, self._file.flush
        while _left_by_another(next(names)):
            pass

    def commit(self) -> None:
        """Make the object visible: rename the file, and only then release the lock."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._path.replace(self._object)
        self._file.close()
        _sync_directory(self._object.parent)

    def discard(self) -> None:
        """Remove the file, unless it is committed."""
        if not self._file.closed:
            # Where it may not be removed any more, the next writer of the object removes it.
            with contextlib.suppress(OSError):
                self._path.unlink()
        # Closing flushes, which fails again on a full disk; the file is removed anyway.
        with contextlib.suppress(OSError):
            self._file.close()


def remove_left(directory: Path, prefixes: tuple[str, ...]) -> None:
    """Remove the part files without a writer, of objects whose names begin with a prefix."""
    for part in directory.iterdir():
        if part.name.endswith(".part") and part.name.removeprefix(".").startswith(prefixes):
            _left_by_another(part)


def _sync_directory(path: Path) -> None:
    """Flush a directory to the disk, so that a new name in it survives a power failure."""
    directory = os.open(path, os.O_RDONLY)
    # Some network filesystems refuse this; the object is visible all the same.
    with contextlib.suppress(OSError):
        os.fsync(directory)
    os.close(directory)


def _names(path: Path) -> Iterator[Path]:
    """Yield the names that an object's part files may have, one for each concurrent writer."""
    # The names are fixed, because searching a directory of many shards takes long.
    yield path.with_name(f".{path.name}.part")
    for number in count(1):
        yield path.with_name(f".{path.name}.{number}.part")


def _created(part: Path) -> tuple[Path, IO[bytes]] | None:
    """Create and lock the file; return ``None`` if another writer has it."""
    while True:
        _left_by_another(part)
        try:
            file = part.open("xb", buffering=BUFFER)
        except FileExistsError:
            return None
        # Without support for locks, every part file counts as being written and none is removed.
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        if _is_at(part, file.fileno()):
            return part, file
        file.close()  # another writer removed it before it was locked


def _left_by_another(part: Path) -> bool:
    """Remove the file unless a writer holds it; return whether it existed."""
    try:
        file = os.open(part, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_at(part, file):  # else it has just been renamed to the object
            part.unlink()
    except OSError:
        pass  # another writer holds it, or the filesystem does not support locks
    finally:
        os.close(file)
    return True


def _is_at(path: Path, file: int) -> bool:
    """Return whether the path names the open file."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(file))
    except FileNotFoundError:
        return False
