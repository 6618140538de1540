"""The parser of Examples and SequenceExamples, by the extension."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamrec.kernel import _native
from streamrec.kernel.contract import ColumnPlan, FaultCode, KernelFault, fresh
from streamrec.kernel.native.columns import LARGE, Layout, PlannedColumn, Room, layout
from streamrec.kernel.native.rows import hold

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamrec.kernel.contract import Admit, Allocate
    from streamrec.kernel.native.columns import Filled, Measured, Size
    from streamrec.kernel.native.rows import Held
    from streamrec.values.columns import Column
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
