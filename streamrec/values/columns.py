"""The column types: the values of one feature for all rows of a batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeAlias

import numpy as np

from streamrec.values.aligned import align, empty

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt


def html_table(title: str, rows: Mapping[str, object]) -> str:
    """Return an HTML table of two columns under a title; all text is escaped."""
    from html import (
        escape,  # a large table of entities, which programs outside notebooks do without
    )

    body = "".join(
        f"<tr><th style='text-align:left'>{escape(name)}</th>"
        f"<td style='text-align:left'>{escape(str(value))}</td></tr>"
        for name, value in rows.items()
    )
    return f"<table><caption>{escape(title)}</caption><tbody>{body}</tbody></table>"


Bytes: TypeAlias = bytes | bytearray | memoryview
Indices: TypeAlias = "npt.NDArray[np.int64]"
ByteArray: TypeAlias = "npt.NDArray[np.uint8]"
Values: TypeAlias = "npt.NDArray[Any] | Arrays | BytesColumn | Ragged"
Column: TypeAlias = "npt.NDArray[Any] | Arrays | BytesColumn | Ragged | Sparse"

LONG = 1 << 14
"""Mean bytes from which strings are copied one by one, right to their place: joining them first is
one copy more."""


def rising(first: int, count: int) -> Indices:
    """Return int64 ``[count]``: the numbers from ``first`` on."""
    # np.arange releases the GIL, however few the numbers are; to have it back takes long where
    # other threads want it.
    if count > len(_NUMBERS):
        return np.arange(first, first + count)
    return _NUMBERS[:count] + first


def offsets_of(lengths: Indices) -> Indices:
    """Return running sums with a leading 0: of ``[n]`` lengths ``[n + 1]`` offsets."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def volumes(shapes: Indices, most: int) -> Indices:
    """Return the number of values in each array; -1 where no array has the shape.

    Args:
        shapes: int64 ``[arrays, dimensions]``; any numbers.
        most: The most values in one array, up to 2**58, of which those of 16 bytes can be counted.
            A side of 0 counts as 1: NumPy refuses other sides that are too large even beside a 0.
    """
    # Of floats the product cannot wrap around, and where it is small enough, that of int64 fits.
    with np.errstate(over="ignore"):
        sizes = np.maximum(shapes, 1).prod(axis=1, dtype=float)
    fits = (shapes >= 0).all(axis=1) & (sizes <= most)
    return np.where(fits, shapes.prod(axis=1), -1)


class _Rows:
    """The base of the columns: their rows, and a ``repr`` without the arrays, which are long."""

    __slots__ = ()
    _not_an_array: ClassVar[str]
    """The reason that the column is not a NumPy array, and what to do."""

    def __iter__(self: Any) -> Iterator[Any]:
        return map(self._row, range(len(self)))

    def __getitem__(self: Any, row: Any) -> Any:
        """Return a row; for a slice, or an array of numbers or truths, a column of these rows."""
        if isinstance(row, int | np.integer):
            return self._row(row)
        return pick_rows(self, np.arange(len(self))[row])

    def _from_start(self: Any, row: int) -> int:
        """Return a row's number, which may count from the end, as one from the start."""
        if not -len(self) <= row < len(self):
            raise IndexError(f"there is no row {row} in a column of {len(self)}")
        return int(row % len(self))

    if not TYPE_CHECKING:  # a type checker would take any name for an attribute

        def __getattr__(self, name: str) -> NoReturn:
            # A name that arrays have tells that the column was taken for one.
            hint = f": {self._not_an_array}" if hasattr(np.ndarray, name) else ""
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}{hint}")

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {form_of(self)}>"


