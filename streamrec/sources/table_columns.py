"""Columns of a table with values that may be missing, to records and keys."""

from __future__ import annotations

from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from streamrec.errors import WrongFeatureType
from streamrec.formats.examples.encode import encode_present
from streamrec.sources.table_values import (
    EXACT,
    MOST,
    ODD,
    JsonNumber,
    RowError,
    as_value,
    is_emptied,
    is_nan,
    is_part,
    is_rounded,
)
from streamrec.values.columns import BytesColumn, Ragged, offsets_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy.typing as npt

DTYPES = {"int64": np.int64, "float32": np.float32}
_NESTED = {list, dict, type(None)}


def column_of(values: Sequence[Any], dtype: str, *, is_given: bool = True) -> Any:
    """Return values of JSON, or texts, as a column: what :func:`as_value` makes of each.

    Args:
        values: The values; ``None`` stands for none, whose row gets any value.
        dtype: The type.
        is_given: As for :func:`as_value`.

    Raises:
        RowError: A value is not of the type.
    """
    present = [value for value in values if value is not None]
    try:
        column = _make_at_once(present, dtype, is_given=is_given)
    # The quick way failed; each value is looked at to say which one is wrong, and why.
    except (ValueError, TypeError, OverflowError):
        column = None
    if column is None:
        one_by_one = [as_value(value, dtype, is_given=is_given) for value in present]
        column = _COLUMNS[dtype](one_by_one)
    return column if len(present) == len(values) else _spread(column, values)


def _make_at_once(values: list[Any], dtype: str, *, is_given: bool) -> Any:
    """Return values that need no look at each as a column; ``None`` where they do."""
    kinds = set(map(type, values))
    if dtype == "bytes":
        # Numbers in a column of texts need a look at each.
        if kinds <= {str}:
            values = list(map(str.encode, values))
        return BytesColumn.of(values) if kinds <= {str} or kinds <= {bytes} else None
    if kinds <= {str}:
        # One search in the joined texts costs less than one in each.
        texts = "\n".join(values)
        # Python reads 1_000 and digits of other scripts as numbers, and tables do not.
        if "_" in texts or not texts.isascii() or (not is_given and ODD.search(texts)):
            return None
        values = list(map(_READ[dtype], values))
    elif not kinds <= _NUMBERS[dtype]:
        return None
    return _integers(values) if dtype == "int64" else _exact_floats(values, is_given=is_given)


def _exact_floats(values: list[Any], *, is_given: bool) -> npt.NDArray[np.float32] | None:
    doubles = np.array(values, np.float64)
    sizes = np.abs(doubles)
    # A whole number above EXACT may be EXACT itself as a double.
    if (sizes > MOST if is_given else sizes >= EXACT).any():
        return None
    floats = doubles.astype(np.float32)
    if is_given:
        return floats
    is_changed = is_rounded(floats, doubles) | is_emptied(floats, doubles)
    return None if is_changed.any() else floats


def _floats(values: list[Any]) -> npt.NDArray[np.float32]:
    return np.array(values, np.float64).astype(np.float32)


def _integers(values: list[Any]) -> npt.NDArray[np.int64]:
    return np.array(values, np.int64)


_COLUMNS: dict[str, Callable[[list[Any]], Any]] = {
    "bytes": BytesColumn.of,
    "int64": _integers,
    "float32": _floats,
}
_READ: dict[str, Callable[[str], Any]] = {"int64": int, "float32": float}
_NUMBERS = {"int64": {int, bool}, "float32": {int, bool, float, JsonNumber}}


def _spread(array: Any, values: Sequence[Any]) -> Any:
    """Return a column with a row for each value, also where there is none."""
    is_there = np.array([value is not None for value in values], np.bool_)
    if isinstance(array, BytesColumn):
        lengths = np.zeros(len(values), np.int64)
        # A missing text takes no bytes, so the values stay and only the places change.
        lengths[is_there] = np.diff(array.offsets)
        return BytesColumn(array.values, offsets_of(lengths))
    spread = np.zeros(len(values), array.dtype)
    spread[is_there] = array
    return spread


def lists_of(values: Sequence[Any], dtype: str, *, is_given: bool = True) -> Ragged:
    """Return lists of values, or single ones, as a column; ``None`` stands for none.

    Raises:
        RowError: A value is not of the type, or no value.
    """
    lists = [
        value if isinstance(value, list) else [] if value is None else [value] for value in values
    ]
    items = list(chain.from_iterable(lists))
    if not _NESTED.isdisjoint(map(type, items)):
        raise RowError("holds a list of lists, objects or nulls; give it one list of values")
    lengths = np.fromiter(map(len, lists), np.int64, len(lists))
    return Ragged(column_of(items, dtype, is_given=is_given), offsets_of(lengths))


