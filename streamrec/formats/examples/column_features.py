"""Whole columns as the values of features in protobuf's wire format.

A column is described to the kernel, which writes the values of each row behind their heads.
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
    as_array,
    as_feature,
    as_float32,
    as_int64,
    is_floats,
    is_integers,
    missing_row,
)
from streamrec.kernel.contract import FieldColumn
from streamrec.values.columns import BytesColumn, Ragged, offsets_of

if TYPE_CHECKING:
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
    if (np.diff(splits) == 1).all():
        heads = _BYTES_LIST, FIRST
        return "bytes_list", FieldColumn(heads, strings.values, strings.offsets[splits])
    tagged = kernel.MessageEncoder(
        [FieldColumn((FIRST,), strings.values, strings.offsets)]
    ).encode()
    kind = "bytes_list" if splits[-1] > splits[0] else None  # lists without strings have none
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
