"""The pieces that a cache keeps, and their shelves: a folder, or memory.

The processes of a host share a folder without locks.

A piece in a folder is a file, and the file's name says which bytes of the object they are, the
object's size, and its Content-Encoding. Behind the bytes stands the CRC32C of bytes and name. The
file is written under a temporary name and renamed. Nothing is flushed to the disk: what a crash of
the machine damages, the CRC finds, and the piece is fetched again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit
from uuid import uuid4

from streamrec.kernel import crc32c
from streamrec.stores.base.protocol import bare_url, bare_version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from io import BufferedWriter


PIECE = 2 << 20
"""Bytes of a range's largest piece. It is read and checked as a whole, even for a part of it."""

ENCODING = re.compile("[a-z-]{0,24}")
"""The Content-Encodings of objects that are cached. They are part of a file's name."""

_SIGNATURE = re.compile(r"(?i)x-(?:amz|goog)-.*|awsaccesskeyid|googleaccessid|signature|expires")
"""The parameters of signed URLs, which differ from one signing to the next."""


class Piece(NamedTuple):
    """Bytes ``[begin, end)`` of one version of an object, with the facts about the object.

    A range is cut at multiples of :data:`PIECE`. So the next epoch, whose ranges begin and end at
    other bytes, still finds what this one left, whatever the sizes of both were. A batch is an
    object of its own: one piece, which is not cut.
    """

    key: str
    """The version's :func:`key_of`."""
    begin: int
    end: int
    size: int
    """Bytes of the whole object."""
    encoding: str = ""
    """The object's Content-Encoding; empty if it has none."""

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return self.end - self.begin


class ShelvedPiece(NamedTuple):
    """A piece in a folder or in memory."""

    piece: Piece
    used_at: float
    """Seconds since 1970 at which it was last read or written, about."""


def key_of(url: str, etag: str, endpoint: str = "") -> str:
    """Return the digest that names a version of an object: 32 hexadecimal digits.

    Args:
        url: The object's URL. Its user and its signature are left out.
        etag: The version; a strong ETag, or a generation.
        endpoint: The store's endpoint: equal names of another one are other objects.
    """
    text = "\n".join([_strip_signature(url), bare_version(etag), endpoint])
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _strip_signature(url: str) -> str:
    bare = bare_url(url)
    if not bare.endswith("?..."):
        return bare
    pairs = parse_qsl(urlsplit(url).query, keep_blank_values=True)
    return bare + urlencode([pair for pair in pairs if not _SIGNATURE.fullmatch(pair[0])])


def piece_at(pieces: Sequence[Piece], at: int) -> Piece | None:
    """Return the piece that has the byte ``at`` and the most bytes after it, if any has."""
    found = [piece for piece in pieces if piece.begin <= at < piece.end]
    return max(found, key=lambda piece: piece.end, default=None)


def end_of_gap(pieces: Sequence[Piece], at: int, stop: int) -> int:
    """Return where the first piece after ``at`` begins, or ``stop`` if none does before that."""
    return min((piece.begin for piece in pieces if at < piece.begin < stop), default=stop)


class _Kept(NamedTuple):
    data: bytes
    used_at: float


class ProcessMemory:
    """The pieces in this process's memory.

    Args:
        most: The most bytes of all pieces.
        clock: Returns seconds since 1970.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.time) -> None:
        self._most = most
        self._clock = clock
        self._objects: dict[str, dict[Piece, _Kept]] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<ProcessMemory of {self._most} bytes>"

    def pieces(self, key: str, start: int, stop: int) -> list[Piece]:
        """Return the pieces of an object that have bytes of ``[start, stop)``."""
        with self._lock:
            known = list(self._objects.get(key, ()))
        return [piece for piece in known if piece.begin < stop and start < piece.end]

    def load(self, piece: Piece, view: memoryview) -> bool:
        """Copy a piece into a view of its size; ``False`` if it is gone."""
        with self._lock:
            kept = self._objects.get(piece.key, {}).get(piece)
            if kept is None:
                return False
            self._objects[piece.key][piece] = kept._replace(used_at=self._clock())
        # Outside of the lock: the bytes never change, and copying them takes long.
        view[:] = kept.data
        return True

    def save(self, piece: Piece, data: memoryview) -> None:
        """Keep a copy of a piece."""
        kept = _Kept(bytes(data), self._clock())
        with self._lock:
            self._objects.setdefault(piece.key, {})[piece] = kept

    def entries(self) -> list[ShelvedPiece]:
        """Return all pieces."""
        with self._lock:
            objects = self._objects.values()
            return [
                ShelvedPiece(piece, kept.used_at)
                for each in objects
                for piece, kept in each.items()
            ]

    def remove(self, piece: Piece) -> None:
        """Remove a piece, if it is still there."""
        with self._lock:
            kept = self._objects.get(piece.key, {})
            kept.pop(piece, None)
            if not kept:
                self._objects.pop(piece.key, None)

    def free(self) -> int:
        """Return the bytes that are left of ``most``."""
        return max(0, self._most - sum(entry.piece.nbytes for entry in self.entries()))


REGION = 32 * PIECE
"""Bytes of an object whose pieces share a folder, so that a lookup lists few names."""
ABANDONED = 600.0
"""Seconds after which an unfinished file counts as left by a writer that was killed."""
MOST_TRIES = 5
TOUCHED = 60.0
"""Seconds for which a file's time of use may be too old: setting it costs a system call."""

