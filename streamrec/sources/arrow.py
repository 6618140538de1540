"""Tables of Parquet and Arrow, whose columns become features without an object a value."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from shlex import quote
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from streamrec.errors import ConfigError, DataError, StreamrecError, WrongFeatureType
from streamrec.sources.arrow_fields import (
    LENGTHS,
    NOTHING,
    column_of,
    feature_types,
    lengths_of,
    module,
    named_arrays,
)
from streamrec.sources.arrow_ipc import IpcReader
from streamrec.sources.arrow_rows import cut
from streamrec.sources.class_labels import class_labels, joined_labels
from streamrec.sources.memory import DEFAULT_MEMORY, PIECE, PIECE_ROWS, Memory
from streamrec.sources.parquet import ParquetReader
from streamrec.sources.source import (
    Block,
    Divisible,
    FeatureChoice,
    files_of,
    leave_out,
    part_of,
    table_identity,
)
from streamrec.sources.table_columns import encode_table
from streamrec.values.columns import BytesColumn

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from streamrec.plan.order.shard_names import Task
    from streamrec.sources.source import ReadsIn, Refuse
    from streamrec.stores.stored_files import StoredFile

SUFFIXES = (".parquet", ".arrow", ".feather", ".pq")
FOOT = 64 << 10
"""Bytes that are requested at the ends of a file, for what it says of itself."""


class _RowBatch(NamedTuple):
    path: StoredFile
    first: int
    batch: Any
    nbytes: int
    """Bytes of its plain values."""


@dataclass(frozen=True)
class Arrow(Divisible):
    """Files of Parquet or Arrow (Feather). Structs are named ``outer/inner``."""

    reads_in: ClassVar[ReadsIn] = "threads"
    unit: ClassVar[str] = "rows"
    features: dict[str, str]
    key: str | None
    total: int | None
    given: frozenset[str] = frozenset()
    """The features whose type the user named."""
    groups: Mapping[StoredFile, range] = field(default_factory=dict)
    """The row groups of Parquet to read, where they are not all of a file."""
    labels: dict[str, dict[str, int]] | None = None
    memory: Memory = DEFAULT_MEMORY

    @property
    def identity(self) -> Any:
        """The name and version of the rows."""
        return table_identity(self.files, self.features, self.key)

    def part(self, task: Task) -> Self | None:
        """Return a task's files, or row groups of Parquet, or ``None`` where there are fewer."""
        part = super().part(task)
        if part is not None or self.total is None:  # not all is Parquet
            return part
        own = part_of([(f, n) for f in self.files for n in range(_row_groups(f))], task)
        if own is None:
            return None
        groups: dict[StoredFile, range] = {}
        for file, number in own:
            groups[file] = range(groups.get(file, range(number, number)).start, number + 1)
        return replace(self, files=list(groups), groups=groups)

    def pieces(self) -> Iterator[_RowBatch]:
        """Yield rows of each file; Arrow's own threads decode them."""
        for file in self.files:
            for first, batch in self._batches(file):
                for begin, stop, size in cut(batch, PIECE_ROWS, PIECE):
                    if stop == begin + 1:
                        self.memory.check(size, self.memory.record, f"row {first + begin}", file)
                    yield _RowBatch(file, first + begin, batch.slice(begin, stop - begin), size)

    def read(self, piece: _RowBatch, refuse: Refuse) -> Block:
        """Convert columns, without the rows that are refused."""
        parts = list(self._good(piece, refuse))
        if len(parts) == 1:
            return Block(parts[0][0], piece.batch.num_rows, parts[0][1])
        records = BytesColumn.of([one for part, _ in parts for one in part.to_list()])
        keys = None if self.key is None else [key for _, some in parts for key in some]
        return Block(records, piece.batch.num_rows, keys)

    def _batches(self, file: StoredFile) -> Iterator[tuple[int, Any]]:
        """Yield batches of a file, each with its first row's number."""
        with _translated(file):
            if _is_parquet(file):
                reader = ParquetReader(file, _opened, self.memory)
                yield from reader.batches(self.groups.get(file))
            else:
                yield from _numbered(IpcReader(file, _opened, self.memory).batches())
        file.check()  # a mapped file may change in place

    def _good(self, piece: _RowBatch, refuse: Refuse) -> Iterator[Any]:
        """Yield the records and keys of a batch, in parts between the rows that are refused.

        Arrow cuts slices of any column, while it cannot take single rows out of some.
        """
        waiting = [(piece.first, piece.batch)]
        while waiting:
            first, batch = waiting.pop()
            try:
                yield self._encoded(batch)
            except WrongFeatureType as error:
                row = error.record
                if row is None:
                    error.url = str(piece.path)
                    raise
                what = f"row {first + row}, column {error.feature!r}: {error.message}"
                refuse(DataError(what, url=str(piece.path)))
                after = first + row + 1, batch.slice(row + 1)
                waiting += [
                    part for part in (after, (first, batch.slice(0, row))) if part[1].num_rows
                ]

    def _encoded(self, batch: Any) -> Any:
        arrays = dict(named_arrays(batch.schema.names, batch.columns))
        columns, missing = {}, {}
        for name, dtype in self.features.items():
            if name in arrays:
                given = name in self.given
                columns[name], nulls = column_of(arrays[name], dtype, name, is_given=given)
            else:
                array = arrays[name.removesuffix(LENGTHS)]
                columns[name] = lengths_of(array)
                nulls = array.is_null().to_numpy(zero_copy_only=False)
            if nulls is not None and nulls.any():
                missing[name] = nulls
        return encode_table(columns, missing, self.key)


