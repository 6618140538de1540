"""The parser of Examples and SequenceExamples, by the extension, and the memory of its columns.

The extension goes over the rows twice. Measuring decodes the columns that have memory already, and
counts the values and bytes of the others; filling decodes those.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from streamrec.kernel import _native
from streamrec.kernel.contract import (
    ColumnKind,
    ColumnPlan,
    DataType,
    FaultCode,
    KernelFault,
    fresh,
)
from streamrec.values.aligned import ALIGNMENT, empty
from streamrec.values.columns import BytesColumn, Ragged

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from streamrec.kernel.contract import Admit, Allocate
    from streamrec.values.columns import Column, Indices, Values
    from streamrec.values.record_rows import RecordRows


class Parser:
    """The parser in C; see :class:`streamrec.kernel.reference.Parser`."""

    def __init__(
        self,
        plans: Sequence[ColumnPlan],
        lists: Sequence[ColumnPlan] | None = None,
        allocate: Allocate = fresh,
        admit: Admit | None = None,
    ) -> None:
        self._allocate = allocate
        self._admit = admit
        self._columns = [PlannedColumn(plan) for plan in (*plans, *(lists or ()))]
        self._to_fill = [column.to_fill for column in self._columns]
        self._last: tuple[int, Layout] = (-1, Layout([], []))
        described = tuple(column.described() for column in self._columns)
        self._schema = _native.schema(described, len(plans), lists is not None)

    def parse(self, rows: RecordRows) -> list[Column]:
        """Parse records into columns.

        Args:
            rows: The serialized messages.

        Returns:
            One column for each of ``plans``, then one for each of ``lists``.

        Raises:
            KernelFault: For the first row that does not fit.
        """
        columns, held, allocate = self._columns, hold(rows), self._allocate
        # Bytes of all records, which bound how many values they can hold.
        size = int(held[3].sum())
        places, sizes = self._layout(len(rows))
        room, count, each = Room(sizes, allocate), len(rows), zip(columns, places, strict=True)
        measured = tuple([column.measured(count, size, room, place) for column, place in each])
        filled = self._filled(measured, self._measure(held, measured))
        # The second pass may find other sizes than the first only if somebody writes to the
        # records.
        if any(filled) and not _native.fill(self._schema, held, filled):
            raise RuntimeError(
                "the memory of the records changed during the parse; write to it only afterwards"
            )
        wholes = zip(columns, measured, filled, strict=True)
        return [column.column(first, then) for column, first, then in wholes]

    def _layout(self, rows: int) -> Layout:
        """Return the layout for measuring; most batches have as many rows as the one before."""
        last = self._last  # another thread may set it
        if last[0] != rows:
            sizes = [column.measured_size(rows) for column in self._columns]
            self._last = last = rows, layout(sizes)
        return last[1]

    def _filled(
        self, measured: tuple[Measured, ...], sizes: tuple[Size, ...]
    ) -> tuple[Filled | None, ...]:
        columns = self._columns
        # Then measuring has decoded all of it.
        if not any(each for _, each in self._to_fill):
            return (None,) * len(columns)
        each_size = zip(sizes, self._to_fill, strict=True)
        taken = [size[n] * each for size, (n, each) in each_size]
        if self._admit is not None:
            self._admit_all(self._admit, taken, sizes)
        places, pieces = layout(taken)
        room = Room(pieces, self._allocate)
        filled: list[Filled | None] = []
        for column, memory, size, place in zip(columns, measured, sizes, places, strict=True):
            filled.append(column.filled(memory, size, room, place))
        return tuple(filled)

    def _admit_all(self, admit: Admit, taken: Sequence[int], sizes: tuple[Size, ...]) -> None:
        """Tell of the memory of columns whose sizes depend on the records, before it is taken."""
        wholes = [
            size + column.ends_size(counts)
            for column, size, counts in zip(self._columns, taken, sizes, strict=True)
        ]
        # Less is not worth the call: columns so small share pieces of memory.
        if sum(wholes) >= LARGE:
            widest = max(range(len(wholes)), key=wholes.__getitem__)
            admit(sum(wholes), self._columns[widest].plan.name)

    def _measure(self, held: Held, memory: tuple[Measured, ...]) -> tuple[Size, ...]:
        fault, row, plan, offset, sizes = _native.measure(self._schema, held, memory)
        if fault:
            # Below 0 stand for the record as a whole, and for a byte that is not known.
            name = self._columns[plan].plan.name if plan >= 0 else None
            raise KernelFault(FaultCode(fault), row, name, offset if offset >= 0 else None)
        return sizes


# The extension's numbers: enum sr_kind in c/examples.h, enum sr_type in c/list.h.
_KINDS = {ColumnKind.FIXED: 0, ColumnKind.VARLEN: 1, ColumnKind.RAW: 2, ColumnKind.STEPS: 3}
_TYPES = {DataType.BYTES: 1, DataType.FLOAT32: 2, DataType.INT64: 3}
_DTYPES: dict[DataType, np.dtype[Any]] = {
    DataType.BYTES: np.dtype(np.uint8),
    DataType.FLOAT32: np.dtype(np.float32),
    DataType.INT64: np.dtype(np.int64),
}

LARGE = 1 << 17
"""Bytes from which malloc returns memory to the system, so that every use touches new pages."""
MOST_SHARED = 1 << 16
"""Bytes of a piece of memory that small columns share: what a user keeps by keeping one of them."""

Measured: TypeAlias = "tuple[npt.NDArray[Any] | None, Indices | None, npt.NDArray[Any] | None]"
"""A column's memory for measuring: values, row splits, spans of the rows' values."""
Place: TypeAlias = tuple[int, int]
"""The piece of memory that holds a column, below 0 where it is large and has memory of its own; and
the byte at which it begins, a multiple of 64."""
Size: TypeAlias = tuple[int, int, int]
"""The sizes that measuring found: values, bytes of strings, steps."""
Filled: TypeAlias = "tuple[npt.NDArray[Any], Indices | None, Indices | None, npt.NDArray[Any]]"
"""A column's memory for filling: values, ends of strings, ends of steps, spans of the values."""


