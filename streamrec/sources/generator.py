"""Functions of the user that yield records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from streamrec.errors import DataError, FunctionFailed
from streamrec.sources.source import Block, Option, SourceKind
from streamrec.sources.table import KEY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streamrec.formats.examples.feature_types import FeatureTypes
    from streamrec.sources.source import ReadsIn, Refuse

PIECE = 256
"""Records of one piece, so that tasks take turns in them."""


@dataclass(frozen=True)
class Generator:
    """A function that yields records: bytes, or mappings of features."""

    reads_in: ClassVar[ReadsIn] = "itself"
    unit: ClassVar[str] = "records"
    labels: ClassVar[None] = None
    total: ClassVar[None] = None
    name: str
    function: Callable[[], Iterable[Any]]
    version: str | None
    key: str | None
    features: FeatureTypes
    """The types of the records read so far, of which later ones have the same."""

    @property
    def identity(self) -> Any:
        """The name and version of the records; without a version they may be others each time."""
        if self.version is None:
            return None
        return {"function": self.name, "version": self.version, "key": self.key}

    def pieces(self) -> Iterator[list[tuple[int, Any]]]:
        """Yield the records in lists, each with its number."""
        piece: list[tuple[int, Any]] = []
        number = -1
        try:
            for number, record in enumerate(self.function()):
                piece.append((number, record))
                if len(piece) == PIECE:
                    yield piece
                    piece = []
        # The function is the user's, and may raise anything.
        except Exception as error:
            raise FunctionFailed(
                f"{self.name} raised {type(error).__name__} for record {number + 1}: {error}; mend "
                "the function",
                setting="SOURCE",
                record=number + 1,
            ) from error
        yield piece

    def read(self, piece: list[tuple[int, Any]], refuse: Refuse) -> Block:
        """Serialize records."""
        from streamrec.values.columns import BytesColumn

        records, keys = [], []
        for number, record in piece:
            try:
                key = self._key(record)
                records.append(self._encode(record, number))
                keys.append(key)
            except DataError as error:
                # The encoder knows neither the number nor the function.
                error.record, error.url = number, self.name
                refuse(error)
        return Block(BytesColumn.of(records), len(piece), None if self.key is None else keys)

    def _encode(self, record: Any, number: int) -> bytes:
        if isinstance(record, Mapping):
            return self.features.encode(record, number)
        if isinstance(record, bytes):
            return record
        raise DataError(
            f"the record is of type {type(record).__name__}; yield bytes, or a dict of features"
        )

    def _key(self, record: Any) -> bytes:
        if self.key is None:
            return b""
        if not isinstance(record, Mapping | bytes):
            return b""  # is refused
        value = record.get(self.key) if isinstance(record, Mapping) else None
        if value is None:
            raise DataError(f"the record has no {self.key!r}; choose another feature with --key")
        if isinstance(value, bytes):
            return value
        return str(value).encode()


def open_generator(
    place: str,
    *,
    function: Callable[[], Iterable[Any]],
    source_version: str | None = None,
    key: str | None = None,
) -> Generator:
    """Take a function of the user as a source; see :class:`Generator`."""
    from streamrec.formats.examples.feature_types import FeatureTypes

    return Generator(
        name=place, function=function, version=source_version, key=key, features=FeatureTypes()
    )


KIND = SourceKind(
    "generator",
    open_generator,
    options=(
        KEY,
        Option(
            name="source_version",
            metavar="TEXT",
            help="Functions: a version; change it when the records change.",
        ),
    ),
)
