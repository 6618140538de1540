"""Tars of WebDataset: the extensions of a sample's files become features."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, ClassVar

from streamrec.errors import ConfigError
from streamrec.sources.json_lines import json_object
from streamrec.sources.kind import SourceKind
from streamrec.sources.memory import DEFAULT_MEMORY
from streamrec.sources.source import files_of
from streamrec.sources.table import OPTIONS, FeatureChoice, RowTable, TableOptions
from streamrec.sources.table_values import RowError, SampledType, widen, with_parts
from streamrec.sources.tar_samples import tar_pieces

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from typing import Unpack

    from streamrec.sources.memory import Memory
    from streamrec.sources.source import ReadsIn
    from streamrec.sources.tar_samples import TarPiece, TarSample
    from streamrec.stores.stored_files import StoredFile

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
        if KEY in sample.files:
            raise RowError(f"a file has the extension {KEY}, which is the sample's name; rename it")
        values: dict[str, Any] = {KEY: _encode(sample.key)}
        for name in self.features.keys() & sample.files.keys():
            data = contents[sample.files[name]]
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
            found = json_object(contents[sample.files[extension]], keeps_numbers=True)
        except RowError as error:
            raise RowError(f"{extension!r}: {error}") from None
        fields |= {f"{extension}/{name}": value for name, value in found.items()}
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
    types, fields, lists = _sample(
        _pieces(files, memory), _parents([*(choice.features or ()), *choice.given])
    )
    if len(types) == 1:
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
    pieces: Iterator[TarPiece], parents: set[str]
) -> tuple[dict[str, str], dict[str, SampledType], frozenset[str]]:
    """Return the types of the first samples' files, those of values in JSON, and the lists."""
    types = {KEY: "bytes"}
    values: dict[str, SampledType] = {}
    lists: set[str] = set()
    for sample, fields in islice(_first(pieces, parents), SAMPLE):
        types |= {extension: _type_of(extension) for extension in sample.files}
        widen(values, lists, fields)
    return types, values, frozenset(lists)


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
