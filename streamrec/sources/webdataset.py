"""Tars of WebDataset: the extensions of a sample's files become features.

Nothing is ever extracted to a disk: names are keys, and never paths.
"""

from __future__ import annotations

import gzip
import re
import tarfile
import zlib
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import IO, TYPE_CHECKING, Any, ClassVar, NamedTuple

from streamrec.errors import ConfigError, DataError, StreamrecError
from streamrec.sources.json_lines import json_object
from streamrec.sources.source import DEFAULT_MEMORY, PIECE_BYTES, SourceKind, files_of
from streamrec.sources.table import (
    OPTIONS,
    FeatureChoice,
    RowTable,
    TableOptions,
    open_plain,
)
from streamrec.sources.table_values import RowError, SampledType, widen, with_parts

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from typing import Unpack

    from streamrec.sources.source import Memory, ReadsIn
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
            is_gzip = isinstance(stored, gzip.GzipFile)
            yield from _Cutter(file, _Forward(stored), memory, is_compressed=is_gzip).pieces()
    except StreamrecError:
        raise
    except (tarfile.TarError, OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise _damage(file, str(error)) from None


def _damage(file: StoredFile, why: str) -> DataError:
    return DataError(f"the tar is damaged: {why}; copy or write it anew", url=str(file))


class _Forward:
    """A file for ``tarfile`` that goes forward alone, so that no header leads it in circles."""

    def __init__(self, file: IO[bytes] | gzip.GzipFile) -> None:
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
            raise tarfile.ReadError(f"the header at byte {self._at} claims {size} bytes")
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
        is_compressed: The tar is, so its own size is not known.
    """

    def __init__(
        self, file: StoredFile, stored: _Forward, memory: Memory, *, is_compressed: bool
    ) -> None:
        self._file, self._stored, self._memory = file, stored, memory
        self._is_compressed = is_compressed
        # Else contents are read later, by the worker of their piece.
        self._is_read = is_compressed or not file.is_local
        self._begin(0)

    def _begin(self, start: int) -> None:
        self._start = start
        self._samples: list[TarSample] = []
        self._parts: list[bytes] = []
        self._held = 0

    def pieces(self) -> Iterator[TarPiece]:
        """Yield the pieces."""
        for info in self._members():
            # As WebDataset does: the key ends at the first dot of the name, and files of one key
            # follow each other.
            key, extension = _split_name(info.name)
            # Directories, and files that say something of the tar, belong to no sample.
            if not extension or info.isdir():
                continue
            if not self._samples or self._samples[-1].key != key:
                # A piece ends between two samples only, so that a sample is never divided.
                if self._samples and info.offset - self._start >= PIECE_BYTES:
                    yield self._piece(info.offset)
                self._samples.append(TarSample(key))
            self._add(self._samples[-1], info, extension)
        end = self._stored.tell() if self._is_compressed else self._file.size
        if self._samples:
            yield self._piece(end)

    def _members(self) -> Iterator[tarfile.TarInfo]:
        reader: Any = self._stored
        # TarFile itself and not tarfile.open: that would try to decompress what looks compressed.
        tar: Any = tarfile.TarFile(fileobj=reader)
        while (info := tar.next()) is not None:
            tar.members = []  # else it remembers them all
            size = info.size
            is_whole = self._is_compressed or info.offset_data + size <= self._file.size
            if not 0 <= size < 1 << 63 or not is_whole:
                raise tarfile.ReadError(f"{info.name[:100]!r} is cut off")
            yield info
        # tarfile takes the end of a file for that of a tar.
        if not self._stored.last:
            raise tarfile.ReadError("its end mark is missing")
        rest = self._stored.last
        while rest:  # to its end, where a compressed one has its checksum
            if rest.strip(b"\0"):
                raise tarfile.ReadError(f"byte {tar.offset} begins neither a header nor the end")
            rest = self._stored.take(MOST_HEADER)

    def _piece(self, stop: int) -> TarPiece:
        if not self._is_read:  # all between two samples is read, too
            self._admit(self._samples[-1].key, stop - self._start)
        data = b"".join(self._parts) if self._is_read else None
        piece = TarPiece(
            file=self._file, start=self._start, stop=stop, samples=self._samples, data=data
        )
        self._begin(stop)
        return piece

    def _add(self, sample: TarSample, info: tarfile.TarInfo, extension: str) -> None:
        sample.wrong = sample.wrong or _fault(sample, info, extension)
        if sample.wrong is not None:
            return
        sample.nbytes += info.size
        self._admit(sample.key, sample.nbytes)
        # Contents that are read lie end to end; those that are still in the file have headers
        # between them.
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


def _split_name(name: str) -> tuple[str, str]:
    """Return a file's key and its extension, which is empty if it belongs to no sample."""
    directory, slash, last = name.rpartition("/")
    key, _, extension = last.partition(".")
    # A file whose name begins with a dot has no key.
    is_sample = key and not _META.match(name)
    return f"{directory}{slash}{key}", extension.lower() if is_sample else ""


def _fault(sample: TarSample, info: tarfile.TarInfo, extension: str) -> str | None:
    name = repr(info.name[:100])
    # A link could name a file outside of the tar; nothing is followed.
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


KEY = "__key__"
"""The feature of a sample's name, as WebDataset calls it."""
NUMBERS = frozenset({"cls", "cls2", "id", "index", "inx"})
"""The last parts of extensions that WebDataset decodes as whole numbers."""
SAMPLE = 1000
"""Samples by which features are found."""
SAMPLE_PIECES = 16
"""Pieces that they may take: of videos, 1,000 samples are many GB."""


@dataclass(frozen=True, kw_only=True)
class WebDataset(RowTable):
    """Tars of samples. Values of JSON are features ``json/name``, where they are named.

    ``given`` also has the features with both texts and numbers.
    """

    reads_in: ClassVar[ReadsIn] = "threads"
    place: ClassVar[str] = "sample {!r}"
    choice: FeatureChoice
    memory: Memory = DEFAULT_MEMORY

    def pieces(self) -> Iterator[TarPiece]:
        """Yield whole samples of each tar."""
        return _pieces(self.files, self.memory)

    def rows(self, piece: TarPiece) -> Iterator[tuple[str, dict[str, Any] | RowError]]:
        """Yield the values of each sample."""
        contents = piece.contents()
        for sample in piece.samples:
            try:
                yield sample.key, self._values(sample, contents)
            except RowError as error:
                yield sample.key, error

    def default_keys(self, places: list[str]) -> list[bytes]:
        """Return the names of samples."""
        return list(map(_encode, places))

    def _values(self, sample: TarSample, contents: bytes) -> dict[str, Any]:
        if sample.wrong is not None:
            raise RowError(sample.wrong)
        if unknown := [*filter(self.choice.takes, sample.files.keys() - self.features.keys())]:
            raise RowError(
                f"{min(unknown)!r} is not in the first samples; name all features with --features"
            )
        # It would take the place of the sample's name.
        if KEY in sample.files:
            raise RowError(f"a file has the extension {KEY}, which is the sample's name; rename it")
        values: dict[str, Any] = {KEY: _encode(sample.key)}
        for name in self.features.keys() & sample.files.keys():
            data = contents[sample.files[name]]
            # Numbers come as text, with a line feed at the end as `echo` writes them.
            is_text = self.features[name] != "bytes"
            values[name] = data.decode(errors="replace").strip() if is_text else data
        return values | _fields(sample, contents, _parents(self.features))


def _encode(key: str) -> bytes:
    return key.encode(errors="surrogateescape")


def _parents(features: Collection[str]) -> set[str]:
    """Return the extensions whose values are features."""
    return {name.partition("/")[0] for name in features if "/" in name}


def _fields(sample: TarSample, contents: bytes, extensions: set[str]) -> dict[str, Any]:
    """Return the values of a sample's JSON, by the names of their features."""
    fields: dict[str, Any] = {}
    for extension in extensions & sample.files.keys():
        try:
            values = json_object(contents[sample.files[extension]], keeps_numbers=True)
        except RowError as error:
            raise RowError(f"{extension!r}: {error}") from None
        fields |= {f"{extension}/{name}": value for name, value in values.items()}
    return fields


def open_webdataset(
    place: str,
    *,
    storage_options: Mapping[str, Any] | None = None,
    memory: Memory = DEFAULT_MEMORY,
    **table: Unpack[TableOptions],
) -> WebDataset:
    """Open tars; see :class:`WebDataset`.

    Raises:
        ConfigError: There are no files, they hold no samples, or an argument is wrong.
        DataError: A tar is damaged.
    """
    files = files_of(place, KIND.suffixes, storage_options)
    choice = FeatureChoice(**table)
    wrong: list[str] = []
    types, fields, lists = _sample(
        _pieces(files, memory), _parents([*(choice.features or ()), *choice.given]), wrong
    )
    # The key alone.
    if len(types) == 1:
        if wrong:
            raise DataError(wrong[0], url=str(files[0]))
        raise ConfigError(
            f"{files[0]}: there is no sample in it; its files need names such as 0001.jpg"
        )
    types |= {name: sampled.dtype or "bytes" for name, sampled in fields.items()}
    types |= choice.given  # a feature with a type need not be in the first samples
    numbers = {name for name in types if _type_of(name) == "int64"}  # as WebDataset reads them
    mixed = {name for name, one in fields.items() if one.is_mixed}
    return WebDataset(
        files=files,
        features=choice.choose(types, str(files[0])),
        lists=lists,
        choice=choice,
        given=frozenset(numbers | mixed | choice.given.keys()),
        parts=with_parts(fields),
        key=choice.key,
        memory=memory,
    )


KIND = SourceKind("webdataset", open_webdataset, (".tar", ".tar.gz", ".tgz"), OPTIONS)


def _pieces(files: list[StoredFile], memory: Memory) -> Iterator[TarPiece]:
    return chain.from_iterable(tar_pieces(file, memory) for file in files)


def _sample(
    pieces: Iterator[TarPiece], parents: set[str], wrong: list[str]
) -> tuple[dict[str, str], dict[str, SampledType], frozenset[str]]:
    """Return the types of the first samples' files, those of values in JSON, and the lists.

    Args:
        pieces: The pieces.
        parents: The extensions whose values are features.
        wrong: Is given what is wrong with the first sample that is.
    """
    types = {KEY: "bytes"}
    values: dict[str, SampledType] = {}
    lists: set[str] = set()
    for sample, fields in islice(_first(pieces, parents, wrong), SAMPLE):
        types |= {extension: _type_of(extension) for extension in sample.files}
        widen(values, lists, fields)
    return types, values, frozenset(lists)


def _first(
    pieces: Iterator[TarPiece], parents: set[str], wrong: list[str]
) -> Iterator[tuple[TarSample, dict[str, Any]]]:
    # Contents are read only where values of JSON are looked for.
    for piece in islice(pieces, SAMPLE_PIECES):
        contents = piece.contents() if parents else b""
        for sample in piece.samples:
            fault = sample.wrong
            try:
                yield sample, _fields(sample, contents, parents)
            except RowError as error:
                fault = str(error)
            if fault is not None and not wrong:
                wrong.append(f"sample {sample.key!r}: {fault}")


def _type_of(extension: str) -> str:
    return "int64" if extension.rpartition(".")[2] in NUMBERS else "bytes"
