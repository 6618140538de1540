"""Tables: files of rows, whose values become features.

And files of lines, cut into pieces of some MB that begin with a line.
"""

from __future__ import annotations

import gzip
import zlib
from abc import ABC, abstractmethod
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, ClassVar, Literal, TypedDict

from streamrec.errors import ConfigError, DataError
from streamrec.sources.source import PIECE_BYTES, Block, Divisible, Option, table_identity

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from streamrec.sources.source import Refuse
    from streamrec.sources.table_columns import Row, TableRows
    from streamrec.sources.table_values import RowError
    from streamrec.stores.stored_files import StoredFile


MOST_BYTES = 64 << 20
"""The longest row that is waited for."""
_MARK = b"\xef\xbb\xbf"
"""The byte order mark that some editors put before UTF-8."""
_MEND = {
    "row": "give a file of lines",
    "element": "give a file of lines, or an array of objects",
    "document": "put a blank line between documents",
}


@dataclass(frozen=True)
class TextPiece:
    """Whole lines of a file.

    Args:
        path: The file, for messages.
        line: The number of the first line, from 1.
        data: The lines.
    """

    path: str
    line: int
    data: bytes

    @property
    def amount(self) -> int:
        """The bytes of the lines, decompressed."""
        return len(self.data)


def total_bytes(files: Sequence[StoredFile]) -> int | None:
    """Return the bytes of all files, which of those named as compressed are not known."""
    names = (file.name.lower() for file in files)
    return None if any(n.endswith((".gz", ".tgz")) for n in names) else sum(f.size for f in files)


_GZIP = b"\x1f\x8b"


@contextmanager
def open_plain(file: StoredFile) -> Iterator[IO[bytes] | gzip.GzipFile]:
    """Open a file to read it; one that is compressed by gzip is decompressed."""
    with file.open() as stored:
        # The bytes are more reliable than names: some servers decompress on the way.
        if stored.peek(len(_GZIP)).startswith(_GZIP):
            with gzip.open(stored) as plain:
                yield plain
        else:
            yield stored


def last_end(data: bytes) -> int:
    """Return the place after the last line feed; 0 where there is none."""
    return data.rfind(b"\n") + 1


def text_pieces(
    file: StoredFile,
    *,
    end_of: Callable[[bytes], int] = last_end,
    what: Literal["row", "element", "document"] = "row",
    size: int | None = None,
) -> Iterator[TextPiece]:
    """Yield a file's pieces.

    Args:
        file: The file.
        end_of: Returns the place after the last end of a row; 0 where none ends.
        what: The thing that ends there, for messages.
        size: The bytes of a piece, about.

    Raises:
        DataError: A row does not end, or the file cannot be decompressed.
    """
    # A piece ends with the last row in what was read; its rest begins the next.
    rest, line, is_first = b"", 1, True
    looked = 0
    with open_plain(file) as lines:
        while data := _read(lines, size or PIECE_BYTES, file):
            rest += data.removeprefix(_MARK) if is_first else data
            is_first = False
            if len(rest) < min(2 * looked, MOST_BYTES):
                continue  # looking again at each read would take quadratic time
            end = end_of(rest)
            looked = 0 if end else len(rest)
            if end:
                yield TextPiece(str(file), line, rest[:end])
                line += rest.count(b"\n", 0, end)
                rest = rest[end:]
            elif len(rest) > MOST_BYTES:
                raise DataError(
                    f"the {what} that begins in line {line} does not end within {MOST_BYTES >> 20} "
                    f"MiB; {_MEND[what]}",
                    url=str(file),
                )
    # The last row may have no line feed.
    if rest:
        yield TextPiece(str(file), line, rest)


def _read(lines: IO[bytes] | gzip.GzipFile, size: int, file: StoredFile) -> bytes:
    try:
        return lines.read(size)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(
            f"it cannot be decompressed: {error}; compress it anew", url=str(file)
        ) from None


NOTHING = "null"
"""The type of a column that has no value in any row."""
_TYPES = frozenset({"bytes", "float32", "int64"})


