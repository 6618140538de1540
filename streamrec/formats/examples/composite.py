"""Columns made of several features, or of arrays whose shapes are in the records.

A partition of a RaggedFeature puts values into rows by the numbers of another feature. It works on
all records at once. Every record's numbers are checked against that record's own values; TensorFlow
checks the batch as a whole, and only if asked to.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from streamrec.formats.examples.defaults import (
    Partition,
    RowLengths,
    RowLimits,
    RowSplits,
    RowStarts,
    UniformRowLength,
    ValueRowIds,
)
from streamrec.formats.examples.dtypes import numpy_dtype
from streamrec.formats.examples.faults import OCTETS, SIZES, ColumnFault
from streamrec.formats.examples.needs import ZLIB, Make, Needs, inflate, row_of, values_of
from streamrec.kernel.contract import LARGEST_MESSAGE, ColumnKind, ColumnPlan, DataType
from streamrec.values.aligned import align
from streamrec.values.columns import Arrays, BytesColumn, Ragged, Sparse, offsets_of, volumes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from streamrec.formats.examples.specs import RaggedFeature, ShapedFeature, SparseFeature
    from streamrec.values.columns import Column, Indices


def compile_shaped(name: str, spec: ShapedFeature, needs: Needs) -> Make:
    """Return a function that makes a column of arrays.

    Raises:
        ConfigError: Another spec contradicts this one.
    """
    key = spec.value_key or name
    get_shapes = _shapes(spec, needs)
    if not spec.raw:
        get_list: Any = values_of(key, spec.dtype, needs, ColumnKind.VARLEN)
    else:
        get_octets = needs.getter(ColumnPlan(key, ColumnKind.FIXED, DataType.BYTES), OCTETS)

    def make(columns: Sequence[Any]) -> Column:
        shapes = get_shapes(columns)
        if not spec.raw:
            column = get_list(columns)
            _check(shapes, np.diff(column.row_splits), key, spec)
            return Arrays(column.values, column.row_splits, shapes)
        octets = get_octets(columns)
        item = numpy_dtype(spec.dtype).itemsize
        if spec.raw == ZLIB:
            sizes = volumes(shapes, LARGEST_MESSAGE) * item
            _check(shapes, sizes, key, spec, item)
            values, offsets = inflate(octets, sizes, key, needs), offsets_of(sizes)
        else:
            _check(shapes, np.diff(octets.offsets), key, spec, item)
            values, offsets = octets.values, octets.offsets
        numbers = numbers_in(Ragged(values, offsets), spec.dtype, key)
        return Arrays(numbers, offsets // item, shapes)

    return make


def _shapes(spec: ShapedFeature, needs: Needs) -> Callable[[Sequence[Any]], Indices]:
    """Return a function that gives the records' shapes: int64 ``[rows, dimensions]``."""
    if isinstance(spec.shape, str):
        plan = ColumnPlan(spec.shape, ColumnKind.FIXED, DataType.INT64, (spec.rank or 0,))
        index = needs.add(plan, SIZES)
        # Copied, as the feature may be a column of its own, too.
        return lambda columns: columns[index].copy()
    plans = {key: ColumnPlan(key, ColumnKind.FIXED, DataType.INT64) for key in spec.shape_keys}
    numbers = {key: needs.add(plan, SIZES) for key, plan in plans.items()}

    def stack(columns: Sequence[Any]) -> Indices:
        sides = [columns[numbers[side]] if side in numbers else side for side in spec.shape]
        # Sizes that all records have are single numbers, which are repeated.
        return np.stack(np.broadcast_arrays(*sides), axis=1)

    return stack


