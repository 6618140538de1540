"""Tars of samples, as WebDataset has them: files of one name and several extensions.

Nothing is ever extracted to a disk: names are keys, and never paths.
"""

from __future__ import annotations

import re
import tarfile
import zlib
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from streamrec.errors import DataError, StreamrecError
from streamrec.sources.memory import DEFAULT_MEMORY
from streamrec.sources.source import PIECE_BYTES
from streamrec.sources.text_pieces import is_compressed, open_plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streamrec.sources.memory import Memory
    from streamrec.stores.stored_files import StoredFile

MOST_HEADER = 1 << 20
"""The most bytes of one header: it may hold a long name, or others of a tool."""
MOST_FILES = 1000
"""The most files of one sample."""
_META = re.compile(r"__[^/]*__($|/)")
"""The names of files that say something of the tar, which WebDataset passes over."""


@dataclass
class TarSample:
    """The files of one key."""

    key: str
    files: dict[str, slice] = field(default_factory=dict)
    """The places of their contents in the piece, by extension."""
    nbytes: int = 0
    wrong: str | None = None
    """The reason why the sample does not become a record."""


class TarPiece(NamedTuple):
    """Samples that follow each other."""

    file: StoredFile
    start: int
    stop: int
    """The first byte in the tar, and the one past the last."""
    samples: list[TarSample]
    data: bytes | None
    """The contents; ``None``: they are still to be read from the local file."""

    @property
    def path(self) -> str:
        """The tar, for messages."""
        return str(self.file)

    @property
    def nbytes(self) -> int:
        """The bytes of the samples, and of what stands between them."""
        return self.stop - self.start

    @property
    def amount(self) -> int:
        """The part of the tar that is read with them."""
        return self.nbytes

    def contents(self) -> bytes:
        """Return the bytes that the samples' places refer to."""
        if self.data is not None:
            return self.data
        with self.file.open() as stored:
            stored.seek(self.start)
            return stored.read(self.stop - self.start)


