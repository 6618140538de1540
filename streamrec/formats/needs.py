"""What specs need of a kernel's columns, and what is common to making their own of them."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from streamrec.errors import ConfigError
from streamrec.formats.dtypes import HELD_AS, Overflow, narrow, range_of
from streamrec.formats.faults import ColumnFault, Need
from streamrec.kernel.contract import ColumnPlan, Kind, fresh
from streamrec.types import Ragged

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from streamrec.kernel.contract import Allocate
    from streamrec.types import Column

__all__ = ["Make", "Needs", "Share", "narrowed", "one_by_one", "row_of", "values_of"]

Make: TypeAlias = "Callable[[Sequence[Column]], Column]"
"""Makes a spec's column of the columns of all needs."""
Share: TypeAlias = "Callable[[Callable[[int], None], int], None]"
"""Calls a function with every number from 0 to below a count, in whatever threads.

If calls fail, it raises what the one with the lowest number raised.
"""


def one_by_one(work: Callable[[int], None], count: int) -> None:
    """A :data:`Share` without any threads."""
    for number in range(count):
        work(number)


class Needs:
    """The kernel's columns that specs are made of; two that need the same one share it.

    Args:
        allocate: Where the memory of large columns comes from.
        share: Does many pieces of work, as :func:`one_by_one` does.
    """

    def __init__(self, allocate: Allocate = fresh, share: Share = one_by_one) -> None:
        self.by_name: dict[str, Need] = {}
        self.numbers: dict[str, int] = {}
        self.allocate = allocate
        self.share = share

    @property
    def plans(self) -> list[ColumnPlan]:
        """For the kernel, in the order of the numbers that :meth:`add` gave."""
        return [need.plan for need in self.by_name.values()]

    def add(self, plan: ColumnPlan, dtype: str, shape: tuple[int, ...] = ()) -> int:
        """Ask for a column.

        Args:
            plan: Which.
            dtype: As the spec says it.
            shape: As the spec says it.

        Returns:
            The column's number.

        Raises:
            ConfigError: Another spec needs another column of the same feature.
        """
        known = self.by_name.setdefault(plan.name, Need(plan, dtype, shape))
        if known.plan != plan:
            raise ConfigError(
                f"feature {plan.name!r} is needed as {_words(known.plan)} and as {_words(plan)}; "
                "a feature can be parsed in one way at a time: leave one of the specs out"
            )
        return self.numbers.setdefault(plan.name, len(self.numbers))


def _words(plan: ColumnPlan) -> str:
    missing = ", never absent" if plan.kind is Kind.STEPS and plan.default is None else ""
    return f"{plan.kind.value} {plan.dtype.value}{missing}"


def values_of(name: str, dtype: str, needs: Needs, kind: Kind) -> Callable[..., Any]:
    """A column of all values, in the list's own dtype; the feature may be absent."""
    default = () if kind is Kind.STEPS else None
    return itemgetter(needs.add(ColumnPlan(name, kind, HELD_AS[dtype], default=default), dtype))


def narrowed(get: Callable[..., Any], dtype: str, name: str) -> Make:
    """The column that ``get`` gives, as another dtype.

    Args:
        get: Gives a column as the feature's list holds it.
        dtype: The name of the other.
        name: The feature's, for errors.
    """
    if dtype == HELD_AS[dtype].value:
        return get

    def make(columns: Sequence[Column]) -> Column:
        try:
            return _narrow(get(columns), dtype)
        except Overflow as overflow:
            raise ColumnFault(
                overflow.index,
                name,
                f"the record holds {overflow.value}, but {dtype} is {range_of(dtype)}; "
                f"give the spec dtype {HELD_AS[dtype].value!r}",
            ) from None

    return make


def _narrow(column: Any, dtype: str) -> npt.NDArray[Any] | Ragged:
    """As another dtype; the index of an :class:`Overflow` is then the row's."""
    try:
        if isinstance(column, Ragged):
            return Ragged(_narrow(column.values, dtype), column.row_splits)
        return narrow(column, dtype)
    except Overflow as overflow:
        raise Overflow(row_of(overflow.index, column), overflow.value) from None


def row_of(index: int, column: npt.NDArray[Any] | Ragged) -> int:
    """The row of a value, by the value's place among all."""
    if isinstance(column, Ragged):
        return int(np.searchsorted(column.row_splits, index, "right")) - 1
    return index // (column.size // len(column))