# Without eq, since comparing arrays gives an array and no truth.
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Arrays(_Rows):
    """Arrays of different shapes; indexing gives one of them, a view.

    Args:
        values: All arrays' values end to end, each in C order.
        offsets: int64 ``[count + 1]``: array ``i`` has ``values[offsets[i]:offsets[i + 1]]``.
        shapes: int64 ``[count, dimensions]``; for pictures the heights, widths and channels.
    """

    values: npt.NDArray[Any]
    offsets: Indices
    shapes: Indices
    _not_an_array = (
        "the arrays may have different shapes; work on values or on each array, or give the spec "
        "one shape, as Image(resize=...) does"
    )

    @classmethod
    def of(cls, arrays: Sequence[npt.NDArray[Any]]) -> Arrays:
        """Join arrays, one for each row, into a column with its own memory.

        Args:
            arrays: One or more, of one dtype and one number of dimensions.

        Raises:
            ValueError: There is no array, or one has another dtype or number of dimensions.
        """
        values_list = [np.asarray(array) for array in arrays]
        kinds = sorted({(str(array.dtype), array.ndim) for array in values_list})
        if len(kinds) != 1:
            kinds_text = " and ".join(f"{dtype} of {ndim} dimensions" for dtype, ndim in kinds)
            raise ValueError(
                f"arrays of one column must have one dtype and number of dimensions, not "
                f"{kinds_text or 'an empty list'}; convert them with .astype(...) and .reshape(...)"
            )
        shapes = np.array([array.shape for array in values_list], np.int64)
        sizes = np.fromiter((array.size for array in values_list), np.int64, len(values_list))
        values = align(np.concatenate([array.ravel() for array in values_list]))
        return cls(values, offsets_of(sizes), shapes)

    def __len__(self) -> int:
        return len(self.shapes)

    def _row(self, row: int) -> npt.NDArray[Any]:
        first, last = self.offsets[self._from_start(row) :][:2].tolist()
        return self.values[first:last].reshape(self.shapes[row])

    def to_list(self) -> list[npt.NDArray[Any]]:
        """Return all arrays, as views."""
        return list(self)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class BytesColumn(_Rows):
    """Byte strings end to end in one buffer; indexing gives ``bytes``.

    Args:
        values: uint8, all strings joined.
        offsets: int64 ``[count + 1]``: string ``i`` is ``values[offsets[i]:offsets[i + 1]]``.
        item_shape: With ``(k,)``, row ``i`` is the list of strings ``i*k … i*k+k-1``; more
            dimensions nest lists; ``()`` means one string a row.
        rows: The number of rows, if no row holds a string (``k`` is 0); otherwise the offsets tell
            it.
    """

    values: ByteArray
    offsets: Indices
    item_shape: tuple[int, ...] = ()
    rows: int = 0
    _not_an_array = "it holds strings; take them with to_list()"

    @classmethod
    def of(cls, strings: Sequence[Bytes], item_shape: tuple[int, ...] = ()) -> BytesColumn:
        """Join strings into a column with its own memory."""
        offsets = offsets_of(np.fromiter(map(len, strings), np.int64, len(strings)))
        if offsets[-1] < LONG * len(strings):
            # A bytearray, since an array over bytes cannot be written to.
            values = align(np.frombuffer(bytearray(b"").join(strings), np.uint8))
            return cls(values, offsets, item_shape)
        values = empty((int(offsets[-1]),), np.uint8)
        for string, (begin, end) in zip(strings, pairwise(offsets.tolist()), strict=True):
            values[begin:end] = np.frombuffer(string, np.uint8)
        return cls(values, offsets, item_shape)

    @property
    def strings_per_row(self) -> int:
        """The number of strings in one row."""
        return prod(self.item_shape)

    def __len__(self) -> int:
        per_row = self.strings_per_row
        return (len(self.offsets) - 1) // per_row if per_row else self.rows

    def _row(self, row: int) -> Any:
        first = self._from_start(row) * self.strings_per_row
        return _nest(self._strings(first, first + self.strings_per_row), self.item_shape)

    def to_list(self) -> list[Any]:
        """Return all rows: ``bytes``, or nested lists of them."""
        return list(self) if self.item_shape else self._strings(0, len(self))

    def _strings(self, first: int, last: int) -> list[bytes]:
        bounds = self.offsets[first : last + 1].tolist()
        view = self.values.data
        return [bytes(view[a:b]) for a, b in pairwise(bounds)]


