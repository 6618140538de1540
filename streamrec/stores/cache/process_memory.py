"""The shelf in the memory of a process."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from streamrec.stores.cache.pieces import ShelvedPiece

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamrec.stores.cache.pieces import Piece


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
