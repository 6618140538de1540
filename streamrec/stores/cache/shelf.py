"""The protocol of a shelf, which holds a cache's pieces: a folder, or the memory of a process."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamrec.stores.cache.pieces import Facts, Piece

__all__ = ["Entry", "Shelf"]


class Entry(NamedTuple):
    """A piece on a shelf."""

    piece: Piece
    used_at: float
    """Seconds since 1970 at which it was last read or written, about."""


class Shelf(Protocol):
    """A holder of pieces. Its methods block, and may be called from several threads."""

    def pieces(self, key: str, start: int, stop: int) -> Sequence[Piece]:
        """Return the pieces of an object that have bytes of ``[start, stop)``."""
        ...

    def facts(self, piece: Piece) -> Facts | None:
        """Return what a piece tells about its object; ``None`` if it is gone or damaged."""
        ...

    def load(self, piece: Piece, view: memoryview) -> bool:
        """Read a piece into a view of its size; ``False`` if it is gone or damaged."""
        ...

    def save(self, piece: Piece, data: memoryview, facts: Facts) -> None:
        """Keep a piece; it appears as a whole or not at all.

        Raises:
            OSError: The disk is full, or the folder cannot be written.
        """
        ...

    def entries(self) -> Sequence[Entry]:
        """Return all pieces, and remove what a killed writer has left."""
        ...

    def remove(self, piece: Piece) -> None:
        """Remove a piece, if it is still there."""
        ...

    def free(self) -> int:
        """Return the bytes that more pieces could take beside those that are there."""
        ...
