"""Columns of a table with values that may be missing, to records and keys."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec.errors import WrongFeatureType
from streamrec.formats.examples.encode import encode_present
from streamrec.values.columns import BytesColumn, Ragged, offsets_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt


__all__ = ["RowError", "TableRows", "as_value", "encode_table", "join_types", "type_of", "widen"]

DTYPES = {"int64": np.int64, "float32": np.float32}
_ORDER = ("int64", "float32", "bytes")
"""The types, from the narrowest on: a feature has the first that takes all its values."""


class RowError(ValueError):
    """A value of a row is wrong; the message names the column."""


def type_of(value: Any) -> str | None:
    """Return the type of a value of JSON, in a list of those of its items; ``None``: no value has.

    Raises:
        RowError: No feature can have it.
    """
    if isinstance(value, list):
        if any(isinstance(item, list | dict) or item is None for item in value):
            raise RowError("holds a list of lists, objects or nulls; give it one list of values")
        return join_types(map(type_of, value))
    if value is None or value == {}:
        return None
    if isinstance(value, bool | int):
        return "int64"
    return "float32" if isinstance(value, float) else "bytes"


def join_types(types: Any) -> str | None:
    """Return the first type that takes the values of all types; ``None`` where there is none."""
    found = set(types) - {None}
    return max(found, key=_ORDER.index) if found else None


def widen(types: dict[str, str | None], lists: set[str], row: Mapping[str, Any]) -> None:
    """Widen the types of features, so that they take a row's values too, and note its lists."""
    for name, value in row.items():
        try:
            types[name] = join_types([types.get(name), type_of(value)])
        except RowError:
            types.setdefault(name, None)
        if isinstance(value, list):
            lists.add(name)


def as_value(value: Any, dtype: str) -> Any:
    """Return a value of JSON, or text, as one of the type.

    Raises:
        RowError: It is none.
    """
    try:
        return _CONVERTED[dtype](value)
    except (ValueError, TypeError, OverflowError):
        shown = repr(value)[:60]
        raise RowError(
            f"holds {shown}, which is no {dtype}; correct it, or give the column another type with "
            "--features"
        ) from None


def _as_bytes(value: Any) -> bytes:
    if isinstance(value, list | dict):
        raise TypeError
    return value if isinstance(value, bytes) else str(value).encode()


def _as_int64(value: Any) -> int:
    number = int(value)
    is_whole = "_" not in value if isinstance(value, str) else number == value
    if not is_whole or not -(1 << 63) <= number < 1 << 63:
        raise ValueError
    return number


def _as_float32(value: Any) -> float:
    number = float(value)
    if MOST < abs(number) < math.inf or (isinstance(value, str) and "_" in value):
        raise ValueError
    return number


_CONVERTED: dict[str, Callable[[Any], Any]] = {
    "bytes": _as_bytes,
    "int64": _as_int64,
    "float32": _as_float32,
}
MOST = float(np.finfo(np.float32).max)


@dataclass
class TableRows:
    """Rows of a table, value by value.

    Args:
        types: The types of the columns by name.
        lists: The names of the columns of lists.
    """

    types: Mapping[str, str]
    lists: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self._values: dict[str, list[Any]] = {name: [] for name in self.types}

    def add(self, values: Mapping[str, Any]) -> None:
        """Append a row; ``None`` means that it has no value there.

        Raises:
            RowError: A value is not of its column's type; then nothing is appended.
        """
        row = {name: self._value(name, values.get(name)) for name in self.types}
        for name, value in row.items():
            self._values[name].append(value)

    def _value(self, name: str, value: Any) -> Any:
        if value is None:
            return None
        dtype = self.types[name]
        try:
            if name in self.lists:
                items = value if isinstance(value, list) else [value]
                type_of(items)
                return [as_value(item, dtype) for item in items]
            return as_value(value, dtype)
        except RowError as error:
            raise RowError(f"column {name!r} {error}") from None

    def columns(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[np.bool_]]]:
        """Return the columns, and by name the rows that have no value."""
        missing = {
            name: np.array([value is None for value in values], np.bool_)
            for name, values in self._values.items()
            if None in values
        }
        columns = {name: self._column(name, values) for name, values in self._values.items()}
        return columns, missing

    def _column(self, name: str, values: list[Any]) -> Any:
        dtype = self.types[name]
        if name not in self.lists:
            nothing: Any = b"" if dtype == "bytes" else 0
            return _flat([nothing if value is None else value for value in values], dtype)
        lengths = np.fromiter((len(value or ()) for value in values), np.int64, len(values))
        items = list(chain.from_iterable(value or () for value in values))
        return Ragged(_flat(items, dtype), offsets_of(lengths))


def _flat(values: list[Any], dtype: str) -> Any:
    return BytesColumn.of(values) if dtype == "bytes" else np.array(values, DTYPES[dtype])


def encode_table(
    columns: Mapping[str, Any],
    missing: Mapping[str, npt.NDArray[np.bool_]],
    key: str | None,
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
