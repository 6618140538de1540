"""The cache of pieces: its opening, which pieces are kept within its size, and which go first."""

from __future__ import annotations

import logging
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Any, TypeAlias

from streamrec.config.cache_and_audit import MEMORY, default_folder
from streamrec.config.machine import memory_share
from streamrec.errors import ConfigError
from streamrec.stores.cache.shelves import CacheFolder, ProcessMemory, key_of
from streamrec.surroundings import expand_user

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from streamrec.config.cache_and_audit import CacheSettings
    from streamrec.plan.reading.next_use import NextUse
    from streamrec.stores.base.protocol import ObjectInfo
    from streamrec.stores.cache.shelves import Piece, ShelvedPiece


_log = logging.getLogger("streamrec.cache")

THREADS = 4
"""The number of threads that read and write pieces."""
SLACK = 16
"""The part of the size (a sixteenth) that is offered to the cache between two looks at the shelf,
and that is made free at a time. A look takes milliseconds for a thousand pieces."""


Shelf: TypeAlias = "CacheFolder | ProcessMemory"
"""A holder of pieces. Its methods block, and may be called from several threads."""


def to_remove(
    entries: Iterable[ShelvedPiece], wait: Callable[[ShelvedPiece], float], excess: int
) -> tuple[list[Piece], float]:
    """Choose the pieces to remove: those that are needed last (Belady's choice).

    Args:
        entries: All pieces.
        wait: Returns the seconds until a piece is needed.
        excess: The bytes to make free.

    Returns:
        The pieces, and the shortest of their waits: a new piece with a longer one is not worth
        keeping. It is infinite if none has to go.
    """
    chosen: list[Piece] = []
    limit = inf
    ordered = sorted(((wait(entry), entry.piece) for entry in entries), reverse=True)
    for seconds, piece in ordered:
        if excess <= 0:
            break
        chosen.append(piece)
        excess -= piece.nbytes
        limit = seconds
    return chosen, limit