FOOTER = 4
"""Bytes of the footer, which is a CRC32C."""

_REGION = re.compile(r"([0-9a-f]{32})\.[0-9a-f]+")
_NAME = re.compile(rf"([0-9a-f]+)-([0-9a-f]+)-([0-9a-f]+)\.({ENCODING.pattern})")
_UNFINISHED = re.compile(rf"\.{_NAME.pattern}\.[0-9a-f]{{32}}")


class CacheFolder:
    """The pieces in a folder.

    Args:
        root: The folder; it is made when the first piece is kept, readable by this user alone.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def __repr__(self) -> str:
        return f"<CacheFolder {self._root}>"

    def pieces(self, key: str, start: int, stop: int) -> list[Piece]:
        """Return the pieces of an object that have bytes of ``[start, stop)``."""
        found: list[Piece] = []
        for region in range(start // REGION, max(start, stop - 1) // REGION + 1):
            with contextlib.suppress(OSError):
                names = os.listdir(self._region(key, region))  # noqa: PTH208
                found += filter(None, (_piece(key, name) for name in names))
        return [piece for piece in found if piece.begin < stop and start < piece.end]

    def load(self, piece: Piece, view: memoryview) -> bool:
        """Read a piece into a view of its size; remove it if it is damaged."""
        # With one byte more than there should be, a longer file is told from a whole one.
        footer = bytearray(FOOTER + 1)
        try:
            with self._path(piece).open("rb", buffering=0) as file:
                length = os.preadv(file.fileno(), [view, footer], 0)
                used_at = os.fstat(file.fileno()).st_mtime
        except OSError:
            return False
        if length != piece.nbytes + FOOTER or footer[:FOOTER] != _footer(piece, view):
            self.remove(piece)
            return False
        # The time of change stands for that of use, which disks mounted with noatime do not keep.
        if time.time() - used_at > TOUCHED:
            with contextlib.suppress(OSError):  # a folder that may only be read serves all the same
                os.utime(self._path(piece))
        return True

    def save(self, piece: Piece, data: memoryview) -> None:
        """Keep a piece: write it under a temporary name, and rename it."""
        path = self._path(piece)
        # Each writer has a name of its own, as several processes may keep the same piece.
        part = path.with_name(f".{path.name}.{uuid4().hex}")
        try:
            with _create(part) as file:
                file.write(data)
                file.write(_footer(piece, data))
            part.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            raise

    def entries(self) -> list[ShelvedPiece]:
        """Return all pieces, and remove what a killed writer has left."""
        return [entry for region in _list_files(self._root) for entry in self._entries(region)]

    def remove(self, piece: Piece) -> None:
        """Remove a piece, and its region's folder if it was the last one there."""
        path = self._path(piece)
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
            path.parent.rmdir()  # fails if it holds others

    def free(self) -> int:
        """Return the bytes that the disk has free."""
        at = self._root
        # The folder is made with the first piece; the disk is that of the folder above it.
        while not at.exists():
            at = at.parent
        return shutil.disk_usage(at).free

    def _entries(self, region: os.DirEntry[str]) -> Iterator[ShelvedPiece]:
        found = _REGION.fullmatch(region.name)
        for file in _list_files(Path(region.path)) if found else ():
            with contextlib.suppress(OSError):  # another process may have removed it
                if found and (piece := _piece(found[1], file.name)):
                    yield ShelvedPiece(piece, file.stat().st_mtime)
                elif _UNFINISHED.fullmatch(file.name):
                    _remove_abandoned(file)

    def _path(self, piece: Piece) -> Path:
        return self._region(piece.key, piece.begin // REGION) / _name(piece)

    def _region(self, key: str, number: int) -> Path:
        return self._root / f"{key}.{number:x}"


def _list_files(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def _remove_abandoned(file: os.DirEntry[str]) -> None:
    if time.time() - file.stat().st_mtime > ABANDONED:
        Path(file.path).unlink()


def _piece(key: str, name: str) -> Piece | None:
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    begin, end, size = (int(number, 16) for number in found.groups()[:3])
    return Piece(key, begin, end, size, found[4])


def _name(piece: Piece) -> str:
    return f"{piece.begin:x}-{piece.end:x}-{piece.size:x}.{piece.encoding}"


def _footer(piece: Piece, data: memoryview) -> bytes:
    # With the name, so that a file that was put in another's place does not pass.
    name = f"{piece.key}/{_name(piece)}".encode()
    return crc32c(name, crc32c(data)).to_bytes(FOOTER, "little")


def _create(path: Path) -> BufferedWriter:
    """Create a file, and the folders that it is in."""
    # Another process may remove the region's folder, since it is empty, just before it is used.
    for _ in range(MOST_TRIES):
        # Two calls, since mkdir gives its mode to the last folder alone.
        path.parent.parent.mkdir(0o700, parents=True, exist_ok=True)
        path.parent.mkdir(0o700, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            return open(path, "xb", opener=partial(os.open, mode=0o600))
    raise FileNotFoundError(path)
