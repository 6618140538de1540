"""Batches of Parquet and Arrow (Feather): their schemas, their rows, and their records.

A message of Arrow's IPC format is a table of FlatBuffers with a body of buffers. Source:
``Message.fbs`` and ``File.fbs`` of Apache Arrow.
"""

from __future__ import annotations

import struct
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from streamrec.errors import DataError, StreamrecError
from streamrec.sources.arrow_fields import LENGTHS, column_of, flatten_structs, lengths_of, module
from streamrec.sources.parquet import HeldFile, ParquetReader
from streamrec.sources.table_columns import encode_table
from streamrec.values.columns import offsets_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    import numpy.typing as npt

    from streamrec.sources.source import Memory
    from streamrec.stores.stored_files import StoredFile

    Sizes = npt.NDArray[np.int64]
    from collections.abc import Callable

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
    """The places of its buffers that are compressed, each after its length when it is not."""

    def size_decompressed(self, read: Read) -> int:
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
    # Since Arrow 0.15 a mark stands before the length; before, the length alone.
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
    # The values of a dictionary are a batch within its message.
    if batch and kind == _DICTIONARY:
        batch = batch.table(1)
    buffers: list[int] = []
    # Other messages, such as the schema, have no buffers of values.
    if kind not in (_DICTIONARY, _RECORDS):
        batch = None
    # Arrow 0.17 named the compression in the metadata of the message.
    if batch and (batch.place(_COMPRESSION) or _OLD_COMPRESSION in bytes(data)):
        extents = batch.structs(_BUFFERS, "<qq")
        buffers = [start + size + offset for offset, length in extents if length >= _LENGTH]
    return ArrowMessage(begin, start + size + body, kind == _RECORDS, buffers)


def blocks_of(read: Read, size: int) -> tuple[list[int], list[int]]:
    """Return the places of a file's dictionaries, and those of its batches.

    Raises:
        ValueError: The file is damaged.
    """
    # The length of the footer and the mark are the last ten bytes.
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
        # The table of fields stands before or after: its distance is signed.
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
        # Fields that a writer did not know are not in its table.
        if 4 + 2 * number >= self._unpack("<H", self._fields)[0]:
            return None
        # Behind its own size and that of the table come 16 bits for each field; 0 stands for the
        # default.
        offset = self._unpack("<H", self._fields + 4 + 2 * number)[0]
        return self._at + offset if offset else None

    def number(self, number: int, kind: str) -> int:
        """Return a field's number; 0 where there is none."""
        place = self.place(number)
        return 0 if place is None else self._unpack(kind, place)[0]

    def table(self, number: int) -> _Table | None:
        """Return a field's table; ``None``: it is not there."""
        place = self.place(number)
        return None if place is None else _Table(self._data, self._follow(place))

    def structs(self, number: int, kind: str) -> Iterator[tuple[int, ...]]:
        """Yield the numbers of each struct of a field's vector."""
        place = self.place(number)
        if place is None:
            return
        at = self._follow(place)
        for n in range(self._unpack("<I", at)[0]):
            yield self._unpack(kind, at + 4 + n * struct.calcsize(kind))

    def _follow(self, place: int) -> int:
        return place + int(self._unpack("<I", place)[0])

    def _unpack(self, kind: str, at: int) -> tuple[int, ...]:
        # Places come from the file, and may lead anywhere.
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
        # A second view of the map: to look ahead does not move the place where Arrow reads.
        self._looked = opened(file) if self._held is None else source
        self._is_file = bytes(self._read(0, len(MAGIC))) == MAGIC
        origin = source if self._held is None else pyarrow.PythonFile(self._held, "r")
        origin.seek(0)
        # A stream has no magic number, so what is not a file is taken for one.
        self._reader = (pyarrow.ipc.open_file if self._is_file else pyarrow.ipc.open_stream)(origin)

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
            raise self._damage(error) from None
        # Arrow reads all dictionaries with the first batch.
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
                size = message.size_decompressed(self._read)
            else:
                stored = message.end - begin
                # Twice: before the bytes are requested, and before they are decompressed.
                self._admit(stored, begin)
                self._held.hold(begin, stored)
                size = stored + message.size_decompressed(self._read)
        except ValueError as error:
            raise self._damage(error) from None
        self._admit(size, begin)
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

    def _damage(self, error: ValueError) -> DataError:
        if isinstance(error, DataError):
            return error
        return DataError(f"Arrow cannot read it: {error}; write the file anew", url=str(self._file))