def _check(shapes: Indices, held: Indices, key: str, spec: ShapedFeature, item: int = 1) -> None:
    """Refuse shapes that the values do not fill.

    Args:
        shapes: The records' shapes.
        held: The number of values, or of bytes, that each record holds.
        key: The feature that holds the values.
        spec: The column's.
        item: The bytes of a value, where ``held`` counts bytes.
    """
    counts = volumes(shapes, LARGEST_MESSAGE)
    odd = np.flatnonzero((counts < 0) | (counts * item != held))
    if not len(odd):
        return
    row = int(odd[0])
    shape = f"the shape {tuple(shapes[row].tolist())} of {' and '.join(map(repr, spec.shape_keys))}"
    if counts[row] < 0:
        raise ColumnFault(row, key, f"{shape} fits no array; correct the record")
    what = f"bytes of {spec.dtype}" if spec.raw else "values"
    raise ColumnFault(
        row,
        key,
        f"{shape} takes {counts[row] * item} {what}, but the record holds {held[row]}; correct the "
        "spec or the record",
    )


def numbers_in(octets: npt.NDArray[np.uint8] | Ragged, dtype: str, name: str) -> npt.NDArray[Any]:
    """Return the numbers in byte strings, end to end: an array ``[numbers]``.

    Args:
        octets: The byte strings: an array ``[rows, size]``, or rows of different sizes.
        dtype: The numbers' dtype, of which each string holds a whole number.
        name: The feature's name, for errors.
    """
    flat: Any = octets.values if isinstance(octets, Ragged) else octets.reshape(-1)
    if dtype == "bool" and (flat > 1).any():
        index = int((flat > 1).argmax())
        raise ColumnFault(
            row_of(index, octets),
            name,
            f"the record's byte string holds {flat[index]}, but a bool is 0 or 1; "
            "give the spec the dtype 'uint8'",
        )
    # The bytes are little-endian; NumPy's computations want the machine's own order.
    own = numpy_dtype(dtype)
    numbers: npt.NDArray[Any] = flat.view(own.newbyteorder("<")).astype(own, copy=False)
    return numbers


_OFFSET = 8
"""Bytes of the end of a row, which an empty one has too."""
MOST_EMPTY_ROWS = 1 << 16
"""The most empty rows that ValueRowIds may give a record, as one number could ask for any size."""

Integers: TypeAlias = "npt.NDArray[np.int64]"


def compile_ragged(name: str, spec: RaggedFeature, needs: Needs, kind: ColumnKind) -> Make:
    """Return a function that makes a ragged column.

    Its values are an Example's list (``VARLEN``) or the steps of a feature list (``STEPS``).
    """
    key = spec.value_key or name
    get = values_of(key, spec.dtype, needs, kind)
    parts = [
        (each, None if isinstance(each, UniformRowLength) else each.key)
        for each in reversed(spec.partitions)
    ]
    keys = [by and values_of(by, "int64", needs, kind) for _, by in parts]
    claims = needs.claims

    def claim(feature: str, rows: Integers) -> None:
        claims.rows(rows, int(rows.sum()), _OFFSET, feature)

    def make(columns: Sequence[Column]) -> Column:
        column: Any = get(columns)
        outer: Any = column if kind is ColumnKind.STEPS else None
        column = column.values if outer is not None else column
        for (rule, by), numbers_of in zip(parts, keys, strict=True):
            numbers: Any = numbers_of(columns) if numbers_of else None
            if outer is not None and numbers is not None:
                numbers = _align(numbers, outer, by, key)
            try:
                column = partition(column, rule, numbers, partial(claim, by or key))
            except Misfit as misfit:
                row = misfit.record if outer is None else row_of(misfit.record, outer)
                raise ColumnFault(row, by or key, _no_fit(by, key, misfit.why)) from None
        return column if outer is None else Ragged(column, outer.row_splits)

    return make


def _align(numbers: Ragged, outer: Ragged, by: str | None, key: str) -> Any:
    """Return the steps of a partition's feature; each record must have as many as of values."""
    odd = np.flatnonzero(np.diff(numbers.row_splits) != np.diff(outer.row_splits))
    if len(odd):
        why = "it has another number of steps"
        raise ColumnFault(int(odd[0]), by or key, _no_fit(by, key, why))
    return numbers.values


def _no_fit(by: str | None, key: str, why: str) -> str:
    what = "the number of values is" if by is None else f"does not partition feature {key!r}:"
    return f"{what} {why}; correct the partitions, or leave them out"


