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
    from streamrec.values.columns import Column, Indices

__all__ = [
    "Filled",
    "Measured",
    "MeasuredColumn",
    "PreallocatedColumn",
    "Size",
    "column_of",
    "memory",
]

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


class PreallocatedColumn:
    """A column with the same size in every row, whose memory is allocated before measuring."""

    def __init__(self, plan: ColumnPlan) -> None:
        self.plan = plan
        self._shape = plan.shape
        self._dtype = _DTYPES[plan.dtype]
        self._least = plan.count if plan.default is None else 0

    def described(self) -> tuple[Any, ...]:
        """Return the plan in the form that the extension takes."""
        default: Any = self.plan.default
        if default is None:
            return _described(self.plan, b"")
        is_raw = self.plan.kind is Kind.RAW
        return _described(
            self.plan, default[0] if is_raw else np.array(default, self._dtype).tobytes()
        )

    def measured(self, rows: int, size: int, allocate: Allocate) -> Measured:
        """Allocate the column, unless records of ``size`` bytes cannot hold so many values."""
        # Without the memory, measuring still finds the row that lacks values, and reports it.
        if rows * self._least > size:
            return None, None, None
        return memory((rows, *self._shape), self._dtype, allocate), None, None

    def filled(self, _measured: Measured, _size: Size, _allocate: Allocate) -> None:
        """Return ``None``: measuring has decoded everything."""

    def column(self, measured: Measured, _filled: None) -> Column:
        """Return the memory, which is the column."""
        assert measured[0] is not None
        return measured[0]


class MeasuredColumn:
    """A column whose memory is allocated once measuring has found its size."""

    def __init__(self, plan: ColumnPlan) -> None:
        self.plan = plan
        self._has_splits = plan.kind is not Kind.FIXED
        self._dtype = _DTYPES[plan.dtype]

    def described(self) -> tuple[Any, ...]:
        """Return the plan in the form that the extension takes."""
        strings = self.plan.default or ()
        ends = np.cumsum([len(string) for string in strings], dtype=np.int64)  # type: ignore[arg-type]
        return _described(self.plan, b"".join(strings), ends.tobytes())  # type: ignore[arg-type]

    def measured(self, rows: int, _size: int, _allocate: Allocate) -> Measured:
        """Allocate memory for the row splits and the spans of the rows' values."""
        splits = _offsets(rows) if self._has_splits else None
        return None, splits, np.empty(2 * rows, np.uint32)

    def filled(self, measured: Measured, size: Size, allocate: Allocate) -> Filled:
        """Allocate memory of exactly the measured size."""
        values, octets, steps = size
        spans = measured[2]
        assert spans is not None
        step_ends = _offsets(steps)[1:] if self.plan.kind is Kind.STEPS else None
        if self.plan.dtype is DataType.BYTES:
            return memory((octets,), self._dtype, allocate), _offsets(values)[1:], step_ends, spans
        return memory((values,), self._dtype, allocate), None, step_ends, spans

    def column(self, measured: Measured, filled: Filled) -> Column:
        """Put the memory together as a column of the plan's kind."""
        numbers, ends, step_ends, _ = filled
        values: npt.NDArray[Any] | BytesColumn = numbers
        if ends is not None:
            values = BytesColumn(numbers, _whole(ends), self.plan.shape)
        if not self._has_splits:
            return values
        splits = measured[1]
        assert splits is not None
        if step_ends is not None:
            return Ragged(Ragged(values, _whole(step_ends)), splits)
        return Ragged(values, splits)


def column_of(plan: ColumnPlan) -> PreallocatedColumn | MeasuredColumn:
    """Create the column of a plan."""
    has_place = plan.kind is Kind.RAW
    has_place |= plan.kind is Kind.FIXED and plan.dtype is not DataType.BYTES
    return PreallocatedColumn(plan) if has_place else MeasuredColumn(plan)


def memory(shape: tuple[int, ...], dtype: np.dtype[Any], allocate: Allocate) -> npt.NDArray[Any]:
    """Allocate memory for values, from :data:`LARGE` bytes on by the caller's ``allocate``."""
    size = prod(shape) * dtype.itemsize
    if size < LARGE:
        return np.empty(shape, dtype)
    return allocate(size).view(dtype).reshape(shape)


def _described(plan: ColumnPlan, default: bytes, ends: bytes = b"") -> tuple[Any, ...]:
    """Return (name, kind, type, count, may lack, the default's values, its strings' ends)."""
    count = plan.count if plan.kind in (Kind.FIXED, Kind.RAW) else 0
    may_lack = plan.default is not None
    return (
        plan.name.encode(),
        _KINDS[plan.kind],
        _TYPES[plan.dtype],
        count,
        may_lack,
        default,
        ends,
    )


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
