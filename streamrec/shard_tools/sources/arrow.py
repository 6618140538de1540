"""Tables of Parquet and Arrow, whose columns become features without an object a value."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np

from streamrec.config.extras import install
from streamrec.errors import ConfigError, DataError, StoreError, WrongFeatureType
from streamrec.shard_tools.sources.source import (
    Block,
    Divisible,
    files_of,
    leave_out,
    part_of,
    selected,
    table_identity,
)
from streamrec.shard_tools.sources.table_columns import DTYPES, encode_table
from streamrec.values.columns import BytesColumn, Ragged, offsets_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from streamrec.plan.shard_names import Task
    from streamrec.shard_tools.sources.source import ReadsIn, Refuse
    from streamrec.stores.stored_files import StoredFile

__all__ = ["Arrow", "open_arrow"]

SUFFIXES = (".parquet", ".arrow", ".feather", ".pq")
LENGTHS = "/row_lengths"
"""The end of the name of the feature with the lengths of a list's inner lists."""
ROWS = 1024
"""Rows of one piece: of pictures of 100 KB, 100 MB."""
FOOT = 64 << 10
"""Bytes that are requested at the ends of a file, for what it says of itself."""


class _Rows(NamedTuple):
    path: StoredFile
    first: int
    batch: Any


@dataclass(frozen=True)
class Arrow(Divisible):
    """Files of Parquet or Arrow (Feather). Structs are named ``outer/inner``."""

    reads_in: ClassVar[ReadsIn] = "threads"
    unit: ClassVar[str] = "rows"
    labels: ClassVar[None] = None
    features: dict[str, str]
    key: str | None
    total: int | None
    groups: Mapping[StoredFile, range] = field(default_factory=dict)
    """The row groups of Parquet to read, where they are not all of a file."""

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

    def pieces(self) -> Iterator[_Rows]:
        """Yield rows of each file; Arrow's own threads decode them."""
        for file in self.files:
            for first, batch in _batches(file, self.groups.get(file)):
                for at in range(0, batch.num_rows, ROWS):
                    yield _Rows(file, first + at, batch.slice(at, ROWS))

    def read(self, piece: _Rows, refuse: Refuse) -> Block:
        """Convert columns, without the rows that are refused."""
        batch = piece.batch
        rows = np.arange(batch.num_rows)
        while True:
            try:
                records, keys = self._encoded(batch)
                return Block(records, piece.batch.num_rows, keys)
            except WrongFeatureType as error:
                row = error.record
                if row is None:
                    error.url = str(piece.path)
                    raise
                refuse(
                    DataError(
                        f"row {piece.first + int(rows[row])}, column {error.feature!r}: "
                        f"{error.message}",
                        url=str(piece.path),
                    )
                )
                kept = np.delete(np.arange(len(rows)), row)
                batch, rows = batch.take(_module("pyarrow").array(kept)), rows[kept]

    def _encoded(self, batch: Any) -> Any:
        arrays = dict(_flat(batch.schema.names, batch.columns))
        columns, missing = {}, {}
        for name, dtype in self.features.items():
            array: Any = arrays.get(name, arrays.get(name.removesuffix(LENGTHS)))
            if array.null_count:
                missing[name] = array.is_null().to_numpy(zero_copy_only=False)
            if name in arrays:
                columns[name] = _column(array, dtype, name)
            else:
                columns[name] = Ragged(_lengths(array.flatten()), _splits(array))
        return encode_table(columns, missing, self.key)


