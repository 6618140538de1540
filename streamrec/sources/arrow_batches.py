"""Batches of Parquet and Arrow (Feather): their schemas, their rows, and their records."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from streamrec.errors import DataError, StreamrecError
from streamrec.sources.arrow_fields import LENGTHS, column_of, lengths_of, module, named_arrays
from streamrec.sources.arrow_ipc import IpcReader
from streamrec.sources.parquet import ParquetReader
from streamrec.sources.table_columns import encode_table
from streamrec.values.columns import offsets_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    import numpy.typing as npt

    from streamrec.sources.source import Memory
    from streamrec.stores.stored_files import StoredFile

    Sizes = npt.NDArray[np.int64]


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
        return _taken(row_sizes(array.dictionary), array.indices)
    if types.is_run_end_encoded(kind):
        return _of_runs(array)
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


def _taken(sizes: Sizes, indices: Any) -> Sizes:
    at = indices.fill_null(0).to_numpy(zero_copy_only=False)
    return sizes[at] if len(sizes) else np.zeros(len(at), np.int64)


def _of_runs(array: Any) -> Sizes:
    ends = array.run_ends.to_numpy(zero_copy_only=False)
    at = np.searchsorted(ends, np.arange(len(array)) + array.offset, "right")
    return cast("Sizes", row_sizes(array.values)[at])


def _of_lists(array: Any) -> Sizes:
    begins = array.offsets.to_numpy(zero_copy_only=False)
    views = getattr(array, "sizes", None)
    if views is None:
        begins, stops = begins[:-1], begins[1:]
    else:
        stops = begins + views.to_numpy(zero_copy_only=False)
    if not len(begins):
        return np.zeros(0, np.int64)
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
            yield from _numbered(IpcReader(file, _open, memory).batches())
    file.check()  # a mapped file may change in place


def encode_batch(
    batch: Any, features: Mapping[str, str], given: Collection[str], key: str | None
) -> Any:
    """Return the records and keys of a batch; see :func:`encode_table`."""
    arrays = dict(named_arrays(batch.schema.names, batch.columns))
    columns, missing = {}, {}
    for name, dtype in features.items():
        if name in arrays:
            columns[name], nulls = column_of(arrays[name], dtype, name, is_given=name in given)
        else:
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


def _numbered(batches: Iterable[Any], first: int = 0) -> Iterator[tuple[int, Any]]:
    for batch in batches:
        yield first, batch
        first += batch.num_rows
