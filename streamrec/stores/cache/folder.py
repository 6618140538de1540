"""The shelf in a folder, which the processes of a host share without locks.

A piece is a file: its bytes, and behind them a footer with two CRC32C, of the bytes and of the
footer with the piece's name. It is written under a temporary name and renamed. Nothing is flushed
to the disk: what a crash of the machine damages, the CRCs find, and the piece is fetched again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from streamrec.kernel import crc32c
from streamrec.stores.cache.pieces import LONGEST_ENCODING, PIECE, Facts, Piece
from streamrec.stores.cache.shelf import Entry

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["FOOTER", "Folder"]

REGION = 32 * PIECE
"""Bytes of an object whose pieces share a folder, so that a lookup lists few names."""
ABANDONED = 600.0
"""Seconds after which an unfinished file counts as left by a writer that was killed."""
MOST_TRIES = 5
TOUCHED = 60.0
"""Seconds for which a file's time of use may be too old: setting it costs a system call."""

_FACTS = struct.Struct(f"<8sQ{LONGEST_ENCODING}sI")
"""The footer but its own CRC32C: format and version, the object's size in bytes, its
Content-Encoding, the CRC32C of the piece's bytes."""
_CRC = struct.Struct("<I")
_FORMAT = b"srrange1"
FOOTER = _FACTS.size + _CRC.size
"""Bytes of the footer."""

_REGION = re.compile(r"([0-9a-f]{32})\.[0-9a-f]+")
_NAME = re.compile(r"([0-9a-f]+)-([0-9a-f]+)")
_UNFINISHED = re.compile(r"\.[0-9a-f]+-[0-9a-f]+\.[0-9a-f]{32}")


class Folder:
    """The pieces in a folder.

    Args:
        root: The folder; it is made when the first piece is kept, readable by this user alone.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def __repr__(self) -> str:
        return f"<Folder {self._root}>"

    def pieces(self, key: str, start: int, stop: int) -> list[Piece]:
        """Return the pieces of an object that have bytes of ``[start, stop)``."""
        found: list[Piece] = []
        for region in range(start // REGION, max(start, stop - 1) // REGION + 1):
            with contextlib.suppress(OSError):
                found += _named(key, os.listdir(self._region(key, region)))  # noqa: PTH208
        return [piece for piece in found if piece.begin < stop and start < piece.end]

    def facts(self, piece: Piece) -> Facts | None:
        """Return what a piece tells about its object; ``None`` if it is gone or damaged."""
        try:
            with self._opened(piece) as file:
                found = _read_footer(piece, os.pread(file, FOOTER + 1, piece.nbytes))
        except OSError:
            return None
        if found is None:
            self.remove(piece)
            return None
        return found[0]

    def load(self, piece: Piece, view: memoryview) -> bool:
        """Read a piece into a view of its size; remove it if it is damaged."""
        footer = bytearray(FOOTER + 1)
        try:
            with self._opened(piece) as file:
                length = os.preadv(file, [view, footer], 0)
                used_at = os.fstat(file).st_mtime
        except OSError:
            return False
        found = _read_footer(piece, bytes(footer[: max(0, length - piece.nbytes)]))
        if found is None or found[1] != crc32c(view):
            self.remove(piece)
            return False
        if time.time() - used_at > TOUCHED:
            with contextlib.suppress(OSError):  # a folder that may only be read serves all the same
                os.utime(self._path(piece))
        return True

    def save(self, piece: Piece, data: memoryview, facts: Facts) -> None:
        """Keep a piece: write it under a temporary name, and rename it."""
        path = self._path(piece)
        part = path.with_name(f".{path.name}.{uuid4().hex}")
        try:
            with _created(part) as file:
                _write(file, [data, memoryview(_footer(piece, data, facts))])
            part.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            raise

    def entries(self) -> list[Entry]:
        """Return all pieces, and remove what a killed writer has left."""
        return [entry for region in _listed(self._root) for entry in self._entries(region)]

    def remove(self, piece: Piece) -> None:
        """Remove a piece, and its region's folder if it was the last one there."""
        path = self._path(piece)
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
            path.parent.rmdir()  # fails if it holds others

    def free(self) -> int:
        """Return the bytes that the disk has free."""
        at = self._root
        while not at.exists():
            at = at.parent
        return shutil.disk_usage(at).free

    def _entries(self, region: os.DirEntry[str]) -> Iterator[Entry]:
        found = _REGION.fullmatch(region.name)
        for file in _listed(Path(region.path)) if found else ():
            with contextlib.suppress(OSError):  # another process may have removed it
                if found and (piece := _piece(found[1], file.name)):
                    yield Entry(piece, file.stat().st_mtime)
                elif _UNFINISHED.fullmatch(file.name):
                    _remove_abandoned(file)

    def _path(self, piece: Piece) -> Path:
        region = self._region(piece.key, piece.begin // REGION)
        return region / f"{piece.begin:x}-{piece.end:x}"

    def _region(self, key: str, number: int) -> Path:
        return self._root / f"{key}.{number:x}"

    @contextlib.contextmanager
    def _opened(self, piece: Piece) -> Iterator[int]:
        file = os.open(self._path(piece), os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield file
        finally:
            os.close(file)


def _listed(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def _remove_abandoned(file: os.DirEntry[str]) -> None:
    if time.time() - file.stat().st_mtime > ABANDONED:
        Path(file.path).unlink()


def _named(key: str, names: list[str]) -> Iterator[Piece]:
    return filter(None, (_piece(key, name) for name in names))


def _piece(key: str, name: str) -> Piece | None:
    found = _NAME.fullmatch(name)
    return Piece(key, int(found[1], 16), int(found[2], 16)) if found else None


@contextlib.contextmanager
def _created(path: Path) -> Iterator[int]:
    """Create a file, and the folders that it is in."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    # Another process may remove the region's folder, since it is empty, just before it is used.
    for _ in range(MOST_TRIES):
        with contextlib.suppress(FileNotFoundError):
            file = os.open(path, flags, 0o600)
            break
        path.parent.parent.mkdir(0o700, parents=True, exist_ok=True)
        path.parent.mkdir(0o700, exist_ok=True)
    else:
        raise FileNotFoundError(path)
    try:
        yield file
    finally:
        os.close(file)


def _write(file: int, parts: list[memoryview]) -> None:
    """Write all bytes of the parts."""
    wanted = sum(map(len, parts))
    written = os.writev(file, parts)
    if written < wanted:  # a disk that fills up takes a part first
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _footer(piece: Piece, data: memoryview, facts: Facts) -> bytes:
    footer = _FACTS.pack(_FORMAT, facts.size, facts.encoding.encode(), crc32c(data))
    return footer + _CRC.pack(crc32c(_name(piece), crc32c(footer)))


def _read_footer(piece: Piece, footer: bytes) -> tuple[Facts, int] | None:
    """Return the footer's facts and the CRC32C of the bytes; ``None`` if it is damaged."""
    if len(footer) != FOOTER:
        return None
    body, crc = footer[: _FACTS.size], _CRC.unpack_from(footer, _FACTS.size)[0]
    kind, size, encoding, crc_of_bytes = _FACTS.unpack(body)
    if crc != crc32c(_name(piece), crc32c(body)) or kind != _FORMAT:
        return None
    return Facts(size, encoding.rstrip(b"\0").decode()), crc_of_bytes


def _name(piece: Piece) -> bytes:
    return f"{piece.key}/{piece.begin:x}-{piece.end:x}".encode()
