"""Whole columns as the values of features in protobuf's wire format.

The wire format is built per column, not per value. The bytes before a row's values in a record
(their head) depend on the values' size alone, so each head is made once, and the kernel gathers
heads and values. Source: protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from streamrec import kernel
from streamrec.errors import WrongFeatureType
from streamrec.formats.examples.coerce import (
    as_array,
    as_feature,
    as_float32,
    as_int64,
    is_floats,
    is_integers,
)
from streamrec.formats.examples.wire_format import FIRST, varint
from streamrec.values.columns import BytesColumn, Ragged, offsets_of
from streamrec.values.records import RecordRows

if TYPE_CHECKING:
    from streamrec.values.columns import ByteArray, Indices

__all__ = ["Begin", "Note", "Slices", "cut", "features_of", "heads", "joined"]

_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = b"\x0a", b"\x12", b"\x1a"
"""Tags of the lists in a ``Feature``."""

Note: TypeAlias = Callable[[str, str | None, int], None]
"""A function that takes a feature's name, the field of ``Feature`` that is set in a row, if one is,
and the row."""


class Slices(NamedTuple):
    """Byte strings that stand anywhere in a buffer."""

    buffer: ByteArray
    offsets: Indices
    lengths: Indices

    def rows(self, start: int, stop: int) -> Slices:
        """Return those of some rows."""
        return Slices(self.buffer, self.offsets[start:stop], self.lengths[start:stop])


def joined(parts: Sequence[Slices]) -> BytesColumn:
    """Join, for each row, its slices of all parts."""
    count, rows = len(parts), len(parts[0].lengths)
    pieces = RecordRows(
        tuple(part.buffer for part in parts),
        np.tile(np.arange(count, dtype=np.int32), rows),
        np.stack([part.offsets for part in parts], axis=1).reshape(-1),
        np.stack([part.lengths for part in parts], axis=1).reshape(-1),
        np.zeros(rows * count, np.int32),
        np.zeros(rows * count, np.int64),
    )
    column = kernel.gather(pieces)
    return BytesColumn(column.values, column.offsets[::count].copy())


def heads(sizes: Indices, head: Callable[[int], bytes]) -> Slices:
    """Return the head of each row's values; each distinct size's head is made once."""
    distinct, place = _distinct(sizes)
    made = BytesColumn.of([head(size) for size in distinct.tolist()])
    return Slices(made.values, made.offsets[place], np.diff(made.offsets)[place])


def _distinct(sizes: Indices) -> tuple[Indices, Indices]:
    """Return the distinct sizes, and the place of each row's size among them."""
    most = int(sizes.max(initial=0))
    if most > len(sizes):
        distinct, place = np.unique(sizes, return_inverse=True)
        return distinct, place
    # Sorting all sizes takes several times as long as a table of them.
    is_there = np.zeros(most + 1, np.bool_)
    is_there[sizes] = True
    return np.flatnonzero(is_there), (np.cumsum(is_there) - 1)[sizes]


def features_of(name: str, column: Any, note: Note) -> tuple[Begin, Slices]:
    """Return each row's values as they stand in a ``Feature``, and the function of their heads.

    Raises:
        WrongFeatureType: A value has no representation; the error names the feature and the row.
    """
    by_column = _by_column(_uniform(name, column))
    if by_column is None:
        return _by_row(name, column, note)
    begin, kind, values = by_column
    if len(values.lengths):
        note(name, kind, 0)
    return begin, values


Begin = Callable[[int], bytes]
"""Gives the bytes of a ``Feature`` that stand before values of the given size in bytes."""


def _numbers(kind: bytes) -> Begin:
    """Return the head of packed numbers; of an empty list, only the kind is written."""

    def begin(size: int) -> bytes:
        packed = FIRST + varint(size) if size else b""
        return kind + varint(len(packed) + size) + packed

    return begin


def _one_string(size: int) -> bytes:
    string = FIRST + varint(size)
    return _BYTES_LIST + varint(len(string) + size) + string


def _strings(size: int) -> bytes:
    """Return the head of strings that have their own tags; an empty list has no kind."""
    return _BYTES_LIST + varint(size) if size else b""


def _whole(_size: int) -> bytes:
    """Return no bytes, since the values are whole features."""
    return b""


def _uniform(name: str, column: Any) -> Any:
    """Convert a sequence of scalars of one type to an array or a BytesColumn.

    Other sequences and columns are returned as they are.
    """
    if isinstance(column, BytesColumn | Ragged):
        return column
    if hasattr(column, "__array__"):
        column = as_array(column)
        if not column.ndim:
            raise WrongFeatureType(
                "the column is one value without rows; give one value a row", feature=name
            )
        if column.ndim > 1 or column.dtype.kind not in "OSU":
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
            return BytesColumn.of([value.encode() for value in values])
        if kinds == {bytes}:
            return BytesColumn.of(values)
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
    if not isinstance(inner, np.ndarray | BytesColumn):
        return rows
    return Ragged(inner, offsets_of(np.fromiter(map(len, rows), np.int64, len(rows))))


def _by_column(column: Any) -> tuple[Begin, str | None, Slices] | None:
    """Encode all rows at once; return ``None`` where they must be encoded one by one."""
    values, splits = _flat(column)
    if isinstance(values, BytesColumn):
        return _of_strings(values, splits)
    if not isinstance(values, np.ndarray):
        return None
    try:
        if is_integers(values.dtype):
            octets = kernel.varints(as_int64(values), splits)
            return _numbers(_INT64_LIST), "int64_list", cut(octets, np.arange(len(splits)))
        if is_floats(values.dtype):
            floats = np.ascontiguousarray(as_float32(values)).view(np.uint8)
            slices = Slices(floats, splits[:-1] * 4, np.diff(splits) * 4)
            return _numbers(_FLOAT_LIST), "float_list", slices
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


def cut(strings: BytesColumn, splits: Indices) -> Slices:
    """Return the slices of rows, each of which has several strings end to end."""
    bounds = strings.offsets[splits]
    return Slices(strings.values, bounds[:-1], np.diff(bounds))


def _of_strings(strings: BytesColumn, splits: Indices) -> tuple[Begin, str | None, Slices]:
    if (np.diff(splits) == 1).all():
        return _one_string, "bytes_list", cut(strings, splits)
    lengths = np.diff(strings.offsets)
    tags = heads(lengths, lambda size: FIRST + varint(size))
    tagged = joined([tags, Slices(strings.values, strings.offsets[:-1], lengths)])
    kind = "bytes_list" if splits[-1] > splits[0] else None  # lists without strings have none
    return _strings, kind, cut(tagged, splits)


def _by_row(name: str, column: Iterable[Any], note: Note) -> tuple[Begin, Slices]:
    features = []
    for row, value in enumerate(column):
        try:
            feature = as_feature(value)
        except (TypeError, ValueError, OverflowError) as error:
            message = f"the value cannot be encoded: {error}"
            raise WrongFeatureType(message, feature=name, record=row) from None
        note(name, feature.WhichOneof("kind"), row)
        features.append(feature.SerializeToString())
    lengths = np.fromiter(map(len, features), np.int64, len(features))
    values = np.frombuffer(b"".join(features), np.uint8)
    return _whole, Slices(values, offsets_of(lengths)[:-1], lengths)