class PlannedColumn:
    """The column of a plan.

    One with the same size in every row has its memory before measuring, which decodes it. The
    others have theirs once measuring has found their sizes.
    """

    def __init__(self, plan: ColumnPlan) -> None:
        self.plan = plan
        self._shape, self._dtype = plan.shape, _DTYPES[plan.dtype]
        self._is_fixed = plan.kind is ColumnKind.FIXED
        # Of strings the bytes are not known before measuring, even where their number is.
        self._has_place = plan.kind is ColumnKind.RAW or (
            self._is_fixed and plan.dtype is not DataType.BYTES
        )
        # With a default, records may hold nothing and still fill the column.
        self._least = plan.count if plan.default is None else 0
        size = self._dtype.itemsize
        self._row_size = plan.count * size if self._has_place else 0
        self._counted = 1 if plan.dtype is DataType.BYTES else 0
        self.to_fill = self._counted, 0 if self._has_place else size
        """The number of a :data:`Size` that counts the items to fill, and the bytes of each."""
        self._has_steps = plan.kind is ColumnKind.STEPS

    def described(self) -> tuple[Any, ...]:
        """Return (name, kind, type, count, may lack, the default's values, its strings' ends)."""
        plan, ends = self.plan, b""
        default: Any = plan.default or ()
        if plan.dtype is DataType.BYTES:
            ends = np.cumsum([len(string) for string in default], dtype=np.int64).tobytes()
            values = b"".join(default)
        else:
            values = np.array(default, self._dtype).tobytes()
        count = plan.count if plan.kind in (ColumnKind.FIXED, ColumnKind.RAW) else 0
        kind, dtype = _KINDS[plan.kind], _TYPES[plan.dtype]
        return plan.name.encode(), kind, dtype, count, plan.default is not None, values, ends

    def measured_size(self, rows: int) -> int:
        """Return the bytes of the values that measuring decodes."""
        return self._row_size * rows

    def measured(self, rows: int, size: int, room: Room, place: Place) -> Measured:
        """Allocate the memory for measuring records of ``size`` bytes in all."""
        if not self._has_place:
            splits = None if self._is_fixed else _offsets(rows)
            # A span is two numbers: struct sr_span in c/examples.h.
            return None, splits, np.empty(2 * rows, np.uint32)
        # Where the records cannot hold so many values, measuring finds the row that lacks them
        # without the memory, and reports it.
        if rows * self._least > size:
            return None, None, None
        return room.array((rows, *self._shape), self._dtype, place), None, None

    def filled(self, measured: Measured, size: Size, room: Room, place: Place) -> Filled | None:
        """Allocate memory of exactly the measured size; ``None`` where all is decoded already."""
        values, _, steps = size
        spans = measured[2]
        if spans is None:
            return None
        # The extension writes ends alone; the leading 0 is in the same memory before them.
        ends = _offsets(values)[1:] if self._counted else None
        step_ends = _offsets(steps)[1:] if self._has_steps else None
        return room.array((size[self._counted],), self._dtype, place), ends, step_ends, spans

    def ends_size(self, size: Size) -> int:
        """Return the bytes of the ends of strings, and of steps."""
        values, _, steps = size
        return 8 * (values * self._counted + steps * self._has_steps)

    def column(self, measured: Measured, filled: Filled | None) -> Column:
        """Put the memory together as a column of the plan's kind."""
        numbers, splits, _ = measured
        if filled is None:
            assert numbers is not None
            return numbers
        values: Values
        values, ends, step_ends, _ = filled
        if ends is not None:
            values = BytesColumn(values, _whole(ends), self.plan.shape)
        if step_ends is not None:
            values = Ragged(values, _whole(step_ends))
        return values if splits is None else Ragged(values, splits)


