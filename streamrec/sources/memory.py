"""The memory that a source's records may take while they are converted."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from streamrec.errors import RecordTooLarge

if TYPE_CHECKING:
    from streamrec.stores.stored_files import StoredFile

MIB = 1 << 20
PIECE = 16 * MIB
"""Bytes of the values of one piece of a table whose rows' sizes are known."""
PIECE_ROWS = 1024
"""Rows of one piece, however short they are."""
COPIES = 4
"""Copies of a record on its way: as it was read, its values, the record, and its frame."""


class Memory(NamedTuple):
    """The most memory that a source takes."""

    most: int = 1 << 30

    @property
    def record(self) -> int:
        """The most bytes of what becomes one piece: of its copies all take ``most``."""
        return self.most // COPIES

    @property
    def unit(self) -> int:
        """The most bytes that a file makes its reader decompress together."""
        return self.most // 2

    def check(self, size: int, allowed: int, what: str, file: StoredFile) -> None:
        """Compare bytes with those that are allowed, before they are taken.

        Raises:
            RecordTooLarge: They are more.
        """
        if size > allowed:
            needed = -(-size * (self.most // allowed) // MIB)
            raise RecordTooLarge(
                f"{what} takes {size / MIB:,.0f} MiB, and --memory allows {allowed / MIB:,.0f} MiB "
                f"for it; give --memory {needed}MiB or more, if you trust the file",
                url=str(file),
            )


DEFAULT_MEMORY = Memory()
"""The memory where no other is named."""
