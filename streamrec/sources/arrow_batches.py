"""Batches of Parquet and Arrow (Feather): their schemas, their rows, and their records."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from streamrec.errors import DataError, StreamrecError
from streamrec.sources.arrow_fields import LENGTHS, column_of, lengths_of, module, named_arrays
from streamrec.sources.arrow_ipc import IpcReader
from streamrec.sources.parquet import ParquetReader
from streamrec.sources.table_columns import encode_table

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from streamrec.sources.memory import Memory
    from streamrec.stores.stored_files import StoredFile

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
