"""The partitions of a RaggedFeature, which put values into rows by the numbers of other features.

Each works on all records at once. Every record's numbers are checked against that record's own
values; TensorFlow checks the batch as a whole, and only if asked to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from streamrec.formats.examples.specs import (
    RowLengths,
    RowLimits,
    RowSplits,
    RowStarts,
    UniformRowLength,
    ValueRowIds,
)
from streamrec.values.columns import Ragged, offsets_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from streamrec.formats.examples.specs import Partition

__all__ = ["MOST_EMPTY_ROWS", "Misfit", "partitioned"]

MOST_EMPTY_ROWS = 1 << 16
"""The most empty rows that ValueRowIds may give a record, as one number could ask for any size."""

Integers: TypeAlias = "npt.NDArray[np.int64]"


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


def partitioned(column: Ragged, partition: Partition, keys: Ragged | None) -> Ragged:
    """Put each record's values into rows.

    Args:
        column: The records' values, which may be rows themselves.
        partition: The partition.
        keys: The records' numbers in the partition's feature; ``None`` where it has no feature.

    Returns:
        The records' rows.

    Raises:
        Misfit: The numbers do not fit the values.
    """
    counts = np.diff(column.row_splits)
    if isinstance(partition, UniformRowLength):
        _refuse(np.flatnonzero(counts % partition.length), f"no multiple of {partition.length}")
        rows = counts // partition.length
        lengths = np.full(int(rows.sum()), partition.length, np.int64)
    else:
        assert keys is not None
        numbers: Any = keys.values
        lengths, rows = _LENGTHS[type(partition)](numbers, np.diff(keys.row_splits), counts)
    return Ragged(Ragged(column.values, offsets_of(lengths)), offsets_of(rows))


def _lengths(numbers: Integers, rows: Integers, counts: Integers) -> tuple[Integers, Integers]:
    _check_range(numbers, rows, counts)
    return _check_sums(numbers, rows, counts)


def _limits(numbers: Integers, rows: Integers, counts: Integers) -> tuple[Integers, Integers]:
    _check_range(numbers, rows, counts)
    before = np.roll(numbers, 1)
    before[_firsts(rows)] = 0
    return _check_sums(_check_rise(numbers - before, rows), rows, counts)


def _splits(numbers: Integers, rows: Integers, counts: Integers) -> tuple[Integers, Integers]:
    firsts = _firsts(rows)
    _refuse(_records(rows)[firsts][numbers[firsts] != 0], "the first split is not 0")
    return _limits(np.delete(numbers, firsts), np.maximum(rows - 1, 0), counts)


def _starts(numbers: Integers, rows: Integers, counts: Integers) -> tuple[Integers, Integers]:
    _check_range(numbers, rows, counts)
    after = np.roll(numbers, -1)
    after[_firsts(rows) + rows[rows > 0] - 1] = counts[rows > 0]
    return _check_sums(_check_rise(after - numbers, rows), rows, counts)


def _row_ids(numbers: Integers, rows: Integers, counts: Integers) -> tuple[Integers, Integers]:
    _refuse(np.flatnonzero(rows != counts), "there is not one row number a value")
    _check_range(numbers, rows, counts + MOST_EMPTY_ROWS)
    before = np.roll(numbers, 1)
    firsts = _firsts(rows)
    before[firsts] = 0
    _check_rise(numbers - before, rows)
    made = np.zeros(len(rows), np.int64)
    made[rows > 0] = numbers[firsts + rows[rows > 0] - 1] + 1
    places = numbers + np.repeat(offsets_of(made)[:-1], rows)
    return np.bincount(places, minlength=int(made.sum())).astype(np.int64, copy=False), made


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


def _check_rise(lengths: Integers, rows: Integers) -> Integers:
    _refuse(_records(rows)[lengths < 0], "the numbers go down")
    return lengths


def _check_sums(lengths: Integers, rows: Integers, counts: Integers) -> tuple[Integers, Integers]:
    ends = offsets_of(lengths)[offsets_of(rows)]
    _refuse(np.flatnonzero(np.diff(ends) != counts), "the rows take another number of values")
    return lengths, rows
