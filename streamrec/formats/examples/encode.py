"""Encoding of whole columns as serialized Examples and SequenceExamples.

A column is described to the kernel, which writes the values of each row after their heads.
Source: protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from streamrec import kernel
from streamrec.errors import WrongFeatureType
from streamrec.formats.examples.coerce import (
    FIRST,
    MISSING,
    SECOND,
    as_array,
    as_feature,
    as_float32,
    as_int64,
    frame_bytes,
    is_floats,
    is_integers,
    missing_row,
)
from streamrec.formats.examples.example import encode_steps, name_octets, too_large
from streamrec.kernel.contract import LARGEST_MESSAGE, FieldColumn
from streamrec.values.columns import BytesColumn, Ragged, offsets_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy.typing as npt

    from streamrec.values.columns import Indices


_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = b"\x0a", b"\x12", b"\x1a"
"""Tags of the lists in a ``Feature``."""

Note: TypeAlias = Callable[[str, str | None, int], None]
"""A function that takes a feature's name, the field of ``Feature`` that is set in a row, if one is,
and the row."""


class _ByteStrings(tuple[bytes, ...]):
    """Byte strings, one a row, which are not copied."""

    __slots__ = ()


def features_of(name: str, column: Any, note: Note) -> FieldColumn:
    """Return each row's ``Feature``, without a head of its own.

    Raises:
        WrongFeatureType: A value has no representation; the error names the feature and the row.
    """
    by_column = _by_column(_uniform(name, column))
    if by_column is None:
        return _column_by_row(name, column, note)
    kind, features = by_column
    # All rows are of one kind, so the first one tells it.
    if features.rows:
        note(name, kind, 0)
    return features


def _uniform(name: str, column: Any) -> Any:
    """Convert a sequence of scalars of one type to an array or to strings.

    Other sequences and columns are returned as they are.
    """
    if isinstance(column, BytesColumn | Ragged):
        return column
    if hasattr(column, "__array__"):
        row = missing_row(column)
        if row is not None:
            raise WrongFeatureType(MISSING, feature=name, record=row)
        column = as_array(column)
        if not column.ndim:
            raise WrongFeatureType(
                "the column is one value without rows; give one value a row", feature=name
            )
        if column.ndim > 1 or column.dtype.kind not in "OSTU":
            return column
        column = column.tolist()
    if isinstance(column, str | bytes | bytearray | memoryview) or not isinstance(column, Sequence):
        raise WrongFeatureType(
            f"the column must be an array, a BytesColumn, a Ragged or a list of one value a row, "
            f"not {type(column).__name__}",
            feature=name,
        )
    return _of_scalars(column)


def _of_scalars(values: Sequence[Any]) -> Any:
    kinds = set(map(type, values))
    try:
        if kinds == {str}:
            return _ByteStrings(map(str.encode, values))
        if kinds == {bytes}:
            return _ByteStrings(values)
        if kinds in ({bool}, {int}):
            return np.array(values, np.int64)
        if kinds == {float}:
            return np.array(values, np.float64)
    except (ValueError, OverflowError):  # Encoding row by row then finds the row for the error.
        pass
    return _of_lists(values) if kinds in ({list}, {tuple}) else values


def _of_lists(rows: Sequence[Sequence[Any]]) -> Any:
    """Convert lists of scalars of one type to ragged rows; return others as they are."""
    # An empty list has no type, so rows with one are not converted.
    inner = _of_scalars(list(chain.from_iterable(rows))) if all(rows) else rows
    if isinstance(inner, _ByteStrings):
        inner = BytesColumn.of(inner)
    if not isinstance(inner, np.ndarray | BytesColumn):
        return rows
    return Ragged(inner, offsets_of(np.fromiter(map(len, rows), np.int64, len(rows))))


def _by_column(column: Any) -> tuple[str | None, FieldColumn] | None:
    """Describe all rows' features at once; return ``None`` where each must be encoded by itself."""
    if isinstance(column, _ByteStrings):
        return "bytes_list", FieldColumn((_BYTES_LIST, FIRST), column, None)
    values, splits = _flat(column)
    if isinstance(values, BytesColumn):
        return _of_strings(values, splits)
    if not isinstance(values, np.ndarray):
        return None
    try:
        # Of an empty list, only the kind is written.
        if is_integers(values.dtype):
            heads = _INT64_LIST, FIRST
            return "int64_list", FieldColumn(heads, as_int64(values), splits, omits_last=True)
        if is_floats(values.dtype):
            heads = _FLOAT_LIST, FIRST
            return "float_list", FieldColumn(heads, as_float32(values), splits, omits_last=True)
    except OverflowError:
        return None
    return None