def open_arrow(
    place: str,
    *,
    features: Mapping[str, str | None] | None = None,
    key: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Arrow:
    """Open tables; see :class:`Arrow`.

    Raises:
        ConfigError: There are none, they have other columns, or pyarrow is not installed.
    """
    files = files_of(place, SUFFIXES, storage_options)
    schemas = [_schema(file) for file in files]
    for file, schema in zip(files, schemas, strict=True):
        if not schema.equals(schemas[0]):
            raise ConfigError(
                f"{file}: its columns or their types are not those of {files[0]}; write them apart"
            )
    known = dict(_types(schemas[0], ""))
    usable = {name: dtype for name, dtype in known.items() if dtype is not None}
    for name, dtype in known.items():
        if dtype is None and (features is None or name in features):
            raise ConfigError(
                f"{files[0]}: column {name!r} has a type that no feature has; {leave_out(usable)}"
            )
    wanted = selected(usable, features, str(files[0]), key)
    for name, dtype in wanted.items():
        if dtype not in (usable[name], "float32") or (dtype, usable[name]) == ("float32", "bytes"):
            raise ConfigError(f"--features: column {name!r} is {usable[name]}, not {dtype}")
    return Arrow(files, wanted, key, _count(files))


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise ConfigError(f"Parquet and Arrow are read by pyarrow; {install('arrow')}") from None


def _begin(file: StoredFile) -> bytes:
    with file.open(FOOT) as opened:
        return opened.read(6)


def _is_parquet(file: StoredFile) -> bool:
    return _begin(file).startswith(b"PAR1")


def _opened(file: StoredFile, *blocks: int) -> Any:
    """Open a file for Arrow."""
    pyarrow = _module("pyarrow")
    if file.is_local:
        return pyarrow.memory_map(file.path)
    return pyarrow.PythonFile(file.open(*blocks), "r")


def _ipc(file: StoredFile) -> Any:
    """Return a reader of a file of Arrow, in the form of a file or of a stream."""
    pyarrow = _module("pyarrow")
    is_file = _begin(file) == b"ARROW1"
    source = _opened(file)
    return pyarrow.ipc.open_file(source) if is_file else pyarrow.ipc.open_stream(source)


def _guarded(file: StoredFile, error: Exception) -> DataError:
    return DataError(f"Arrow cannot read it: {error}; write the file anew", url=str(file))


def _schema(file: StoredFile) -> Any:
    pyarrow = _module("pyarrow")
    try:
        if _is_parquet(file):
            return _module("pyarrow.parquet").read_schema(_opened(file, FOOT))
        return _ipc(file).schema
    except pyarrow.ArrowInvalid as error:
        raise _guarded(file, error) from None


def _count(files: list[StoredFile]) -> int | None:
    if not all(map(_is_parquet, files)):
        return None
    return sum(int(_metadata(file).num_rows) for file in files)


def _metadata(file: StoredFile) -> Any:
    """Return what a file of Parquet says of itself."""
    return _module("pyarrow.parquet").read_metadata(_opened(file, FOOT))


def _row_groups(file: StoredFile) -> int:
    return int(_metadata(file).num_row_groups)


def _batches(file: StoredFile, groups: range | None) -> Iterator[tuple[int, Any]]:
    """Yield batches of a file, or of some of its row groups, each with its first row's number."""
    pyarrow = _module("pyarrow")
    try:
        if _is_parquet(file):
            parquet = _module("pyarrow.parquet").ParquetFile
            with parquet(_opened(file), pre_buffer=not file.is_local) as opened:
                own = groups or range(opened.num_row_groups)
                rows = sum(opened.metadata.row_group(n).num_rows for n in range(own.start))
                yield from _numbered(opened.iter_batches(ROWS, list(own)), rows)
            return
        reader = _ipc(file)
        count = getattr(reader, "num_record_batches", None)
        yield from _numbered(reader if count is None else map(reader.get_batch, range(count)))
    except StoreError:
        raise
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise _guarded(file, error) from None


def _numbered(batches: Iterable[Any], first: int = 0) -> Iterator[tuple[int, Any]]:
    for batch in batches:
        yield first, batch
        first += batch.num_rows


def _types(fields: Any, prefix: str) -> Iterator[tuple[str, str | None]]:
    """Yield the type of each column that is no struct, by name; ``None``: no feature has it."""
    types = _module("pyarrow").types
    for column in fields:
        name = prefix + column.name
        if types.is_struct(column.type):
            yield from _types(list(column.type), f"{name}/")
        else:
            dtype = _type_of(column.type)
            yield name, dtype
            if dtype is not None and _is_list(column.type) and _is_list(column.type.value_type):
                yield name + LENGTHS, "int64"


def _type_of(kind: Any) -> str | None:
    types = _module("pyarrow").types
    if types.is_dictionary(kind) or _is_list(kind):
        inner = kind.value_type
        is_deep = _is_list(inner) and _is_list(inner.value_type)
        return None if is_deep or types.is_struct(inner) else _type_of(inner)
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_temporal(kind):
        return None if types.is_interval(kind) else "int64"
    if types.is_floating(kind) or types.is_decimal(kind):
        return "float32"
    text = types.is_string(kind) or types.is_large_string(kind)
    return "bytes" if text or types.is_binary(kind) or _is_other_binary(kind) else None


def _is_list(kind: Any) -> bool:
    types = _module("pyarrow").types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _is_other_binary(kind: Any) -> bool:
    types = _module("pyarrow").types
    return bool(types.is_large_binary(kind) or types.is_fixed_size_binary(kind))


def _flat(names: list[str], arrays: Any) -> Iterator[tuple[str, Any]]:
    types = _module("pyarrow").types
    for name, array in zip(names, arrays, strict=True):
        if types.is_struct(array.type):
            inner = [f"{name}/{column.name}" for column in array.type]
            yield from _flat(inner, array.flatten())  # its own nulls become theirs
        else:
            yield name, array


def _column(array: Any, dtype: str, name: str) -> Any:
    """Return an array of Arrow as a column, with any value where there is none."""
    pyarrow = _module("pyarrow")
    if pyarrow.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if _is_list(array.type):
        return _ragged(array, dtype, name)
    if dtype == "bytes":
        return _bytes_column(array.cast(pyarrow.large_binary()))
    if pyarrow.types.is_temporal(array.type):
        bits = array.type.bit_width
        array = array.cast(pyarrow.int32() if bits == 32 else pyarrow.int64())
    if pyarrow.types.is_decimal(array.type):
        array = array.cast(pyarrow.float64())
    filled = array.fill_null(False if pyarrow.types.is_boolean(array.type) else 0)
    numbers = filled.to_numpy(zero_copy_only=False)
    return numbers if dtype == "int64" else _narrowed(numbers, name)


def _narrowed(numbers: Any, name: str) -> Any:
    with np.errstate(over="ignore"):
        narrow = numbers.astype(DTYPES["float32"])
    lost = np.flatnonzero(np.isinf(narrow) & np.isfinite(numbers.astype(np.float64)))
    if len(lost):
        raise WrongFeatureType(
            f"{numbers[lost[0]]} is too large for float32; divide the column, or leave it out",
            feature=name,
            record=int(lost[0]),
        )
    return narrow


def _bytes_column(array: Any) -> BytesColumn:
    _, offsets, data = array.buffers()
    if not len(array):
        return BytesColumn.of([])
    bounds = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    octets = np.frombuffer(data or b"", np.uint8)
    return BytesColumn(octets, bounds)


def _lengths(array: Any) -> Any:
    lengths = _module("pyarrow.compute").list_value_length(array).fill_null(0)
    return lengths.to_numpy(zero_copy_only=False).astype(np.int64)


def _splits(array: Any) -> Any:
    return offsets_of(_lengths(array))


def _ragged(array: Any, dtype: str, name: str) -> Ragged:
    """Return lists, the values of nested ones flat."""
    splits = _splits(array)
    values = array.flatten()  # without what stands behind nulls
    if values.null_count:
        null = values.is_null().to_numpy(zero_copy_only=False)
        row = int(np.searchsorted(splits, np.flatnonzero(null)[0], "right")) - 1
        raise WrongFeatureType(
            "a null stands in the list; remove it there", feature=name, record=row
        )
    try:
        return Ragged(_column(values, dtype, name), splits)
    except WrongFeatureType as error:
        inner = error.record or 0
        error.record = int(np.searchsorted(splits, inner, "right")) - 1
        raise
