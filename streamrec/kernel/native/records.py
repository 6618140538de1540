"""Serialized messages from columns and from single mappings, by the extension."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec.kernel import _native
from streamrec.values.aligned import empty
from streamrec.values.columns import BytesColumn

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from streamrec.kernel.contract import FieldColumn
    from streamrec.values.columns import Indices

_MOST_ROWS = 1 << 14
"""Rows of a block, whose offsets have memory before it is known how many there are."""


class MessageEncoder:
    """An encoder of one message a row, whose fields are columns.

    Args:
        fields: The columns, one at least, all of the same number of rows.
        head: What stands before each message and the number of its bytes; none if it is empty.
    """

    def __init__(self, fields: Sequence[FieldColumn], head: bytes = b"") -> None:
        self._rows = fields[0].rows
        described = tuple(map(_described, fields))
        self._message, self.most = _native.message(self._rows, head, described)
        """Bytes that no message exceeds; most are much shorter."""

    def offsets(self) -> Indices:
        """Return where the messages begin and end, without encoding them.

        Raises:
            ValueError: The splits do not rise within the values.
            OverflowError: The messages are longer together than int64 counts.
        """
        offsets = np.empty(self._rows + 1, np.int64)
        rows, _ = _native.join(self._message, 0, offsets, None, False)
        if rows < self._rows:
            raise OverflowError("the messages are longer together than int64 counts")
        return offsets

    def encode(self) -> BytesColumn:
        """Return all messages.

        Raises:
            ValueError: The splits do not rise within the values, or values changed meanwhile.
        """
        offsets = self.offsets()
        values = empty((int(offsets[-1]),), np.uint8)
        rows, _ = _native.join(self._message, 0, offsets, values, False)
        # They were measured before: other sizes mean that somebody wrote to them.
        if rows < self._rows or offsets[-1] != len(values):
            raise ValueError("the values were changed while they were encoded; encode a copy")
        return BytesColumn(values, offsets)

    def blocks(self, size: int, *, framed: bool = False) -> Iterator[BytesColumn]:
        """Yield the messages in blocks of up to ``size`` bytes, or of one larger message.

        Args:
            size: Bytes of a block's memory, which is taken when the block is asked for.
            framed: Yield the messages' TFRecord frames.

        Raises:
            ValueError: The splits do not rise within the values, or values changed meanwhile.
        """
        first, room = 0, size
        while first < self._rows:
            # More room than usual is for the one row that needs it.
            most = min(self._rows - first, _MOST_ROWS) if room == size else 1
            offsets = np.empty(most + 1, np.int64)
            values = np.empty(room, np.uint8)
            rows, room = _native.join(self._message, first, offsets, values, framed)
            # None, where the first row is larger than the room: the next round has enough.
            if rows:
                first, room = first + rows, size
                yield BytesColumn(values[: offsets[rows]], offsets[: rows + 1])


def _described(field: FieldColumn) -> tuple[Any, ...]:
    """Return a field's (width, heads, omits last, values, splits, missing)."""
    values, splits = field.values, field.splits
    missing = None if field.missing is None else np.ascontiguousarray(field.missing)
    if splits is None or isinstance(values, tuple):
        return -1, field.heads, field.omits_last, values, None, missing
    width = 0 if values.dtype == np.int64 else values.itemsize
    # The extension reads items by plain loads, one after the other.
    values = np.require(values, requirements=["C", "A"])
    splits = np.require(splits, np.int64, ["C", "A"])
    return width, field.heads, field.omits_last, values, splits, missing


def encode_plain(features: Mapping[str, Any], codes: dict[str, int] | None = None) -> bytes | None:
    """Serialize a mapping of plain values as one Example, if it is one.

    Args:
        features: The values by the features' names. A ``dict`` of ``bytes``, ``str``, ``int``,
            ``float``, lists and tuples of them, and NumPy's arrays is one of plain values.
        codes: The field of ``Feature`` that each feature must have.

    Returns:
        The message; ``None`` where values are not plain, have no representation, or are of other
        types than ``codes`` says.
    """
    return _native.encode(features, codes, np.ndarray)