class PieceCache:
    """A cache of pieces: of ranges as they came from a store, or of batches.

    Its methods that block are for its own threads. What goes wrong with the shelf is logged once
    and costs no more than the cache: bytes then come from the store.

    Args:
        shelf: Holds the pieces.
        size: The most bytes; ``None``: four fifths of what the shelf's pieces take and could take.
            Each further process that shares a folder exceeds it by at most a sixteenth and what its
            threads are writing, for a moment.
        endpoint: The store's endpoint, if it is not the usual one of its scheme.
        clock: Returns seconds since 1970.
    """

    def __init__(
        self,
        shelf: Shelf,
        size: int | None,
        *,
        endpoint: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.threads = ThreadPoolExecutor(THREADS, "streamrec-cache")
        self._shelf = shelf
        self._size = size
        self._endpoint = endpoint
        self._clock = clock
        self._forecast: NextUse | None = None
        self._unnamed: Sequence[ObjectInfo] = ()
        self._urls: dict[str, str] = {}
        self._lock, self._looking = threading.Lock(), threading.Lock()
        self._used = self._admitted = self._being_saved = self._most = 0
        self._offered = 0
        self._limit = inf
        self._writes = True

    def __repr__(self) -> str:
        return f"<PieceCache of {self._size} bytes in {self._shelf!r}>"

    def expect(self, forecast: NextUse, objects: Sequence[ObjectInfo]) -> None:
        """Let a forecast say which pieces are needed last; without one the least recently used go.

        Args:
            forecast: Knows the objects' URLs.
            objects: The objects, with their versions where these are known.
        """
        self._forecast, self._unnamed = forecast, objects

    def close(self) -> None:
        """End the threads."""
        self.threads.shutdown(wait=False)

    def key_of(self, url: str, etag: str) -> str:
        """Return the key of an object's version, and remember the object's name for it."""
        key = key_of(url, etag, self._endpoint)
        self._urls[key] = url
        return key

    # -- in threads --------------------------------------------------------------------------------

    def find(self, key: str, start: int, stop: int) -> list[Piece]:
        """Return the pieces of an object that have bytes of ``[start, stop)``."""
        return self._shelf.pieces(key, start, stop)

    def load(self, piece: Piece, view: memoryview) -> bool:
        """Read a piece into a view of its size.

        Returns:
            ``False`` if the piece is gone or damaged; the view's bytes are then undefined.
        """
        return self._shelf.load(piece, view)

    def load_part(self, piece: Piece, at: int, view: memoryview) -> bool:
        """Read the bytes of a piece from byte ``at`` of its object on, as many as the view takes.

        The piece has all of them. Returns what :meth:`load` does.
        """
        # A part of a piece cannot be checked: the checksum is that of the whole.
        if len(view) == piece.nbytes:
            return self._shelf.load(piece, view)
        whole = memoryview(bytearray(piece.nbytes))
        loaded = self._shelf.load(piece, whole)
        view[:] = whole[at - piece.begin : at - piece.begin + len(view)]
        return loaded

    def keep(self, piece: Piece, data: memoryview) -> None:
        """Keep a piece, if it is worth its room; remove others that it holds or that are in excess.

        Raises nothing: a shelf that cannot be written is left alone from then on.
        """
        if not self._writes:
            return
        near = self.find(piece.key, piece.begin, piece.end)
        # Another thread or process has kept these bytes meanwhile.
        if any(one.begin <= piece.begin and piece.end <= one.end for one in near):
            return
        try:
            if self._admits(piece):
                self._save(piece, data)
        except FileNotFoundError:
            return  # somebody has removed the folder at this moment
        except (OSError, MemoryError) as error:
            self._give_up(error)
            return
        for one in near:
            if piece.begin <= one.begin and one.end <= piece.end:
                self._shelf.remove(one)

    def _save(self, piece: Piece, data: memoryview) -> None:
        try:
            self._shelf.save(piece, data)
        finally:
            with self._lock:
                self._being_saved -= piece.nbytes

    def _give_up(self, error: OSError | MemoryError) -> None:
        with self._lock:
            told, self._writes = not self._writes, False
        if not told:
            _log.warning(
                "the cache keeps nothing more, since %r cannot be written (%s); the stream goes on "
                "without it: make room there, or set cache to another folder",
                self._shelf,
                getattr(error, "strerror", None) or type(error).__name__,
            )

    def _admits(self, piece: Piece) -> bool:
        """Return whether a piece is to be kept, and count it; make room for it if need be."""
        self._look_if_due(piece.nbytes)
        wait = self._wait(piece, 0.0)
        with self._lock:
            # What is needed later than the pieces that had to go would have to go next.
            if self._used + piece.nbytes > self._most or wait >= self._limit:
                return False
            self._used += piece.nbytes
            self._admitted += piece.nbytes
            self._being_saved += piece.nbytes
            return True

    def _look_if_due(self, needed: int) -> None:
        """Look at the shelf before the first piece, and when much was offered or there is no room.

        One thread does; after the first time, the others do not wait for it.
        """
        with self._lock:
            self._offered += needed
            is_first = self._most == 0
        if self._is_due(needed) and self._looking.acquire(blocking=is_first):
            try:
                # Another thread may have looked while this one waited.
                if self._is_due(needed):
                    self._look(needed)
            finally:
                self._looking.release()

    def _is_due(self, needed: int) -> bool:
        return self._offered > self._most // SLACK or self._used + needed > self._most

    def _look(self, needed: int) -> None:
        """Count the shelf's pieces, those of other processes too, and remove what is in excess."""
        with self._lock:
            before = self._admitted - self._being_saved
        entries = self._shelf.entries()
        found = sum(entry.piece.nbytes for entry in entries)
        with self._lock:
            # What was saved meanwhile may be counted twice, but never left out.
            self._used = found + self._admitted - before
            self._most = self._size or (found + self._shelf.free()) * 4 // 5
            self._offered, excess = 0, self._used + needed - self._most
            if needed > self._most:
                excess -= needed  # no room that could be made would do
        chosen, limit = self._in_excess(entries, excess)
        for piece in chosen:
            self._shelf.remove(piece)
        with self._lock:
            self._used -= sum(piece.nbytes for piece in chosen)
            self._limit = limit

    def _in_excess(self, entries: Sequence[ShelvedPiece], excess: int) -> tuple[list[Piece], float]:
        """Choose what to remove, a bit more than is in excess, so that it lasts for a while."""
        if excess <= 0:
            return [], inf
        self._name_expected()
        now = self._clock()
        return to_remove(
            entries,
            lambda entry: self._wait(entry.piece, now - entry.used_at),
            excess + self._most // SLACK,
        )

    def _wait(self, piece: Piece, idle: float) -> float:
        """Return the seconds until a piece is needed.

        Where the forecast does not know, they are as many as it has been idle for, so that of such
        pieces the least recently used goes first.
        """
        if self._forecast is None or (url := self._urls.get(piece.key)) is None:
            return idle
        wait = self._forecast.wait(url, piece.begin, piece.size)
        return idle if wait is None else wait

    def _name_expected(self) -> None:
        """Name the objects that are expected, once: the pieces of an earlier run are theirs."""
        objects, self._unnamed = self._unnamed, ()
        for info in objects:
            if info.etag is not None:
                self.key_of(info.url, info.etag)


# As the AWS SDK looks: the variable for S3 alone comes before the common one.
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "STORAGE_EMULATOR_HOST")


def open_cache(settings: CacheSettings, storage_options: Mapping[str, Any]) -> PieceCache | None:
    """Make a cache; its folder is made when the first piece is kept.

    Returns ``None``, with a warning, if the settings name no folder and the user has no home.

    Args:
        settings: What it keeps, its folder and its size.
        storage_options: The stores' options, of which the endpoint tells apart equal names.

    Raises:
        ConfigError: The folder belongs to another user.
    """
    size = settings.size and int(settings.size)
    endpoint = _endpoint(storage_options)
    if settings.folder == MEMORY:
        size = size or memory_share()
        return PieceCache(ProcessMemory(size), size, endpoint=endpoint)
    named = settings.folder
    folder = default_folder(settings.of) if named is None else expand_user(named)
    if folder is None:
        _log.warning(
            "nothing is cached, since this user has no home directory; set XDG_CACHE_HOME, or set "
            "cache to a folder"
        )
        return None
    _check_owner(folder)
    return PieceCache(CacheFolder(folder), size, endpoint=endpoint)


def _check_owner(folder: Path) -> None:
    """Check that nobody else could have put pieces into the folder; root may prepare one."""
    with suppress(OSError):
        if (owner := folder.stat().st_uid) not in (os.geteuid(), 0):
            raise ConfigError(
                f"cache: the folder {folder} belongs to another user ({owner}), who could change "
                "what is read; name a folder of your own"
            )


def _endpoint(options: Mapping[str, Any]) -> str:
    of_client = options.get("client_kwargs")
    inner = of_client.get("endpoint_url") if isinstance(of_client, dict) else None
    named = options.get("endpoint_url") or inner
    return str(named or next(filter(None, map(os.environ.get, _ENDPOINTS)), ""))