_VIEW = 4
"""Numbers of 32 bits in a view of a text, of which the first is its length."""
_OFFSET = 8
"""Bytes that a value whose length is its own takes besides."""


def cut(batch: Any, rows: int, size: int) -> Iterator[tuple[int, int, int]]:
    """Yield the first row of each piece of a batch, the one past its last, and its bytes.

    Args:
        batch: The batch.
        rows: The most rows of a piece.
        size: The most bytes of a piece of more than one row.
    """
    for begin in range(0, batch.num_rows, rows):
        part = batch.slice(begin, rows)
        ends = np.cumsum(_of_columns(part.columns, part.num_rows))
        first, before = 0, 0
        while first < part.num_rows:
            stop = max(first + 1, int(np.searchsorted(ends, before + size, "right")))
            yield begin + first, begin + stop, int(ends[stop - 1]) - before
            first, before = stop, int(ends[stop - 1])


def row_sizes(array: Any) -> Sizes:
    """Return the bytes of each row of a column."""
    pyarrow = module("pyarrow")
    kind, types = array.type, pyarrow.types
    if isinstance(kind, pyarrow.BaseExtensionType):
        return row_sizes(array.storage)
    if types.is_struct(kind):
        return _of_columns(array.flatten(), len(array))
    if types.is_dictionary(kind):
        # A row takes what its value takes, however often the dictionary's value is used.
        return _take(row_sizes(array.dictionary), array.indices)
    if types.is_run_end_encoded(kind):
        return _of_runs(array)
    # The values of nulls are there, too, so places are multiples of the size.
    if types.is_fixed_size_list(kind):
        ends = offsets_of(row_sizes(array.values))
        bounds = (np.arange(len(array) + 1) + array.offset) * kind.list_size
        return cast("Sizes", np.diff(ends[bounds]))
    if hasattr(array, "offsets") and hasattr(array, "values"):
        return _of_lists(array)
    return _of_values(array)


def _of_columns(columns: list[Any], rows: int) -> Sizes:
    sizes = np.zeros(rows, np.int64)
    for column in columns:
        sizes += row_sizes(column)
    return sizes


def _take(sizes: Sizes, indices: Any) -> Sizes:
    at = indices.fill_null(0).to_numpy(zero_copy_only=False)
    return sizes[at] if len(sizes) else np.zeros(len(at), np.int64)


def _of_runs(array: Any) -> Sizes:
    ends = array.run_ends.to_numpy(zero_copy_only=False)
    # A slice keeps the runs of the whole array, so its offset counts.
    at = np.searchsorted(ends, np.arange(len(array)) + array.offset, "right")
    return cast("Sizes", row_sizes(array.values)[at])


def _of_lists(array: Any) -> Sizes:
    begins = array.offsets.to_numpy()
    views = getattr(array, "sizes", None)
    if views is None:
        begins, stops = begins[:-1], begins[1:]
    else:
        stops = begins + views.to_numpy(zero_copy_only=False)
    if not len(begins):
        return np.zeros(0, np.int64)
    # Views may share values, and a slice refers to a part of them.
    first = int(begins.min())
    ends = offsets_of(row_sizes(array.values.slice(first, int(stops.max()) - first)))
    return cast("Sizes", ends[stops - first] - ends[begins - first] + _OFFSET)