class Layout(NamedTuple):
    """The places of columns in pieces of memory, which small ones share."""

    places: list[Place]
    sizes: list[int]
    """The bytes of the pieces."""


def layout(sizes: Iterable[int]) -> Layout:
    """Lay out columns of these sizes in bytes.

    Small ones share pieces, since aligning each by itself would take longer than decoding it.
    """
    places, pieces = [], [0]
    for size in sizes:
        if size >= LARGE:
            places.append((-1, 0))
            continue
        # An empty piece takes even a column above the limit.
        if pieces[-1] and pieces[-1] + size > MOST_SHARED:
            pieces.append(0)
        places.append((len(pieces) - 1, pieces[-1]))
        # Rounded up, so that the next column is aligned as well.
        pieces[-1] += size + -size % ALIGNMENT
    return Layout(places, pieces)


class Room:
    """The memory of a batch's columns.

    Args:
        sizes: The bytes of the pieces that small columns share.
        allocate: The source of memory for each large column.
    """

    def __init__(self, sizes: Iterable[int], allocate: Allocate) -> None:
        self._pieces = [empty((size,), np.uint8) for size in sizes]
        self._allocate = allocate

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any], place: Place) -> npt.NDArray[Any]:
        """Return the memory of the column at a place."""
        piece, begin = place
        if piece < 0:
            return self._allocate(prod(shape) * dtype.itemsize).view(dtype).reshape(shape)
        return np.ndarray(shape, dtype, self._pieces[piece], begin)


def _offsets(count: int) -> Indices:
    """Allocate offsets: a leading 0 and room for ``count`` ends."""
    offsets = np.empty(count + 1, np.int64)
    offsets[0] = 0
    return offsets


def _whole(ends: Indices) -> Indices:
    """Return the array of offsets whose part after the leading 0 is ``ends``."""
    # The base of a slice is the array from which it was cut.
    offsets = ends.base
    assert isinstance(offsets, np.ndarray)
    return offsets


Held: TypeAlias = "tuple[Any, Any, Any, Any]"


def hold(rows: RecordRows) -> Held:
    """Return the arrays of the rows, contiguous and of the extension's types."""
    # Nothing is copied where they are so already, as those of RecordRows are.
    return (
        rows.buffers,
        np.ascontiguousarray(rows.buffer_index, np.int32),
        np.ascontiguousarray(rows.offsets, np.int64),
        np.ascontiguousarray(rows.lengths, np.int64),
    )
