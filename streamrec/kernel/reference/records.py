"""Serialized messages from columns and from single mappings, in Python.

Source: protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec.kernel.reference.frames import frame_records
from streamrec.values.columns import BytesColumn, offsets_of
from streamrec.values.record_rows import RecordRows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

    from streamrec.kernel.contract import FieldColumn
    from streamrec.values.columns import ByteArray, Bytes, Indices


class MessageEncoder:
    """An encoder of one message a row, whose fields are columns.

    Args:
        fields: The columns, one at least, all of the same number of rows.
        head: What stands before each message and the number of its bytes; none if it is empty.
    """

    def __init__(self, fields: Sequence[FieldColumn], head: bytes = b"") -> None:
        self._fields = fields
        self._head = head
        self.most = len(head) + _LONGEST_VARINT + sum(map(_most, fields))
        """Bytes that no message exceeds; most are much shorter."""

    def offsets(self) -> Indices:
        """Return where the messages begin and end.

        Raises:
            ValueError: The splits do not rise within the values.
        """
        return self.encode().offsets

    def encode(self) -> BytesColumn:
        """Return all messages.

        Raises:
            ValueError: The splits do not rise within the values.
        """
        return BytesColumn.of(list(self._messages()))

    def blocks(self, size: int, *, framed: bool = False) -> Iterator[BytesColumn]:
        """Yield the messages in blocks of up to ``size`` bytes, or of one larger message.

        Args:
            size: Bytes of a block.
            framed: Yield the messages' TFRecord frames.

        Raises:
            ValueError: The splits do not rise within the values.
        """
        block: list[Bytes] = []
        taken = 0
        for message in map(_framed, self._messages()) if framed else self._messages():
            # A message larger than a block is one of its own.
            if block and taken + len(message) > size:
                yield BytesColumn.of(block)
                block, taken = [], 0
            block.append(message)
            taken += len(message)
        if block:
            yield BytesColumn.of(block)

    def _messages(self) -> Iterator[bytes]:
        """Yield each row's message."""
        for parts in zip(*map(_parts, self._fields), strict=True):
            message = b"".join(parts)
            yield self._head + _varint(len(message)) + message if self._head else message


def _most(field: FieldColumn) -> int:
    """Return the bytes that no row's field exceeds."""
    heads = sum(len(head) + _LONGEST_VARINT for head in field.heads)
    if isinstance(field.values, tuple):
        return heads + max(map(len, field.values), default=0)
    is_integer = field.values.dtype == np.int64
    return heads + len(field.values) * (_LONGEST_VARINT if is_integer else field.values.itemsize)


# 64 bits, by seven.
_LONGEST_VARINT = 10


def _framed(message: bytes) -> bytes:
    return frame_records(RecordRows.of([message])).tobytes()


def _parts(field: FieldColumn) -> Iterator[bytes]:
    """Yield the bytes of each row's field."""

    # Heads follow from the size alone, and many rows are of one size.
    @cache
    def head(size: int) -> bytes:
        heads = field.heads[:-1] if field.omits_last and not size else field.heads
        inner = b""
        # From the inside out, since a head tells the size of all after it.
        for outer in reversed(heads):
            inner = outer + _varint(len(inner) + size) + inner
        return inner

    missing = np.zeros(field.rows, np.bool_) if field.missing is None else field.missing
    for values, is_missing in zip(_values(field), missing.tolist(), strict=True):
        yield b"" if is_missing else head(len(values)) + bytes(values)


def _values(field: FieldColumn) -> Iterator[Bytes]:
    """Yield the bytes of each row's values."""
    values, splits = field.values, field.splits
    if splits is None or isinstance(values, tuple):
        yield from values
        return
    _check_splits(splits, len(values))
    if values.dtype == np.int64:
        values, splits = _integers(values, splits)
    else:
        values, splits = np.ascontiguousarray(values).view(np.uint8), splits * values.itemsize
    for first, last in pairwise(splits.tolist()):
        yield values[first:last].data


def _check_splits(splits: Indices, count: int) -> None:
    within = (splits[:-1] >= 0) & (splits[:-1] <= splits[1:]) & (splits[1:] <= count)
    if not within.all():
        row = int(within.argmin())
        raise ValueError(f"the splits of row {row} do not rise within the values")


def _varint(value: int) -> bytes:
    octets, _ = _varints(np.array([value], np.uint64))
    return octets.tobytes()


def _integers(values: npt.NDArray[np.int64], splits: Indices) -> tuple[ByteArray, Indices]:
    """Encode integers as varints, and return the rows' bounds in their bytes."""
    first, last = int(splits[0]), int(splits[-1])
    # Only what rows refer to: splits may begin and end inside of the values.
    values = np.ascontiguousarray(values[first:last])
    # One empty part where there are no integers, since zip() must give two results.
    parts = range(0, len(values), _PART) or (0,)
    octets, lengths = zip(
        *(_varints(values[begin : begin + _PART].view(np.uint64)) for begin in parts), strict=True
    )
    offsets = offsets_of(np.concatenate(lengths).astype(np.int64))
    return np.concatenate(octets), offsets[splits - first]


_PART = 1 << 14
"""The number of integers encoded at once, so that intermediate arrays stay in the cache."""


def _varints(left: npt.NDArray[np.uint64]) -> tuple[ByteArray, ByteArray]:
    """Return the varints' bytes end to end, and the number of bytes of each."""
    # As many as the largest one needs; a 0 takes a byte, too.
    groups = max(1, -(-int(left.max(initial=0)).bit_length() // 7))
    octets = np.empty((len(left), groups), np.uint8)
    taken = np.ones(octets.shape, np.bool_)
    lengths = np.ones(len(left), np.uint8)
    for group in range(groups):
        more = left > 0x7F
        # The eighth bit is set where more bytes follow; elsewhere it is 0 already.
        octets[:, group] = left.astype(np.uint8) | (more.view(np.uint8) << 7)
        # A slice, which is empty behind the last group.
        taken[:, group + 1 : group + 2] = more[:, None]
        lengths += more.view(np.uint8)
        left = left >> np.uint64(7)
    return octets[taken], lengths


def encode_plain(
    features: Mapping[str, Any],  # noqa: ARG001 - it is never plain enough
    codes: dict[str, int] | None = None,  # noqa: ARG001
) -> bytes | None:
    """Return ``None``, so that the encoder for all values is called.

    That one stands in ``formats.examples``, and is the specification of this function in C.
    """
    return None
