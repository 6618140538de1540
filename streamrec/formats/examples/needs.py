"""The kernel's columns that specs need, and helpers to make the specs' columns of them."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from streamrec.errors import ConfigError
from streamrec.formats.examples.claims import Claims
from streamrec.formats.examples.dtypes import HELD_AS, Overflow, narrow, range_of
from streamrec.formats.examples.faults import ColumnFault, Need
from streamrec.kernel.contract import ColumnKind, ColumnPlan, fresh
from streamrec.values.aligned import aligned_copy
from streamrec.values.columns import BytesColumn, Ragged

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from streamrec.formats.images.picture import OutputForm
    from streamrec.kernel.contract import Allocate
    from streamrec.values.columns import Column

Make: TypeAlias = "Callable[[Sequence[Column]], Column]"
"""A function that makes a spec's column from the kernel's columns."""
Share: TypeAlias = "Callable[[Callable[[int], None], int, int], None]"
"""A function that calls another with each number below a count, in any threads.

Its arguments are that function, the count, and the most calls at once. If calls fail, it raises the
error of the one with the lowest number.
"""
FillPicture: TypeAlias = (
    "Callable[[memoryview, OutputForm, npt.NDArray[np.uint8], Callable[[], None]], None]"
)
"""A function that fills an array with a decoded picture, if need be by calling its last argument.

Its arguments are the encoded picture, the form in which it is decoded, the array, and a function
that decodes it into the array.
"""


def one_by_one(work: Callable[[int], None], count: int, _at_once: int = 1) -> None:
    """Call ``work`` with each number below ``count``: a :data:`Share` without threads."""
    for number in range(count):
        work(number)


def made_anew(
    _encoded: memoryview,
    _wanted: OutputForm,
    _target: npt.NDArray[np.uint8],
    make: Callable[[], None],
) -> None:
    """Decode a picture: a :data:`FillPicture` that keeps none."""
    make()


class Needs:
    """The kernel's columns that specs need; two specs that need the same one share it.

    Args:
        allocate: A function that gives the memory of large columns.
        share: A function that does many pieces of work, as :func:`one_by_one` does.
        fill_picture: A function that fills an array with a picture, as :func:`made_anew` does.
        claims: Takes note of the memory that columns claim.
    """

    def __init__(
        self,
        allocate: Allocate = fresh,
        share: Share = one_by_one,
        fill_picture: FillPicture = made_anew,
        claims: Claims | None = None,
    ) -> None:
        self.by_name: dict[str, Need] = {}
        self.numbers: dict[str, int] = {}
        self.allocate = allocate
        self.share = share
        self.fill_picture = fill_picture
        self.claims = Claims() if claims is None else claims

    @property
    def plans(self) -> list[ColumnPlan]:
        """The plans for the kernel, in the order of the numbers that :meth:`add` gave."""
        return [need.plan for need in self.by_name.values()]

    def add(self, plan: ColumnPlan, dtype: str, shape: tuple[int, ...] = ()) -> int:
        """Ask for a column.

        Args:
            plan: The column.
            dtype: The spec's dtype.
            shape: The spec's shape.

        Returns:
            The column's number.

        Raises:
            ConfigError: Another spec needs another column of the same feature.
        """
        known = self.by_name.setdefault(plan.name, Need(plan, dtype, shape))
        if known.plan != plan:
            raise ConfigError(
                f"feature {plan.name!r} is needed as {_words(known.plan)} and as {_words(plan)}, "
                "but can be parsed in one way at a time; leave one of the specs out"
            )
        return self.numbers.setdefault(plan.name, len(self.numbers))

    def getter(
        self, plan: ColumnPlan, dtype: str, shape: tuple[int, ...] = ()
    ) -> Callable[[Sequence[Any]], Any]:
        """Ask for a column as :meth:`add` does; return a function that takes it out of all.

        Of a feature that another column has already, the function returns a copy, so that no two
        columns of a batch share memory.
        """
        is_taken = plan.name in self.by_name
        get = itemgetter(self.add(plan, dtype, shape))
        return (lambda columns: _copied(get(columns))) if is_taken else get


def _copied(column: Any) -> Any:
    if isinstance(column, Ragged):
        return Ragged(_copied(column.values), aligned_copy(column.row_splits))
    if isinstance(column, BytesColumn):
        octets, offsets = aligned_copy(column.values), aligned_copy(column.offsets)
        return BytesColumn(octets, offsets, column.item_shape, len(column))
    return aligned_copy(column)


def _words(plan: ColumnPlan) -> str:
    missing = ", never absent" if plan.kind is ColumnKind.STEPS and plan.default is None else ""
    return f"{plan.kind.value} {plan.dtype.value}{missing}"


def values_of(name: str, dtype: str, needs: Needs, kind: ColumnKind) -> Make:
    """Return a function that gives a feature's values, any number a row; it may be absent."""
    default = () if kind is ColumnKind.STEPS else None
    return column_of(ColumnPlan(name, kind, HELD_AS[dtype], default=default), dtype, needs)


def column_of(plan: ColumnPlan, dtype: str, needs: Needs, shape: tuple[int, ...] = ()) -> Make:
    """Return a function that gives a planned column, narrowed to a spec's dtype.

    Args:
        plan: The kernel's column.
        dtype: The spec's dtype.
        needs: Receives the plan.
        shape: The spec's shape, for errors.
    """
    get, name = needs.getter(plan, dtype, shape), plan.name
    if dtype == HELD_AS[dtype].value:
        return get

    def make(columns: Sequence[Column]) -> Column:
        try:
            return _narrow(get(columns), dtype)
        except Overflow as overflow:
            least, greatest = range_of(dtype)
            raise ColumnFault(
                overflow.index,
                name,
                f"the record holds {overflow.value}, but {dtype} is {least} to {greatest}; "
                f"give the spec the dtype {HELD_AS[dtype].value!r}",
            ) from None

    return make


def _narrow(column: Any, dtype: str) -> npt.NDArray[Any] | Ragged:
    """Convert a column to another dtype; the index of an :class:`Overflow` is that of the row."""
    try:
        if isinstance(column, Ragged):
            return Ragged(_narrow(column.values, dtype), column.row_splits)
        return narrow(column, dtype)
    except Overflow as overflow:
        raise Overflow(row_of(overflow.index, column), overflow.value) from None


def row_of(index: int, column: npt.NDArray[Any] | Ragged) -> int:
    """Return the row of a value, given the value's place among all."""
    if isinstance(column, Ragged):
        return int(np.searchsorted(column.row_splits, index, "right")) - 1
    return index // (column.size // len(column))
