"""The reading of Arrow's files and streams in batches whose bytes are known before."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from streamrec.errors import DataError
from streamrec.sources.arrow_fields import module
from streamrec.sources.parquet import HeldFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from streamrec.sources.source import Memory
    from streamrec.stores.stored_files import StoredFile

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


class IpcReader:
    """A reader of one file, in the form of a file or of a stream.

    Args:
        file: The file.
        opened: Opens it for Arrow.
        memory: The bounds of what is read together.
    """

    def __init__(self, file: StoredFile, opened: Callable[..., Any], memory: Memory) -> None:
        self._file, self._memory = file, memory
        pyarrow, source = module("pyarrow"), opened(file)
        self._held = None if file.is_local else HeldFile(source)
        self._looked = opened(file) if self._held is None else source
        self._is_file = bytes(self._read(0, len(MAGIC))) == MAGIC
        given = source if self._held is None else pyarrow.PythonFile(self._held, "r")
        given.seek(0)
        self._reader = (pyarrow.ipc.open_file if self._is_file else pyarrow.ipc.open_stream)(given)

    def batches(self) -> Iterator[Any]:
        """Yield the batches.

        Raises:
            DataError: The file is damaged.
            RecordTooLarge: It needs more memory than there is.
        """
        for batch in self._of_file() if self._is_file else self._of_stream():
            batch.validate(full=True)  # Arrow follows places that the file tells
            yield batch

    def _of_file(self) -> Iterator[Any]:
        try:
            dictionaries, batches = blocks_of(self._read, self._file.size)
        except ValueError as error:
            raise self._damaged(error) from None
        for begin in dictionaries:
            self._next(begin)
        for number, begin in enumerate(batches):
            self._next(begin)
            yield self._reader.get_batch(number)

    def _of_stream(self) -> Iterator[Any]:
        at = 0
        while (message := self._next(at)) is not None:
            if message.has_rows:
                yield self._reader.read_next_batch()
            at = message.end

    def _next(self, begin: int) -> ArrowMessage | None:
        """Return the message at a place, when its memory is admitted; see :func:`message_at`."""
        try:
            message = message_at(self._read, begin)
            if message is None:
                return None
            self._check_end(message)
            if self._held is None:
                taken = message.decompressed(self._read)
            else:
                stored = message.end - begin
                self._admit(stored, begin)
                self._held.hold(begin, stored)
                taken = stored + message.decompressed(self._read)
        except ValueError as error:
            raise self._damaged(error) from None
        self._admit(taken, begin)
        return message

    def _check_end(self, message: ArrowMessage) -> None:
        if message.end > self._file.size:
            raise ValueError("a message is cut off")

    def _admit(self, size: int, begin: int) -> None:
        what = f"the batch at byte {begin}"
        self._memory.check(size, self._memory.unit, what, self._file)

    def _read(self, at: int, size: int) -> memoryview:
        if self._held is not None:
            return self._held.read_at(at, size)
        self._looked.seek(at)
        return memoryview(self._looked.read_buffer(size)).cast("B")

    def _damaged(self, error: ValueError) -> DataError:
        if isinstance(error, DataError):
            return error
        return DataError(f"Arrow cannot read it: {error}; write the file anew", url=str(self._file))