def parse_types(texts: Sequence[str]) -> dict[str, str]:
    """Read texts of the form ``name=type``.

    Raises:
        ConfigError: One has another form, or there is no such type.
    """
    types: dict[str, str] = {}
    for text in texts:
        name, _, dtype = text.rpartition("=")  # a column's name may hold the sign
        if not name or dtype not in _TYPES:
            raise ConfigError(
                f"--type: {text!r} must be NAME=TYPE, of the types bytes, float32 and int64, as in "
                "id=int64"
            )
        types[name] = dtype
    return types


def parse_features(text: str) -> dict[str, str | None]:
    """Read ``name,name=type``: the features to write, and types of some.

    Raises:
        ConfigError: It has another form, or there is no such type.
    """
    features: dict[str, str | None] = {}
    for part in text.split(","):
        name, has_type, dtype = (piece.strip() for piece in part.partition("="))
        if not name or (has_type and dtype not in _TYPES):
            raise ConfigError(
                f"--features: {part.strip()!r} must be NAME or NAME=TYPE, of the types bytes, "
                "float32 and int64, as in age=int64,name"
            )
        features[name] = dtype or None
    return features


FEATURES = Option(
    name="features",
    metavar="NAME[=TYPE],...",
    parse=parse_features,
    help="Write only these features, with these types.",
)
KEY = Option(name="key", metavar="FEATURE", help="Records: the feature that determines the split.")
OPTIONS = (
    FEATURES,
    Option(
        name="types",
        flag="type",
        metavar="NAME=TYPE",
        is_repeatable=True,
        parse=parse_types,
        help="Tables: a column's type, bytes, float32 or int64; other columns stay. Repeatable.",
    ),
    Option(
        name="drop",
        metavar="NAME",
        is_repeatable=True,
        help="Tables: leave a column out. Repeatable.",
    ),
    KEY,
)
"""The options of all tables."""


class TableOptions(TypedDict, total=False):
    """The arguments of all tables' openings; see :class:`FeatureChoice`."""

    features: Mapping[str, str | None] | None
    types: Mapping[str, str]
    drop: Collection[str]
    key: str | None


@dataclass(frozen=True)
class FeatureChoice:
    """The features of a table to write, and their types, as far as the user named them."""

    features: Mapping[str, str | None] | None = None
    """Names, and types where they are not to be those found; ``None`` means all."""
    types: Mapping[str, str] = field(default_factory=dict)
    """More types, which choose nothing."""
    drop: Collection[str] = ()
    """Names of what is left out."""
    key: str | None = None
    """The feature that determines the split."""

    @property
    def given(self) -> dict[str, str]:
        """The types that the user named, by the features' names."""
        chosen = (self.features or {}).items()
        return {name: dtype for name, dtype in chosen if dtype is not None} | dict(self.types)

    def takes(self, name: str) -> bool:
        """Return whether a feature is written."""
        return (self.features is None or name in self.features) and name not in self.drop

    def _refuse_unused(self) -> None:
        """Refuse names without an effect.

        Raises:
            ConfigError: A type is given for what is not written, or something is left out twice.
        """
        for name in self.types:
            if not self.takes(name):
                raise ConfigError(
                    f"--type has no effect for {name!r}, which is not written; leave that out"
                )
        for name in self.drop:
            if self.features is not None and name not in self.features:
                raise ConfigError(
                    f"--drop has no effect for {name!r}, which is not in --features; leave that out"
                )

    def choose(self, types: Mapping[str, str], what: str) -> dict[str, str]:
        """Return the types of the features that are written, sorted by name.

        Args:
            types: The types of all features of the source.
            what: The source, for errors.

        Raises:
            ConfigError: There is no such feature, or no feature at all.
        """
        if not types:
            raise ConfigError(f"{what} has no columns; correct SOURCE")
        options = ("features", self.features or ()), ("type", self.types), ("drop", self.drop)
        for option, names in options:
            for name in names:
                if name not in types:
                    raise ConfigError(
                        f"--{option}: {what} has no {name!r}; choose among "
                        f"{', '.join(sorted(types))}"
                    )
        self._refuse_unused()
        written = sorted(filter(self.takes, types))
        if not written:
            raise ConfigError(f"--drop: {what} has no columns left; drop fewer columns")
        if self.key is not None and self.key not in written:
            raise ConfigError(
                f"--key: {self.key!r} is not a feature; choose among {', '.join(written)}"
            )
        return {name: self.given.get(name, types[name]) for name in written}

    def choose_typed(
        self, types: Mapping[str, str], unfit: Mapping[str, str], what: str
    ) -> dict[str, str]:
        """Return the types of the features of typed columns that are written, sorted by name.

        Args:
            types: The types of the columns that features can have.
            unfit: By the name of each other column, what is wrong with it.
            what: The source, for errors.

        Raises:
            ConfigError: As :meth:`choose`; or another column is written, or a column of texts is
                to become numbers, which no table of typed columns reads.
        """
        for name, fault in unfit.items():
            if self.takes(name):
                raise ConfigError(f"{what}: column {name!r} {fault}; {leave_out(types)}")
        # A column that is dropped may have any type, but it must exist.
        every = {**types, **{name: "" for name in unfit if name in self.drop}}
        chosen = self.choose(every, what)
        for name, dtype in chosen.items():
            if every[name] == "bytes" and dtype != "bytes":
                raise ConfigError(f"--type: column {name!r} is {every[name]}, not {dtype}")
        return chosen