def tar_pieces(file: StoredFile, memory: Memory = DEFAULT_MEMORY) -> Iterator[TarPiece]:
    """Yield a tar's pieces, of some MB or one sample.

    Of a local one that is not compressed only headers are read; others are read whole.

    Raises:
        DataError: The file is damaged, or not a tar.
        RecordTooLarge: A sample needs more memory than there is.
        StoreError: It cannot be read.
    """
    try:
        with open_plain(file) as stored:
            is_read = is_compressed(file) or not file.is_local
            yield from _Cutter(file, _Forward(stored), memory, is_read=is_read).pieces()
    except StreamrecError:
        raise
    except (tarfile.TarError, OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise _damaged(file, str(error)) from None


def _damaged(file: StoredFile, why: str) -> DataError:
    return DataError(f"the tar is damaged: {why}; copy or write it anew", url=str(file))


class _Forward:
    """A file for ``tarfile`` that goes forward alone, so that no header leads it in circles."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._at = file, 0
        self.last = b""
        """The bytes that were read last."""

    def tell(self) -> int:
        """Return the place of the next byte."""
        return self._at

    def seek(self, to: int) -> None:
        """Go on to a byte."""
        if not self._at <= to < 1 << 63:
            raise tarfile.ReadError(f"a header at byte {self._at} has no valid size")
        self._file.seek(to)
        self._at = to

    def read(self, size: int) -> bytes:
        """Read a part of a header."""
        if not 0 <= size <= MOST_HEADER:
            raise tarfile.ReadError(f"the header at byte {self._at} is of {size} bytes")
        self.last = self.take(size)
        return self.last

    def take(self, size: int) -> bytes:
        """Read a file's content."""
        data = self._file.read(size)
        self._at += len(data)
        return data


class _Cutter:
    """The cutting of one tar into pieces.

    Args:
        file: The tar.
        stored: Its bytes.
        memory: The bounds of one sample.
        is_read: Read the contents, too.
    """

    def __init__(
        self, file: StoredFile, stored: _Forward, memory: Memory, *, is_read: bool
    ) -> None:
        self._file, self._stored, self._memory, self._is_read = file, stored, memory, is_read
        self._begin(0)

    def _begin(self, start: int) -> None:
        self._start = start
        self._samples: list[TarSample] = []
        self._parts: list[bytes] = []
        self._held = 0

    def pieces(self) -> Iterator[TarPiece]:
        """Yield the pieces."""
        for info in self._members():
            key, extension = _named(info.name)
            if not extension or info.isdir():
                continue
            if not self._samples or self._samples[-1].key != key:
                if self._samples and info.offset - self._start >= PIECE_BYTES:
                    yield self._piece(info.offset)
                self._samples.append(TarSample(key))
            self._add(self._samples[-1], info, extension)
        end = self._stored.tell() if is_compressed(self._file) else self._file.size
        if self._samples:
            yield self._piece(end)

    def _members(self) -> Iterator[tarfile.TarInfo]:
        reader: Any = self._stored
        tar: Any = tarfile.TarFile(fileobj=reader)
        while (info := tar.next()) is not None:
            tar.members = []  # else it remembers them all
            size = info.size
            is_whole = is_compressed(self._file) or info.offset_data + size <= self._file.size
            if not 0 <= size < 1 << 63 or not is_whole:
                raise tarfile.ReadError(f"{info.name[:100]!r} is cut off")
            yield info
        if not self._stored.last:
            raise tarfile.ReadError("its end mark is missing")
        rest = self._stored.last
        while rest:  # to its end, where a compressed one has its checksum
            if rest.strip(b"\0"):
                raise tarfile.ReadError(f"at byte {tar.offset} is neither a header nor the end")
            rest = self._stored.take(MOST_HEADER)

    def _piece(self, stop: int) -> TarPiece:
        if not self._is_read:  # all between two samples is read, too
            self._admit(self._samples[-1].key, stop - self._start)
        data = b"".join(self._parts) if self._is_read else None
        piece = TarPiece(self._file, self._start, stop, self._samples, data)
        self._begin(stop)
        return piece

    def _add(self, sample: TarSample, info: tarfile.TarInfo, extension: str) -> None:
        sample.wrong = sample.wrong or _fault(sample, info, extension)
        if sample.wrong is not None:
            return
        sample.nbytes += info.size
        self._admit(sample.key, sample.nbytes)
        begin = self._held if self._is_read else info.offset_data - self._start
        sample.files[extension] = slice(begin, begin + info.size)
        if self._is_read:
            self._hold(info)

    def _admit(self, key: str, size: int) -> None:
        self._memory.check(size, self._memory.record, f"sample {key[:100]!r}", self._file)

    def _hold(self, info: tarfile.TarInfo) -> None:
        padded = -(-info.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
        data = self._stored.take(padded)  # to the next header: tarfile would go back by a byte
        if len(data) < info.size:
            raise tarfile.ReadError(f"{info.name[:100]!r} is cut off")
        self._parts.append(data[: info.size])
        self._held += info.size


def _named(name: str) -> tuple[str, str]:
    """Return a file's key and its extension, which is empty if it belongs to no sample."""
    directory, slash, last = name.rpartition("/")
    key, _, extension = last.partition(".")
    is_sample = key and not _META.match(name)
    return f"{directory}{slash}{key}", extension.lower() if is_sample else ""


def _fault(sample: TarSample, info: tarfile.TarInfo, extension: str) -> str | None:
    name = repr(info.name[:100])
    if info.issparse() or not info.isreg():
        return f"{name} is {_type(info)}; write the tar with the file itself"
    if extension in sample.files:
        return f"has two files of the extension {extension!r}; remove one"
    if len(sample.files) == MOST_FILES:
        return f"has more than {MOST_FILES} files; divide it"
    if not extension.isprintable():
        return f"{name} has an extension that is not text; rename it"
    return None


def _type(info: tarfile.TarInfo) -> str:
    if info.issparse():
        return "a sparse file"
    return "a link" if info.issym() or info.islnk() else "a device or a pipe"
