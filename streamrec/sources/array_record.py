"""Files of ArrayRecord, whose records are taken as they are."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from streamrec.errors import ConfigError, DataError
from streamrec.sources.source import PIECE_BYTES, Block, SourceKind, files_of, table_identity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streamrec.sources.source import ReadsIn, Refuse
    from streamrec.stores.stored_files import StoredFile

MOST_RECORDS = 1 << 16
"""Records of one piece, however short they are."""


class _RecordRange(NamedTuple):
    file: StoredFile
    reader: Any
    first: int
    stop: int
    size: int
    """Its part of the file's bytes."""


@dataclass(frozen=True)
class ArrayRecord:
    """Files of ArrayRecord, decompressed by the package's own threads."""

    reads_in: ClassVar[ReadsIn] = "itself"
    unit: ClassVar[str] = "bytes"
    features: ClassVar[None] = None
    labels: ClassVar[None] = None
    files: list[StoredFile]

    @property
    def total(self) -> int:
        """The bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def identity(self) -> Any:
        """The name and version of the records."""
        return table_identity(self.files, {})

    def pieces(self) -> Iterator[_RecordRange]:
        """Yield records of each file."""
        for file in self.files:
            # The package opens the file by its path, so it is compared before and after.
            file.check()
            reader = _open(file)
            count = reader.num_records()
            # Records have no sizes of their own here, so each counts as the mean.
            each = min(MOST_RECORDS, PIECE_BYTES * count // file.size) or 1
            for first in range(0, count, each):
                stop = min(first + each, count)
                # So the parts add up to the file's size exactly.
                part = file.size * stop // count - file.size * first // count
                yield _RecordRange(file=file, reader=reader, first=first, stop=stop, size=part)
            reader.close()
            file.check()

    def read(self, piece: _RecordRange, refuse: Refuse) -> Block:  # noqa: ARG002 - none is refused
        """Take records."""
        from streamrec.values.columns import BytesColumn

        try:
            records = piece.reader.read(piece.first, piece.stop)
        except (IndexError, RuntimeError) as error:
            raise _damage(piece.file, error) from None
        return Block(BytesColumn.of(records), piece.size)


def open_array_record(place: str) -> ArrayRecord:
    """Open files; see :class:`ArrayRecord`.

    Raises:
        ConfigError: There are no files, or array_record is not installed.
    """
    _module()
    return ArrayRecord(files_of(place, KIND.suffixes))


KIND = SourceKind("arrayrecord", open_array_record, (".array_record", ".arrayrecord"))


def _module() -> Any:
    try:
        return import_module("array_record.python.array_record_module")
    except ImportError:
        from streamrec.suggestions import install

        raise ConfigError(
            f"ArrayRecord is read by the package array_record; {install('arrayrecord')}"
        ) from None


def _open(file: StoredFile) -> Any:
    """Open a file.

    Raises:
        DataError: The file is not an ArrayRecord, or is damaged.
    """
    try:
        reader = _module().ArrayRecordReader(file.path)
        if not reader.ok():
            reader.close()  # this raises what is wrong
    except RuntimeError as error:
        raise _damage(file, error) from None
    return reader


def _damage(file: StoredFile, error: Exception) -> DataError:
    return DataError(f"ArrayRecord cannot read it: {error}; copy it again", url=str(file))