def leave_out(others: Iterable[str]) -> str:
    """Return what to do about a column that cannot be written, beside others that can."""
    names = ",".join(others)
    return f"leave it out with --features {names}, or convert it" if names else "convert it"


@dataclass(frozen=True, kw_only=True)
class FeatureTable:
    """Files of rows."""

    files: list[StoredFile]
    features: dict[str, str]
    key: str | None
    given: frozenset[str] = frozenset()
    """The features whose type the user named."""

    @property
    def identity(self) -> Any:
        """The name and version of the rows, and of their splits."""
        return table_identity(self.files, self.features, self.key)


@dataclass(frozen=True, kw_only=True)
class RowTable(FeatureTable, Divisible, ABC):
    """Files of rows whose values are Python's own until a piece is converted."""

    unit: ClassVar[str] = "bytes"
    labels: ClassVar[None] = None
    place: ClassVar[str] = "{}"
    """The place of a row in messages, with the place that :meth:`rows` yields."""
    lists: frozenset[str] = frozenset()
    """The features that are lists."""
    parts: frozenset[str] = frozenset()
    """The features with numbers that are not whole in the first rows."""

    @property
    def total(self) -> int | None:
        """The bytes of all files, which of compressed ones are not known."""
        return total_bytes(self.files)

    @abstractmethod
    def rows(self, piece: Any) -> Iterator[tuple[Any, Row | RowError]]:
        """Yield each row of a piece with its place: its values, or why it cannot be read."""

    def default_keys(self, places: list[Any]) -> Sequence[bytes] | None:  # noqa: ARG002 - for others
        """Return the keys of rows where the user names no key; ``None``: the records are theirs."""
        return None

    def empty_rows(self) -> TableRows:
        """Return the rows of a piece, which has none yet."""
        from streamrec.sources.table_columns import TableRows

        return TableRows(self.features, self.lists, given=self.given, parts=self.parts)

    def read(self, piece: Any, refuse: Refuse) -> Block:
        """Convert the rows of a piece."""
        from streamrec.sources.table_columns import encode_table

        table = self.empty_rows()
        for place, row in self.rows(piece):
            table.add(place, row)
        columns, missing, places = table.columns(
            lambda place, error: refuse(
                DataError(f"{self.place.format(place)}: {error}", url=piece.path)
            )
        )
        records, keys = encode_table(columns, missing, self.key)
        return Block(records, piece.amount, self.default_keys(places) if keys is None else keys)
