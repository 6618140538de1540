"""Tars of WebDataset: the extensions of a sample's files become features."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

from streamrec.errors import ConfigError, DataError
from streamrec.sources.json_lines import json_object
from streamrec.sources.memory import DEFAULT_MEMORY
from streamrec.sources.source import (
    Block,
    Divisible,
    FeatureChoice,
    files_of,
    table_identity,
)
from streamrec.sources.table_columns import TableRows, encode_table, widen
from streamrec.sources.table_values import RowError, SampledType
from streamrec.sources.tar_samples import tar_pieces
from streamrec.sources.text_pieces import total_bytes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from streamrec.sources.memory import Memory
    from streamrec.sources.source import ReadsIn, Refuse
    from streamrec.sources.tar_samples import TarPiece, TarSample
    from streamrec.stores.stored_files import StoredFile

SUFFIXES = (".tar", ".tar.gz", ".tgz")
KEY = "__key__"
"""The feature of a sample's name, as WebDataset calls it."""
NUMBERS = frozenset({"cls", "cls2", "id", "index", "inx"})
"""The last parts of extensions that WebDataset decodes as whole numbers."""
SAMPLE = 1000
"""Samples by which features are found."""
SAMPLE_PIECES = 16
"""Pieces that they may take: of videos, 1,000 samples are many GB."""


@dataclass(frozen=True)
class WebDataset(Divisible):
    """Tars of samples. Values of JSON are features ``json/name``, where they are named."""

    reads_in: ClassVar[ReadsIn] = "threads"
    unit: ClassVar[str] = "bytes"
    labels: ClassVar[None] = None
    features: dict[str, str]
    lists: frozenset[str]
    choice: FeatureChoice
    given: frozenset[str]
    """The features whose type the user named, and those with texts and numbers."""
    key: str | None
    memory: Memory = DEFAULT_MEMORY

    @property
    def total(self) -> int | None:
        """The bytes of all tars, which of compressed ones are not known."""
        return total_bytes(self.files)

    @property
    def identity(self) -> Any:
        """The name and version of the samples."""
        return table_identity(self.files, self.features, self.key)

    def pieces(self) -> Iterator[TarPiece]:
        """Yield whole samples of each tar."""
        return _pieces(self.files, self.memory)

    def read(self, piece: TarPiece, refuse: Refuse) -> Block:
        """Convert samples."""
        contents = piece.contents()
        rows = TableRows(self.features, self.lists, given=self.given)
        for sample in piece.samples:
            try:
                rows.add(sample.key, self._values(sample, contents))
            except RowError as error:
                rows.add(sample.key, error)
        columns, missing, names = rows.columns(
            lambda name, error: refuse(DataError(f"sample {name!r}: {error}", url=str(piece.file)))
        )
        records, keys = encode_table(columns, missing, self.key)
        keys = list(map(_encoded, names)) if keys is None else keys
        return Block(records, piece.stop - piece.start, keys)

    def _values(self, sample: TarSample, contents: bytes) -> dict[str, Any]:
        if sample.wrong is not None:
            raise RowError(sample.wrong)
        if unknown := [*filter(self.choice.takes, sample.files.keys() - self.features.keys())]:
            raise RowError(
                f"{min(unknown)!r} is not in the first samples; name all features with --features"
            )
        if KEY in sample.files:
            raise RowError(f"a file has the extension {KEY}, which is the sample's name; rename it")
        values: dict[str, Any] = {KEY: _encoded(sample.key)}
        for name in self.features.keys() & sample.files.keys():
            data = contents[sample.files[name]]
            is_text = self.features[name] != "bytes"
            values[name] = data.decode(errors="replace").strip() if is_text else data
        return values | _fields(sample, contents, _parents(self.features))


def _encoded(key: str) -> bytes:
    return key.encode(errors="surrogateescape")


def _parents(features: Collection[str]) -> set[str]:
    """Return the extensions whose values are features."""
    return {name.partition("/")[0] for name in features if "/" in name}


def _fields(sample: TarSample, contents: bytes, extensions: set[str]) -> dict[str, Any]:
    """Return the values of a sample's JSON, by the names of their features."""
    fields: dict[str, Any] = {}
    for extension in extensions & sample.files.keys():
        try:
            found = json_object(contents[sample.files[extension]], keeps_numbers=True)
        except RowError as error:
            raise RowError(f"{extension!r}: {error}") from None
        fields |= {f"{extension}/{name}": value for name, value in found.items()}
    return fields


def open_webdataset(
    place: str,
    *,
    features: Mapping[str, str | None] | None = None,
    types: Mapping[str, str] | None = None,
    drop: Collection[str] = (),
    key: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    memory: Memory = DEFAULT_MEMORY,
) -> WebDataset:
    """Open tars; see :class:`WebDataset`.

    Raises:
        ConfigError: There are no files, they hold no samples, or an argument is wrong.
        DataError: A tar is damaged.
    """
    files = files_of(place, SUFFIXES, storage_options)
    choice = FeatureChoice(features, types or {}, drop)
    known, fields, lists = _sampled(
        _pieces(files, memory), _parents([*(features or ()), *choice.given])
    )
    if len(known) == 1:
        raise ConfigError(
            f"{files[0]}: there is no sample in it; its files need names such as 0001.jpg"
        )
    known |= {name: sampled.dtype or "bytes" for name, sampled in fields.items()}
    known |= choice.given  # a feature with a type need not be in the first samples
    wanted = choice.of(known, str(files[0]), key)
    numbers = {name for name in known if _type_of(name) == "int64"}  # as WebDataset reads them
    mixed = {name for name, one in fields.items() if one.is_mixed}
    given = frozenset(numbers | mixed | choice.given.keys())
    return WebDataset(files, wanted, lists, choice, given, key, memory)


def _pieces(files: list[StoredFile], memory: Memory) -> Iterator[TarPiece]:
    for file in files:
        yield from tar_pieces(file, memory)


def _sampled(
    pieces: Iterator[TarPiece], parents: set[str]
) -> tuple[dict[str, str], dict[str, SampledType], frozenset[str]]:
    """Return the types of the first samples' files, those of values in JSON, and the lists."""
    found = {KEY: "bytes"}
    values: dict[str, SampledType] = {}
    lists: set[str] = set()
    for sample, fields in islice(_first(pieces, parents), SAMPLE):
        found |= {extension: _type_of(extension) for extension in sample.files}
        widen(values, lists, fields)
    return found, values, frozenset(lists)


def _first(
    pieces: Iterator[TarPiece], parents: set[str]
) -> Iterator[tuple[TarSample, dict[str, Any]]]:
    for piece in islice(pieces, SAMPLE_PIECES):
        contents = piece.contents() if parents else b""
        for sample in piece.samples:
            try:
                yield sample, _fields(sample, contents, parents)
            except RowError:
                continue


def _type_of(extension: str) -> str:
    return "int64" if extension.rpartition(".")[2] in NUMBERS else "bytes"