def _nest(strings: list[bytes], shape: tuple[int, ...]) -> Any:
    if not shape:
        return strings[0]
    if len(shape) == 1:
        return strings
    step = len(strings) // shape[0] if shape[0] else 0
    return [_nest(strings[i * step : (i + 1) * step], shape[1:]) for i in range(shape[0])]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Ragged(_Rows):
    """Rows of different lengths.

    Args:
        values: All rows' values end to end: an array, ``Arrays``, a ``BytesColumn``,
            or a ``Ragged`` if the values have different lengths, too.
        row_splits: int64 ``[rows + 1]``: row ``i`` is ``values[row_splits[i]:row_splits[i + 1]]``.
    """

    values: Values
    row_splits: Indices
    _not_an_array = "its rows have different lengths; work on values, or call to_dense()"

    def __len__(self) -> int:
        return len(self.row_splits) - 1

    def _row(self, row: int) -> Any:
        first, last = self.row_splits[self._from_start(row) :][:2].tolist()
        part = cut(self.values, first, last)
        return part.to_list() if isinstance(part, Arrays | BytesColumn) else part

    def to_list(self) -> list[list[Any]]:
        """Return the rows as lists, at every depth."""
        first = int(self.row_splits[0])
        values = cut(self.values, first, int(self.row_splits[-1]))
        items = values.tolist() if isinstance(values, np.ndarray) else values.to_list()
        return [items[a:b] for a, b in pairwise((self.row_splits - first).tolist())]

    def to_dense(self, default: Any = None, width: int | None = None) -> npt.NDArray[Any]:
        """Return one array ``[rows, width, ...]``, with short rows filled up at every depth.

        Args:
            default: The filling; ``None`` means 0 for numbers and ``b""`` for strings.
            width: Values a row; ``None`` means those of the longest row. Longer rows are cut.
                Dimensions further in are always as long as their longest row.
        """
        # A column that is a part of another has splits that do not begin at 0.
        first, lengths = int(self.row_splits[0]), np.diff(self.row_splits)
        values = array_of(cut(self.values, first, int(self.row_splits[-1])), default)
        places = np.arange(int(lengths.max(initial=0)) if width is None else width)
        dense = _fill((len(self), len(places), *values.shape[1:]), values, default)
        present = places < lengths[:, None]
        if width is not None:
            values = values[(self.row_splits[:-1, None] - first + places)[present]]
        dense[present] = values
        return dense


def form_of(column: Any) -> str:
    """Return a column's dtype and shape in one line; ``None`` is a length that differs by row."""
    match column:
        case BytesColumn():
            return f"bytes [{', '.join(map(str, (len(column), *column.item_shape)))}]"
        case Arrays():
            return f"{column.values.dtype} {[len(column), *[None] * column.shapes.shape[1]]}"
        case Ragged():
            dtype, _, inner = form_of(column.values).partition(" [")
            further = inner.partition(", ")[1:]
            return f"{dtype} [{len(column)}, None{''.join(further) or ']'}"
        case Sparse():
            dtype = form_of(column.values).partition(" [")[0]
            return f"{dtype} {list(column.dense_shape)}, {len(column.indices)} values"
    return f"{column.dtype} {list(column.shape)}"


def cut(values: Values, first: int, last: int) -> Values:
    """Return the values ``first … last-1`` as views of the same memory."""
    if isinstance(values, Ragged):
        return Ragged(values.values, values.row_splits[first : last + 1])
    if isinstance(values, BytesColumn):
        strings = values.strings_per_row
        offsets = values.offsets[first * strings : last * strings + 1]
        return BytesColumn(values.values, offsets, values.item_shape, last - first)
    if isinstance(values, Arrays):
        return Arrays(values.values, values.offsets[first : last + 1], values.shapes[first:last])
    return values[first:last]


def array_of(values: Values, default: Any = None) -> npt.NDArray[Any]:
    """Return the values as a NumPy array: strings become objects, ragged rows are filled up."""
    if isinstance(values, Ragged):
        return values.to_dense(default)
    if isinstance(values, np.ndarray):
        return values
    if isinstance(values, Arrays):
        raise TypeError(
            "arrays of different shapes do not fit into one; take them one by one, or give "
            "sr.Image a shape"
        )
    objects = np.empty(len(values.offsets) - 1, object)
    # Assigned, as np.array would make fixed-width strings, which drop zeros at their ends.
    objects[:] = BytesColumn(values.values, values.offsets).to_list()
    return objects.reshape(len(values), *values.item_shape)