def open_arrow(
    place: str,
    *,
    features: Mapping[str, str | None] | None = None,
    types: Mapping[str, str] | None = None,
    drop: Collection[str] = (),
    key: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    memory: Memory = DEFAULT_MEMORY,
) -> Arrow:
    """Open tables; see :class:`Arrow`.

    Raises:
        ConfigError: There are no files, they have other columns, or pyarrow is not installed.
    """
    files = files_of(place, SUFFIXES, storage_options)
    choice = FeatureChoice(features, types or {}, drop)
    schemas = {file: _schema(file) for file in files}
    known = _joined({file: _types(file, schemas[file], choice) for file in files}, choice)
    usable = {name: dtype or "" for name, dtype in known.items() if dtype or name in drop}
    for name, dtype in known.items():
        if dtype is None and choice.takes(name):
            raise ConfigError(
                f"{files[0]}: column {name!r} has a type that no feature has; {leave_out(usable)}"
            )
    wanted = choice.of(usable, str(files[0]), key)
    for name, dtype in wanted.items():
        if usable[name] == "bytes" and dtype != "bytes":
            raise ConfigError(f"--type: column {name!r} is {usable[name]}, not {dtype}")
    given = frozenset(choice.given)
    written = {name: dtype for name, dtype in wanted.items() if dtype != NOTHING}
    if not written or (key is not None and key not in written):
        raise ConfigError(f"{files[0]}: {key or 'every column'} has no value in any row")
    classes = joined_labels(map(class_labels, schemas.values()))
    labels = {name: numbers for name, numbers in classes.items() if name in written}
    return Arrow(files, written, key, _count(files), given, labels=labels or None, memory=memory)


def _types(file: StoredFile, schema: Any, choice: FeatureChoice) -> dict[str, str | None]:
    """Return the types of a file's features by name.

    Raises:
        ConfigError: Two columns make one feature.
    """
    types: dict[str, str | None] = {}
    for name, dtype in feature_types(schema):
        if name in types and choice.takes(name):
            raise ConfigError(
                f"{file}: two columns make the feature {name!r}, and a record has one of a name; "
                f"rename one, or leave both out with --drop {quote(name)}"
            )
        types[name] = dtype
    return types


def _joined(
    files: Mapping[StoredFile, Mapping[str, str | None]], choice: FeatureChoice
) -> dict[str, str | None]:
    """Return the types that take the values of all files, whose columns may be in any order.

    Raises:
        ConfigError: A file has other columns, or one of them with a type that goes with no other.
    """
    first, joined = next(iter(files.items()))
    joined = dict(joined)
    for file, types in files.items():
        for name in types.keys() ^ joined.keys():
            if choice.takes(name):
                has, lacks = (file, first) if name in types else (first, file)
                raise ConfigError(
                    f"{has} has the column {name!r}, and {lacks} does not; write them apart, or "
                    f"leave it out with --drop {quote(name)}"
                )
        for name in types.keys() & joined.keys():
            pair = {types[name], joined[name]} - {NOTHING}
            if len(pair) > 1 and pair != {"int64", "float32"} and choice.takes(name):
                raise ConfigError(
                    f"{file}: column {name!r} is {types[name]}, but in {first} it is "
                    f"{joined[name]}; write them apart, or leave it out with --drop {quote(name)}"
                )
            joined[name] = "float32" if len(pair) > 1 else next(iter(pair), NOTHING)
    return joined


def _begin(file: StoredFile) -> bytes:
    with file.open(FOOT) as opened:
        return opened.read(6)


def _is_parquet(file: StoredFile) -> bool:
    return _begin(file).startswith(b"PAR1")


def _opened(file: StoredFile, *blocks: int) -> Any:
    """Open a file for Arrow."""
    pyarrow = module("pyarrow")
    if file.is_local:
        return pyarrow.memory_map(file.path)
    return pyarrow.PythonFile(file.open(*blocks), "r")


def _ipc(file: StoredFile) -> Any:
    """Return a reader of a file of Arrow, in the form of a file or of a stream."""
    pyarrow = module("pyarrow")
    is_file = _begin(file) == b"ARROW1"
    source = _opened(file)
    return pyarrow.ipc.open_file(source) if is_file else pyarrow.ipc.open_stream(source)


@contextmanager
def _translated(file: StoredFile) -> Iterator[None]:
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


def _schema(file: StoredFile) -> Any:
    with _translated(file):
        if _is_parquet(file):
            return module("pyarrow.parquet").read_schema(_opened(file, FOOT))
        return _ipc(file).schema


def _count(files: list[StoredFile]) -> int | None:
    if not all(map(_is_parquet, files)):
        return None
    return sum(int(_metadata(file).num_rows) for file in files)


def _metadata(file: StoredFile) -> Any:
    """Return what a file of Parquet says of itself."""
    with _translated(file):
        return module("pyarrow.parquet").read_metadata(_opened(file, FOOT))


def _row_groups(file: StoredFile) -> int:
    return int(_metadata(file).num_row_groups)


def _numbered(batches: Iterable[Any], first: int = 0) -> Iterator[tuple[int, Any]]:
    for batch in batches:
        yield first, batch
        first += batch.num_rows