class Misfit(Exception):
    """A partition does not fit the values.

    Args:
        record: The number of the first record that does not fit.
        why: The reason, for the error's message.
    """

    def __init__(self, record: int, why: str) -> None:
        super().__init__(record, why)
        self.record = record
        self.why = why


def partition(
    column: Ragged,
    partition: Partition,
    keys: Ragged | None,
    claim: Callable[[Integers], object] = len,
) -> Ragged:
    """Put each record's values into rows: dense ones, where all rows inside are of one length.

    Args:
        column: The records' values, which may be rows themselves.
        partition: The partition.
        keys: The records' numbers in the partition's feature; ``None`` where it has no feature.
        claim: Called with the rows of each record before they are made, where some may be empty.

    Returns:
        The records' rows.

    Raises:
        Misfit: The numbers do not fit the values.
    """
    counts = np.diff(column.row_splits)
    if isinstance(partition, UniformRowLength):
        _refuse(np.flatnonzero(counts % partition.length), f"not a multiple of {partition.length}")
        rows = counts // partition.length
        if not isinstance(column.values, Ragged):
            return Ragged(_in_dense_rows(column.values, partition.length), offsets_of(rows))
        lengths = np.full(int(rows.sum()), partition.length, np.int64)
    else:
        assert keys is not None
        numbers: Any = keys.values
        rows = np.diff(keys.row_splits)
        most = counts + MOST_EMPTY_ROWS if isinstance(partition, ValueRowIds) else counts
        _check_range(numbers, rows, most)
        if isinstance(partition, ValueRowIds):
            # Before they are made: a high number alone makes all the empty rows below it.
            claim(_make_rows(numbers, rows))
        lengths, rows = _LENGTHS[type(partition)](numbers, rows, counts)
        ends = offsets_of(lengths)[offsets_of(rows)]
        _refuse(np.flatnonzero(np.diff(ends) != counts), "the rows take another number of values")
    return Ragged(Ragged(column.values, offsets_of(lengths)), offsets_of(rows))