def _fill(shape: tuple[int, ...], values: npt.NDArray[Any], default: Any) -> npt.NDArray[Any]:
    """Make an array of the values' dtype, filled with ``default`` (``None``: 0 or ``b""``)."""
    if values.dtype == object:
        return np.full(shape, b"" if default is None else default, object)
    filled = empty(shape, values.dtype)
    filled[...] = 0 if default is None else default
    return filled


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Sparse(_Rows):
    """A sparse column: the coordinates of its values, and the values.

    Args:
        indices: int64 ``[count, dimensions]``, sorted.
        values: ``[count]``: an array or a ``BytesColumn``.
        dense_shape: The shape of the whole; rows first.
    """

    indices: Indices
    values: npt.NDArray[Any] | BytesColumn
    dense_shape: tuple[int, ...]
    _not_an_array = "it holds only the values that are there; work on values, or call to_dense()"

    def __len__(self) -> int:
        return self.dense_shape[0]

    def _row(self, row: int) -> Sparse:
        places = np.flatnonzero(self.indices[:, 0] == self._from_start(row))
        return Sparse(
            self.indices[places, 1:], pick_rows(self.values, places), self.dense_shape[1:]
        )

    def to_dense(self, default: Any = None) -> npt.NDArray[Any]:
        """Return one array of ``dense_shape``; places without a value get ``default``."""
        values = array_of(self.values)
        dense = _fill(self.dense_shape, values, default)
        dense[tuple(self.indices.T)] = values
        return dense


def pick_rows(column: Any, rows: Indices) -> Any:
    """Return some rows of a column, in the order of their numbers; a copy.

    Args:
        column: Of any type.
        rows: The numbers of the rows, each any number of times.
    """
    if isinstance(column, Ragged):
        first, lengths = column.row_splits[rows], np.diff(column.row_splits)[rows]
        splits = offsets_of(lengths)
        items = np.repeat(first - splits[:-1], lengths) + np.arange(splits[-1])
        return Ragged(pick_rows(column.values, items), splits)
    if isinstance(column, Arrays):
        picked = pick_rows(Ragged(column.values, column.offsets), rows)
        return Arrays(picked.values, picked.row_splits, column.shapes[rows])
    if isinstance(column, Sparse):
        ends = np.searchsorted(column.indices[:, 0], np.arange(len(column) + 1))
        places = pick_rows(Ragged(np.arange(len(column.indices)), ends), rows)
        indices = column.indices[places.values]
        indices[:, 0] = np.repeat(np.arange(len(rows)), np.diff(places.row_splits))
        values = pick_rows(column.values, places.values)
        return Sparse(indices, values, (len(rows), *column.dense_shape[1:]))
    if not isinstance(column, BytesColumn):
        picked = empty((len(rows), *column.shape[1:]), column.dtype)
        # "clip", since NumPy would else copy twice, to leave the array as it is after an error.
        return np.take(column, rows, 0, picked, "clip")
    each = column.strings_per_row
    every = (rows[:, None] * each + np.arange(each)).reshape(-1)
    data, offsets = column.values.data, column.offsets.tolist()
    strings = [data[offsets[k] : offsets[k + 1]] for k in every.tolist()]
    return replace(BytesColumn.of(strings, column.item_shape), rows=len(rows))


_NUMBERS = np.arange(500)


def size_of(column: Column) -> int:
    """Return the bytes of a column's arrays."""
    match column:
        case np.ndarray():
            return column.nbytes
        case Arrays():
            return column.values.nbytes + column.offsets.nbytes + column.shapes.nbytes
        case Ragged():
            return size_of(column.values) + column.row_splits.nbytes
        case Sparse():
            return size_of(column.values) + column.indices.nbytes
    return column.values.nbytes + column.offsets.nbytes


def digests(strings: BytesColumn, words: int) -> npt.NDArray[np.uint64]:
    """Return the BLAKE2b hash of each string.

    Args:
        strings: The strings.
        words: The size of a hash in words of 8 bytes.

    Returns:
        uint64 ``[strings, words]``, read as little-endian.
    """
    size = 8 * words
    joined = b"".join([blake2b(view, digest_size=size).digest() for view in views(strings)])
    return np.frombuffer(joined, "<u8").reshape(-1, words)


def views(column: BytesColumn) -> Iterator[memoryview]:
    """Yield each string without a copy."""
    data = column.values.data
    return (data[first:last] for first, last in pairwise(column.offsets.tolist()))