def _of_values(array: Any) -> Sizes:
    types, kind = module("pyarrow").types, array.type
    if types.is_null(kind):
        return np.zeros(len(array), np.int64)
    if types.is_string_view(kind) or types.is_binary_view(kind):
        views = np.frombuffer(array.buffers()[1], np.int32).reshape(-1, _VIEW)
        return views[array.offset : array.offset + len(array), 0].astype(np.int64) + _OFFSET
    try:
        width = -(-kind.bit_width // 8)
    except ValueError:  # each value has its own
        lengths = module("pyarrow.compute").binary_length(array).fill_null(0)
        return cast("Sizes", lengths.to_numpy(zero_copy_only=False).astype(np.int64) + _OFFSET)
    return np.full(len(array), width, np.int64)


FOOT = 64 << 10
"""Bytes that are requested at the ends of a file, for what it says of itself."""


def batches_of(file: StoredFile, memory: Memory, groups: range | None) -> Iterator[tuple[int, Any]]:
    """Yield batches of a file, each with its first row's number.

    Args:
        file: The file.
        memory: The bounds of what is read together.
        groups: The row groups of Parquet to read; ``None``: all.

    Raises:
        DataError: The file is damaged, or needs more memory than there is.
    """
    with _translate(file):
        if _is_parquet(file):
            yield from ParquetReader(file, _open, memory).batches(groups)
        else:
            yield from _number(IpcReader(file, _open, memory).batches())
    file.check()  # a mapped file may change in place


def encode_batch(
    batch: Any, features: Mapping[str, str], classes: Collection[str], key: str | None
) -> Any:
    """Return the records and keys of a batch; see :func:`encode_table`."""
    arrays = dict(flatten_structs(batch.schema.names, batch.columns))
    columns, missing = {}, {}
    for name, dtype in features.items():
        if name in arrays:
            columns[name], nulls = column_of(arrays[name], dtype, name, is_given=name in classes)
        else:
            # The feature with the lengths of inner lists has no column of its own.
            array = arrays[name.removesuffix(LENGTHS)]
            columns[name] = lengths_of(array)
            nulls = array.is_null().to_numpy(zero_copy_only=False)
        if nulls is not None and nulls.any():
            missing[name] = nulls
    return encode_table(columns, missing, key)


def _begin(file: StoredFile) -> bytes:
    with file.open(FOOT) as stored:
        return stored.read(6)


def _is_parquet(file: StoredFile) -> bool:
    return _begin(file).startswith(b"PAR1")


def _open(file: StoredFile, *blocks: int) -> Any:
    """Open a file for Arrow."""
    pyarrow = module("pyarrow")
    if file.is_local:
        return pyarrow.memory_map(file.path)
    return pyarrow.PythonFile(file.open(*blocks), "r")


def _ipc(file: StoredFile) -> Any:
    """Return a reader of a file of Arrow, in the form of a file or of a stream."""
    pyarrow = module("pyarrow")
    is_file = _begin(file) == b"ARROW1"
    source = _open(file)
    return pyarrow.ipc.open_file(source) if is_file else pyarrow.ipc.open_stream(source)


@contextmanager
def _translate(file: StoredFile) -> Iterator[None]:
    """Raise Arrow's errors as those of the file."""
    try:
        yield
    except StreamrecError:
        raise
    except (module("pyarrow").ArrowException, OSError) as error:
        why = " ".join(str(error).split())
        raise DataError(
            f"Arrow cannot read it: {why}; write the file anew", url=str(file)
        ) from None


def schema_of(file: StoredFile) -> Any:
    """Return the schema of a file."""
    with _translate(file):
        if _is_parquet(file):
            return module("pyarrow.parquet").read_schema(_open(file, FOOT))
        return _ipc(file).schema


def count_rows(files: list[StoredFile]) -> int | None:
    """Return the rows of all files; ``None``: not all of them say it."""
    if not all(map(_is_parquet, files)):
        return None
    return sum(int(_metadata(file).num_rows) for file in files)


def _metadata(file: StoredFile) -> Any:
    """Return what a file of Parquet says of itself."""
    with _translate(file):
        return module("pyarrow.parquet").read_metadata(_open(file, FOOT))


def count_row_groups(file: StoredFile) -> int:
    """Return the number of row groups of a file of Parquet."""
    return int(_metadata(file).num_row_groups)


def _number(batches: Iterable[Any], first: int = 0) -> Iterator[tuple[int, Any]]:
    for batch in batches:
        yield first, batch
        first += batch.num_rows
