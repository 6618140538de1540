"""The memory of each kind of column.

The extension goes over the rows twice. Measuring decodes the columns that have memory already, and
counts the values and bytes of the others; filling decodes those.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from streamrec.kernel.contract import ColumnPlan, DataType, Kind
from streamrec.values.columns import BytesColumn, Ragged

if TYPE_CHECKING:
    import numpy.typing as npt

    from streamrec.kernel.contract import Allocate
    from streamrec.values.columns import Column, Indices, Values

__all__ = ["Filled", "Measured", "PlannedColumn", "Size", "memory"]

# The extension's numbers: enum sr_kind in c/examples.h, enum sr_type in c/list.h.
_KINDS = {Kind.FIXED: 0, Kind.VARLEN: 1, Kind.RAW: 2, Kind.STEPS: 3}
_TYPES = {DataType.BYTES: 1, DataType.FLOAT32: 2, DataType.INT64: 3}
_DTYPES: dict[DataType, np.dtype[Any]] = {
    DataType.BYTES: np.dtype(np.uint8),
    DataType.FLOAT32: np.dtype(np.float32),
    DataType.INT64: np.dtype(np.int64),
}

LARGE = 1 << 17
"""Bytes from which malloc returns memory to the system, so that every use touches new pages."""

Measured: TypeAlias = "tuple[npt.NDArray[Any] | None, Indices | None, npt.NDArray[Any] | None]"
"""A column's memory for measuring: values, row splits, spans of the rows' values."""
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
        self._dtype = _DTYPES[plan.dtype]
        self._is_fixed = plan.kind is Kind.FIXED
        self._has_place = plan.kind is Kind.RAW or (
            self._is_fixed and plan.dtype is not DataType.BYTES
        )
        self._least = plan.count if plan.default is None else 0

    def described(self) -> tuple[Any, ...]:
        """Return (name, kind, type, count, may lack, the default's values, its strings' ends)."""
        plan, ends = self.plan, b""
        default: Any = plan.default or ()
        if plan.dtype is DataType.BYTES:
            ends = np.cumsum([len(string) for string in default], dtype=np.int64).tobytes()
            values = b"".join(default)
        else:
            values = np.array(default, self._dtype).tobytes()
        count = plan.count if plan.kind in (Kind.FIXED, Kind.RAW) else 0
        kind, dtype = _KINDS[plan.kind], _TYPES[plan.dtype]
        return plan.name.encode(), kind, dtype, count, plan.default is not None, values, ends

    def measured(self, rows: int, size: int, allocate: Allocate) -> Measured:
        """Allocate the memory for measuring records of ``size`` bytes in all."""
        if not self._has_place:
            splits = None if self._is_fixed else _offsets(rows)
            return None, splits, np.empty(2 * rows, np.uint32)
        # Where the records cannot hold so many values, measuring finds the row that lacks them
        # without the memory, and reports it.
        if rows * self._least > size:
            return None, None, None
        return memory((rows, *self.plan.shape), self._dtype, allocate), None, None

    def filled(self, measured: Measured, size: Size, allocate: Allocate) -> Filled | None:
        """Allocate memory of exactly the measured size; ``None`` where all is decoded already."""
        values, octets, steps = size
        spans = measured[2]
        if spans is None:
            return None
        step_ends = _offsets(steps)[1:] if self.plan.kind is Kind.STEPS else None
        if self.plan.dtype is DataType.BYTES:
            return memory((octets,), self._dtype, allocate), _offsets(values)[1:], step_ends, spans
        return memory((values,), self._dtype, allocate), None, step_ends, spans

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


def memory(shape: tuple[int, ...], dtype: np.dtype[Any], allocate: Allocate) -> npt.NDArray[Any]:
    """Allocate memory for values, from :data:`LARGE` bytes on by the caller's ``allocate``."""
    size = prod(shape) * dtype.itemsize
    if size < LARGE:
        return np.empty(shape, dtype)
    return allocate(size).view(dtype).reshape(shape)


def _offsets(count: int) -> Indices:
    """Allocate offsets: a leading 0 and room for ``count`` ends."""
    offsets = np.empty(count + 1, np.int64)
    offsets[0] = 0
    return offsets


def _whole(ends: Indices) -> Indices:
    """Return the array of offsets whose part behind the leading 0 is ``ends``."""
    offsets = ends.base
    assert isinstance(offsets, np.ndarray)
    return offsets