def _flat(column: Any) -> tuple[Any, Indices]:
    """Return all rows' values in one dimension, and the rows' bounds in them."""
    if isinstance(column, Ragged):
        values, splits = _flat(column.values)
        return values, splits[column.row_splits]
    if isinstance(column, BytesColumn):
        strings = BytesColumn(column.values, column.offsets)
        return strings, np.arange(len(column) + 1) * column.strings_per_row
    if isinstance(column, np.ndarray):
        per_row = int(np.prod(column.shape[1:], dtype=np.int64))
        return column.reshape(-1), np.arange(len(column) + 1) * per_row
    return None, np.zeros(1, np.int64)


def _of_strings(strings: BytesColumn, splits: Indices) -> tuple[str | None, FieldColumn]:
    # One string a row needs no pass of its own for the strings' tags.
    if (np.diff(splits) == 1).all():
        heads = _BYTES_LIST, FIRST
        return "bytes_list", FieldColumn(heads, strings.values, strings.offsets[splits])
    tagged = kernel.MessageEncoder(
        [FieldColumn((FIRST,), strings.values, strings.offsets)]
    ).encode()
    kind = "bytes_list" if splits[-1] > splits[0] else None  # lists without strings have none
    # Each string has its tag by now, so a row's list is the stretch between two bounds.
    bounds = tagged.offsets[splits]
    return kind, FieldColumn((_BYTES_LIST,), tagged.values, bounds, omits_last=True)


def _column_by_row(name: str, column: Iterable[Any], note: Note) -> FieldColumn:
    features = []
    for row, value in enumerate(column):
        try:
            feature = as_feature(value)
        except (TypeError, ValueError, OverflowError) as error:
            message = f"the value cannot be encoded: {error}"
            raise WrongFeatureType(message, feature=name, record=row) from None
        note(name, feature.WhichOneof("kind"), row)
        features.append(feature.SerializeToString())
    return FieldColumn((), tuple(features), None)


BLOCK_BYTES = 1 << 20


def encode_examples(columns: Mapping[str, Any]) -> BytesColumn:
    """Serialize columns as one ``tf.train.Example`` a row, each as ``encode_example`` would.

    Args:
        columns: The columns by the features' names, all with the same number of rows: an array
            ``[rows, ...]``, a ``BytesColumn``, a ``Ragged`` (of one kind of values, which
            are stored flat where it is nested), or a list or other sequence of one value a row. A
            batch is such a mapping.

    Returns:
        One record a row.

    Raises:
        WrongFeatureType: A value has no representation, or a column has another number of rows than
            the first; the error names the feature, and the row as ``record``.
    """
    entries = _entries(columns, lambda name, column: _feature(name, column, no_note))
    return _encoder(entries).encode() if entries else BytesColumn.of([])


def encode_blocks(
    columns: Mapping[str, Any], note: Note, *, framed: bool = False
) -> Iterator[BytesColumn]:
    """Serialize columns as ``encode_examples`` does, in blocks of about a MiB.

    Memory that is used again is ten times as fast as a long column in fresh memory.

    Args:
        columns: The columns, which are checked before this returns.
        note: Given the kinds of each column's values.
        framed: Give TFRecord frames of the records.

    Returns:
        The records of a block at a time, each in memory that is taken when it is asked for. The
        columns' memory must not change before the last block.

    Raises:
        WrongFeatureType: As of ``encode_examples``.
    """
    entries = _entries(columns, lambda name, column: _feature(name, column, note))
    return _encoder(entries).blocks(BLOCK_BYTES, framed=framed) if entries else iter(())


def encode_present(
    columns: Mapping[str, Any], missing: Mapping[str, npt.NDArray[np.bool_]]
) -> BytesColumn:
    """Serialize columns, where some rows lack some features.

    Args:
        columns: At least one column, as ``encode_examples`` takes them, with any value where
            there is none.
        missing: By a feature's name, bool ``[rows]``: the rows that lack it.
    """

    def encode(name: str, column: Any) -> FieldColumn:
        return _feature(name, column, no_note)._replace(missing=missing.get(name))

    return _encoder(_entries(columns, encode)).encode()


