"""The messages of Arrow's IPC format: what each of them takes, before it is decompressed.

A message is a table of FlatBuffers with a body of buffers. Source: ``Message.fbs`` and ``File.fbs``
of Apache Arrow.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Read = Callable[[int, int], memoryview]
    """A function that returns so many bytes at a place of the file."""

MAGIC = b"ARROW1"
_CONTINUES = 0xFFFFFFFF
_DICTIONARY, _RECORDS = 2, 3
"""The types of messages with values."""
_KIND, _HEADER, _BODY = 1, 2, 3
"""Fields of a message."""
_BUFFERS, _COMPRESSION = 2, 3
"""Fields of a batch."""
_OLD_COMPRESSION = b"ARROW:experimental_compression"
_LENGTH = 8
"""Bytes before a compressed buffer, with its length when it is decompressed."""


class ArrowMessage(NamedTuple):
    """One message of a file."""

    begin: int
    end: int
    """Its first byte in the file, and the one past its last."""
    has_rows: bool
    compressed: list[int]
    """The places of its buffers that are compressed, each behind its length when it is not."""

    def decompressed(self, read: Read) -> int:
        """Return the bytes that its compressed buffers take when they are decompressed."""
        lengths = (_exactly(read(place, _LENGTH), _LENGTH) for place in self.compressed)
        return sum(max(0, *struct.unpack("<q", length)) for length in lengths)


def message_at(read: Read, begin: int) -> ArrowMessage | None:
    """Return the message at a place; ``None``: the stream ends there.

    Raises:
        ValueError: It is damaged.
    """
    head = read(begin, 8)
    if len(head) < 8:
        return None
    size, longer = struct.unpack("<II", head)
    start = begin + 4
    if size == _CONTINUES:
        size, start = longer, start + 4
    if not size:
        return None
    data = _exactly(read(start, size), size)
    message = _Table.root(data)
    kind, body = message.number(_KIND, "<B"), message.number(_BODY, "<q")
    if body < 0:
        raise ValueError("a message has no valid size")
    batch = message.table(_HEADER)
    if batch and kind == _DICTIONARY:
        batch = batch.table(1)
    buffers: list[int] = []
    if kind not in (_DICTIONARY, _RECORDS):
        batch = None
    if batch and (batch.place(_COMPRESSION) or _OLD_COMPRESSION in bytes(data)):
        found = batch.structs(_BUFFERS, "<qq")
        buffers = [start + size + offset for offset, length in found if length >= _LENGTH]
    return ArrowMessage(begin, start + size + body, kind == _RECORDS, buffers)


def blocks_of(read: Read, size: int) -> tuple[list[int], list[int]]:
    """Return the places of a file's dictionaries, and those of its batches.

    Raises:
        ValueError: The file is damaged.
    """
    tail = _exactly(read(size - 10, 10), 10)
    (length,) = struct.unpack_from("<i", tail)
    if tail[4:] != MAGIC or not 0 < length <= size - 10:
        raise ValueError("it does not end as a file of Arrow")
    footer = _Table.root(_exactly(read(size - 10 - length, length), length))
    dictionaries, batches = (
        [begin for begin, _, _ in footer.structs(number, "<qi4xq")] for number in (2, 3)
    )
    return dictionaries, batches


def _exactly(data: memoryview, size: int) -> memoryview:
    if len(data) < size:
        raise ValueError("it ends too early")
    return data


class _Table:
    """A table of FlatBuffers, whose fields are at places that its own table tells."""

    def __init__(self, data: memoryview, at: int) -> None:
        self._data, self._at = data, at
        self._fields = at - self._unpack("<i", at)[0]

    @classmethod
    def root(cls, data: memoryview) -> _Table:
        """Return the outermost table.

        Raises:
            ValueError: The data has no table.
        """
        if len(data) < 4:
            raise ValueError("a message is damaged")
        return cls(data, struct.unpack_from("<I", data)[0])

    def place(self, number: int) -> int | None:
        """Return the place of a field; ``None``: it is not there."""
        if 4 + 2 * number >= self._unpack("<H", self._fields)[0]:
            return None
        offset = self._unpack("<H", self._fields + 4 + 2 * number)[0]
        return self._at + offset if offset else None

    def number(self, number: int, kind: str) -> int:
        """Return a field's number; 0 where there is none."""
        place = self.place(number)
        return 0 if place is None else self._unpack(kind, place)[0]

    def table(self, number: int) -> _Table | None:
        """Return a field's table; ``None``: it is not there."""
        place = self.place(number)
        return None if place is None else _Table(self._data, self._pointed(place))

    def structs(self, number: int, kind: str) -> Iterator[tuple[int, ...]]:
        """Yield the numbers of each struct of a field's vector."""
        place = self.place(number)
        if place is None:
            return
        at = self._pointed(place)
        for n in range(self._unpack("<I", at)[0]):
            yield self._unpack(kind, at + 4 + n * struct.calcsize(kind))

    def _pointed(self, place: int) -> int:
        return place + int(self._unpack("<I", place)[0])

    def _unpack(self, kind: str, at: int) -> tuple[int, ...]:
        if not 0 <= at <= len(self._data) - struct.calcsize(kind):
            raise ValueError("a message is damaged")
        return struct.unpack_from(kind, self._data, at)