def _items(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else [value]


Row: TypeAlias = Any
"""The values of a row by name, or a list of them."""


class TableRows:
    """Rows of a table, whose values are converted column by column.

    Args:
        types: The types of the columns by name.
        lists: The names of the columns of lists.
        null: By a column's name, texts that stand for no value.
        names: The columns that rows have values of, where rows are lists.
        given: The columns whose type the user named, in which numbers may be rounded.
        parts: The columns that are known to have numbers that are not whole.
    """

    def __init__(
        self,
        types: Mapping[str, str],
        lists: frozenset[str] = frozenset(),
        null: Mapping[str, frozenset[str]] | None = None,
        names: Sequence[str] | None = None,
        given: frozenset[str] = frozenset(),
        parts: frozenset[str] = frozenset(),
    ) -> None:
        self._types, self._lists, self._null, self._names = types, lists, null or {}, names
        self._given, self._parts = given, parts
        self._rows: list[tuple[Any, Row | RowError]] = []

    def add(self, place: Any, values: Row | RowError) -> None:
        """Append a row.

        Args:
            place: The row's place in the source, for messages.
            values: The values by name, of which some may be missing or ``None``; a list, where the
                columns have names; or why the row cannot be read.
        """
        self._rows.append((place, values))

    def columns(
        self, refuse: Callable[[Any, RowError], None]
    ) -> tuple[dict[str, Any], dict[str, npt.NDArray[np.bool_]], list[Any]]:
        """Return the columns, by name the rows that have no value, and the places of the rows.

        Args:
            refuse: Is called for each row that is wrong, in order, with its place and its error. If
                it returns, the row is left out.
        """
        good, wrong = self._divide()
        columns, missing = self._convert(good, wrong)
        for number in sorted(wrong):
            # In the order of the rows, whichever column noticed them, as the user reads the file.
            refuse(self._rows[number][0], wrong[number])
        if not wrong.keys().isdisjoint(good):
            # All columns again: a row that one of them refuses leaves each.
            good = {number: row for number, row in good.items() if number not in wrong}
            columns, missing = self._convert(good, {})
        return columns, missing, [self._rows[number][0] for number in good]

    def _divide(self) -> tuple[dict[int, Row], dict[int, RowError]]:
        """Return the rows that have values, and the errors of the others, by their numbers."""
        good, wrong = {}, {}
        for number, (_, row) in enumerate(self._rows):
            if isinstance(row, RowError):
                wrong[number] = row
            else:
                good[number] = row
        return good, wrong

    def _convert(
        self, rows: Mapping[int, Row], wrong: dict[int, RowError]
    ) -> tuple[dict[str, Any], dict[str, npt.NDArray[np.bool_]]]:
        """Convert rows, and add the errors of those that are wrong."""
        columns, missing = {}, {}
        for name in self._types:
            values = self._values(name, rows)
            if None in values:
                missing[name] = np.array([value is None for value in values], np.bool_)
            try:
                columns[name] = self._column(name, values)
            except RowError:
                for number, error in self._errors(name, list(zip(rows, values, strict=True))):
                    wrong.setdefault(number, error)
        return columns, missing

    def _values(self, name: str, rows: Mapping[int, Row]) -> list[Any]:
        if self._names is None:
            values = [row.get(name) for row in rows.values()]
        else:
            values = list(map(itemgetter(self._names.index(name)), rows.values()))
        if name in self._given and self._types[name] == "int64":
            # The user asked for whole numbers: NaN is how Pandas writes a gap among them.
            values = [None if is_nan(value) else value for value in values]
        null = self._null.get(name)
        if not null or null.isdisjoint(values):
            return values
        return [None if value in null else value for value in values]

    def _column(self, name: str, values: Sequence[Any]) -> Any:
        make = lists_of if name in self._lists else column_of
        return make(values, self._types[name], is_given=name in self._given)

    def _errors(
        self, name: str, values: Sequence[tuple[int, Any]]
    ) -> Iterator[tuple[int, RowError]]:
        """Yield the numbers of rows whose value is wrong, and their errors."""
        has_parts = name in self._parts or any(is_part(one) for _, v in values for one in _items(v))
        for number, value in values:
            try:
                # Value by value, which is slow: only where the column as a whole was refused.
                self._column(name, [value])
            except RowError as error:
                yield number, error.of_column(name, has_parts=has_parts)


def encode_table(
    columns: Mapping[str, Any], missing: Mapping[str, npt.NDArray[np.bool_]], key: str | None
) -> tuple[BytesColumn, Sequence[bytes] | None]:
    """Serialize the rows of columns, and return them with their keys.

    Args:
        columns: The columns by name; of no rows, all are empty.
        missing: By name, the rows that have no value.
        key: The column of the keys; ``None``: the records are their own.

    Raises:
        WrongFeatureType: A value has no representation, or a row has no key.
    """
    records = encode_present(columns, missing)
    if key is None:
        return records, None
    absent = np.flatnonzero(missing.get(key, np.zeros(len(records), np.bool_)))
    if len(absent):
        raise WrongFeatureType(
            "the row has no key; give it one, or choose another column with --key",
            feature=key,
            record=int(absent[0]),
        )
    column = columns[key]
    if isinstance(column, BytesColumn):
        return records, column.to_list()
    if isinstance(column, Ragged):
        return records, [repr(value).encode() for value in column.to_list()]
    return records, [repr(value).encode() for value in column.tolist()]