def encode_sequence_examples(
    context: Mapping[str, Any] | None, feature_lists: Mapping[str, Any]
) -> BytesColumn:
    """Serialize columns as one ``tf.train.SequenceExample`` a row.

    Each is what ``encode_sequence_example`` would give.

    Args:
        context: The columns of the features of whole sequences, as ``encode_examples`` takes
            them; ``None`` means none.
        feature_lists: The columns of steps: a ``Ragged`` whose ``values`` are a column of one
            value a step, an array ``[rows, steps, ...]``, or a list of one sequence of steps a row.

    Returns:
        One record a row.

    Raises:
        WrongFeatureType: As of ``encode_examples``.
    """
    features = _entries(context or {}, lambda name, column: _feature(name, column, no_note))
    lists = _entries(feature_lists, _list)
    if not features and not lists:
        return BytesColumn.of([])
    if features and lists:
        # The first of each is enough, as the others were compared with it.
        _check_rows(lists[0], min(feature_lists, key=name_octets), features[0], context or {})
    # Each map is a message: context is field 1 of a SequenceExample, and feature_lists field 2.
    maps = [(FIRST, features), (SECOND, lists)]
    fields = [
        _column((tag,), kernel.MessageEncoder(entries).encode()) for tag, entries in maps if entries
    ]
    # Both maps have their tags already.
    return _encoder(fields, b"").encode()


def _entries(
    columns: Mapping[str, Any], encode: Callable[[str, Any], FieldColumn]
) -> list[FieldColumn]:
    """Return a map's entries, sorted by name."""
    entries: list[FieldColumn] = []
    for name in sorted(columns, key=name_octets):
        entry = encode(name, columns[name])
        if entries:
            _check_rows(entry, name, entries[0], columns)
        entries.append(entry)
    return entries


def _check_rows(
    entry: FieldColumn, name: str, first: FieldColumn, columns: Mapping[str, Any]
) -> None:
    """Check that a column has as many rows as the first one, which is among ``columns``."""
    if entry.rows != first.rows:
        raise WrongFeatureType(
            f"the column has {entry.rows} rows, but that of "
            f"{min(columns, key=name_octets)!r} has {first.rows}; "
            "give all columns the same number of rows",
            feature=name,
        )


def _encoder(fields: list[FieldColumn], head: bytes = FIRST) -> kernel.MessageEncoder:
    """Return the encoder of records, none of which is too large."""
    encoder = kernel.MessageEncoder(fields, head)
    # A bound that is quickly known; the sizes of all rows take a pass over them.
    if encoder.most > LARGEST_MESSAGE:
        sizes = np.diff(encoder.offsets())
        large = np.flatnonzero(sizes > LARGEST_MESSAGE)
        if len(large):
            raise WrongFeatureType(too_large(int(sizes[large[0]])), record=int(large[0]))
    return encoder


def no_note(_name: str, _kind: str | None, _row: int) -> None:
    """Note nothing."""


def _feature(name: str, column: Any, note: Note) -> FieldColumn:
    """Return a feature's entry in the map."""
    return _entry(name, features_of(name, column, note))


def _entry(name: str, values: FieldColumn) -> FieldColumn:
    key = FIRST + frame_bytes(name_octets(name))
    return values._replace(heads=(FIRST, key + SECOND, *values.heads))


def _column(heads: tuple[bytes, ...], column: BytesColumn) -> FieldColumn:
    return FieldColumn(heads, column.values, column.offsets)


def _list(name: str, column: Any) -> FieldColumn:
    """Return a feature list's entry in the map."""
    if isinstance(column, np.ndarray) and column.dtype != object and column.ndim > 1:
        rows, steps = column.shape[:2]
        # Of an array every row has as many steps.
        every = column.reshape(rows * steps, *column.shape[2:])
        column = Ragged(every, np.arange(rows + 1) * steps)
    if not isinstance(column, Ragged):
        return _entry(name, FieldColumn((), _by_row(name, column), None))
    features = features_of(name, column.values, no_note)
    steps = kernel.MessageEncoder([features._replace(heads=(FIRST, *features.heads))]).encode()
    return _entry(name, FieldColumn((), steps.values, steps.offsets[column.row_splits]))


def _by_row(name: str, column: Any) -> tuple[bytes, ...]:
    lists = []
    for row, steps in enumerate(column):
        try:
            lists.append(encode_steps(steps))
        except (TypeError, ValueError, OverflowError) as error:
            message = f"the value cannot be encoded: {error}"
            raise WrongFeatureType(message, feature=name, record=row) from None
    return tuple(lists)