def _in_dense_rows(values: Any, length: int) -> Any:
    """Return items as rows of a length: one more dimension, in the same memory, as TensorFlow."""
    if isinstance(values, BytesColumn):
        return BytesColumn(values.values, values.offsets, (length, *values.item_shape))
    return values.reshape(len(values) // length, length, *values.shape[1:])


def _lengths(numbers: Integers, rows: Integers, _: Integers) -> tuple[Integers, Integers]:
    return numbers, rows


def _limits(numbers: Integers, rows: Integers, _: Integers) -> tuple[Integers, Integers]:
    # The number before each; that before a record's first one is of another record, and becomes 0.
    before = np.roll(numbers, 1)
    before[_firsts(rows)] = 0
    return _rising(numbers - before, rows), rows


def _splits(numbers: Integers, rows: Integers, counts: Integers) -> tuple[Integers, Integers]:
    firsts = _firsts(rows)
    _refuse(_records(rows)[firsts][numbers[firsts] != 0], "the first split is not 0")
    return _limits(np.delete(numbers, firsts), np.maximum(rows - 1, 0), counts)


def _starts(numbers: Integers, rows: Integers, counts: Integers) -> tuple[Integers, Integers]:
    # The number after each; after a record's last one stands the count of its values.
    after = np.roll(numbers, -1)
    after[_firsts(rows) + rows[rows > 0] - 1] = counts[rows > 0]
    return _rising(after - numbers, rows), rows


def _row_ids(numbers: Integers, rows: Integers, counts: Integers) -> tuple[Integers, Integers]:
    _refuse(np.flatnonzero(rows != counts), "there is not one row number a value")
    # For its check alone: the numbers must rise.
    _limits(numbers, rows, counts)
    made = _make_rows(numbers, rows)
    places = numbers + np.repeat(offsets_of(made)[:-1], rows)
    return np.bincount(places, minlength=int(made.sum())).astype(np.int64, copy=False), made


def _make_rows(numbers: Integers, rows: Integers) -> Integers:
    """Return the rows that row numbers make of each record."""
    made = np.zeros(len(rows), np.int64)
    # Row numbers rise, so a record's last one is its greatest.
    made[rows > 0] = numbers[_firsts(rows) + rows[rows > 0] - 1] + 1
    return made


_LENGTHS: dict[type[Partition], Callable[..., tuple[Integers, Integers]]] = {
    RowLengths: _lengths,
    RowLimits: _limits,
    RowSplits: _splits,
    RowStarts: _starts,
    ValueRowIds: _row_ids,
}
"""Functions of a partition's numbers, of each record's count of them, and of its count of values.
They return the lengths of all rows, and each record's number of rows."""


def _records(rows: Integers) -> Integers:
    """Return the record of each number."""
    return np.repeat(np.arange(len(rows)), rows)


def _firsts(rows: Integers) -> Integers:
    """Return the place of each record's first number; records without numbers are left out."""
    return offsets_of(rows)[:-1][rows > 0]


def _refuse(records: Integers, why: str) -> None:
    if len(records):
        raise Misfit(int(records[0]), why)


def _check_range(numbers: Integers, rows: Integers, most: Integers) -> None:
    """Refuse numbers that are negative or beyond ``most``."""
    # This also keeps the sums here within int64.
    records = _records(rows)
    wrong = (numbers < 0) | (numbers > most[records])
    _refuse(records[wrong], "a number is negative, or beyond the values")


def _rising(lengths: Integers, rows: Integers) -> Integers:
    _refuse(_records(rows)[lengths < 0], "the numbers go down")
    return lengths


def compile_sparse(spec: SparseFeature, needs: Needs) -> Make:
    """Return a function that makes a sparse column."""
    places = [values_of(key, "int64", needs, ColumnKind.VARLEN) for key in spec.index_keys]
    key = spec.value_key
    get = values_of(key, spec.dtype, needs, ColumnKind.VARLEN)

    def make(columns: Sequence[Column]) -> Column:
        column: Any = get(columns)
        # The first coordinate of each value is its record's row.
        rows = np.repeat(np.arange(len(column)), np.diff(column.row_splits))
        indices = [rows]
        for index_key, of, size in zip(spec.index_keys, places, spec.sizes, strict=True):
            indices.append(_check_places(of(columns), column, rows, index_key, size))
        shape = (len(column), *spec.sizes)
        found = np.stack(indices, axis=1)
        if spec.already_sorted:
            return Sparse(align(found), column.values, shape)
        return _sort(found, column.values, shape)

    return make


def _check_places(
    places: Any, column: Ragged, rows: npt.NDArray[np.int64], key: str, size: int
) -> npt.NDArray[np.int64]:
    odd = np.flatnonzero(np.diff(places.row_splits) != np.diff(column.row_splits))
    if len(odd):
        held, wanted = (int(np.diff(each.row_splits)[odd[0]]) for each in (places, column))
        raise ColumnFault(
            int(odd[0]),
            key,
            f"the record holds {held} places for {wanted} values; write one place for each value",
        )
    numbers: npt.NDArray[np.int64] = places.values
    wrong = (numbers < 0) | (numbers >= size)
    if wrong.any():
        first = int(wrong.argmax())
        raise ColumnFault(
            int(rows[first]),
            key,
            f"the record holds place {numbers[first]}, but the spec's size is {size}; correct the "
            "size, or the record",
        )
    return numbers


def _sort(indices: npt.NDArray[np.int64], values: Any, shape: tuple[int, ...]) -> Sparse:
    """Sort the values by their places; values with the same place keep their order."""
    # The last key counts most for lexsort, so the rows' column goes there.
    order = np.lexsort(indices.T[::-1])
    indices = align(indices[order])
    if isinstance(values, BytesColumn):
        strings = values.to_list()
        return Sparse(indices, BytesColumn.of([strings[i] for i in order.tolist()]), shape)
    return Sparse(indices, align(values[order]), shape)
