"""The parser of Examples and SequenceExamples, by the extension."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamrec.kernel import _native
from streamrec.kernel.contract import ColumnPlan, Fault, KernelFault, fresh
from streamrec.kernel.native.columns import PlannedColumn
from streamrec.kernel.native.rows import hold

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamrec.kernel.contract import Allocate
    from streamrec.kernel.native.columns import Measured, Size
    from streamrec.kernel.native.rows import Held
    from streamrec.values.columns import Column
    from streamrec.values.records import RecordRows

__all__ = ["Parser"]


class Parser:
    """The parser in C; see :class:`streamrec.kernel.reference.Parser`."""

    def __init__(
        self,
        plans: Sequence[ColumnPlan],
        lists: Sequence[ColumnPlan] | None = None,
        allocate: Allocate = fresh,
    ) -> None:
        self._allocate = allocate
        self._columns = [PlannedColumn(plan) for plan in (*plans, *(lists or ()))]
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
        size = int(held[3].sum())
        measured = tuple([column.measured(len(rows), size, allocate) for column in columns])
        sizes = self._measure(held, measured)
        parts = zip(columns, measured, sizes, strict=True)
        filled = tuple([column.filled(memory, found, allocate) for column, memory, found in parts])
        if any(filled) and not _native.fill(self._schema, held, filled):
            raise RuntimeError(
                "the memory of the records changed during the parse; write to it only afterwards"
            )
        wholes = zip(columns, measured, filled, strict=True)
        return [column.column(first, then) for column, first, then in wholes]

    def _measure(self, held: Held, memory: tuple[Measured, ...]) -> tuple[Size, ...]:
        fault, row, plan, offset, sizes = _native.measure(self._schema, held, memory)
        if fault:
            name = self._columns[plan].plan.name if plan >= 0 else None
            raise KernelFault(Fault(fault), row, name, offset if offset >= 0 else None)
        return sizes
