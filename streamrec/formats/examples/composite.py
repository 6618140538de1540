"""Columns made of several features: ragged ones with partitions, and sparse ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec.formats.examples.faults import ColumnFault
from streamrec.formats.examples.needs import Make, Needs, narrowed, row_of, values_of
from streamrec.formats.examples.partitions import Misfit, partitioned
from streamrec.formats.examples.specs import RaggedFeature, SparseFeature, UniformRowLength
from streamrec.kernel.contract import Kind
from streamrec.values.columns import BytesColumn, Ragged, Sparse

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from streamrec.values.columns import Column

__all__ = ["compile_ragged", "compile_sparse"]


def compile_ragged(name: str, spec: RaggedFeature, needs: Needs, kind: Kind) -> Make:
    """Return a function that makes a ragged column.

    Its values are an Example's list (``VARLEN``) or the steps of a feature list (``STEPS``).
    """
    key = spec.value_key or name
    get = narrowed(values_of(key, spec.dtype, needs, kind), spec.dtype, key)
    parts = [
        (each, None if isinstance(each, UniformRowLength) else each.key)
        for each in reversed(spec.partitions)
    ]
    keys = [by and values_of(by, "int64", needs, kind) for _, by in parts]

    def make(columns: Sequence[Column]) -> Column:
        column: Any = get(columns)
        outer: Any = column if kind is Kind.STEPS else None
        column = column.values if outer is not None else column
        for (partition, by), numbers_of in zip(parts, keys, strict=True):
            numbers = numbers_of(columns) if numbers_of else None
            if outer is not None and numbers is not None:
                numbers = _aligned(numbers, outer, by, key)
            try:
                column = partitioned(column, partition, numbers)
            except Misfit as misfit:
                row = misfit.record if outer is None else row_of(misfit.record, outer)
                raise ColumnFault(row, by or key, _no_fit(by, key, misfit.why)) from None
        return column if outer is None else Ragged(column, outer.row_splits)

    return make


def _aligned(numbers: Ragged, outer: Ragged, by: str | None, key: str) -> Any:
    """Return the steps of a partition's feature; each record must have as many as of values."""
    odd = np.flatnonzero(np.diff(numbers.row_splits) != np.diff(outer.row_splits))
    if len(odd):
        why = "it has another number of steps"
        raise ColumnFault(int(odd[0]), by or key, _no_fit(by, key, why))
    return numbers.values


def _no_fit(by: str | None, key: str, why: str) -> str:
    what = "the number of values is" if by is None else f"does not partition feature {key!r}:"
    return f"{what} {why}; correct the partitions, or leave them out"


def compile_sparse(spec: SparseFeature, needs: Needs) -> Make:
    """Return a function that makes a sparse column."""
    places = [values_of(key, "int64", needs, Kind.VARLEN) for key in spec.index_keys]
    key = spec.value_key
    get = narrowed(values_of(key, spec.dtype, needs, Kind.VARLEN), spec.dtype, key)

    def make(columns: Sequence[Column]) -> Column:
        column: Any = get(columns)
        rows = np.repeat(np.arange(len(column)), np.diff(column.row_splits))
        indices = [rows]
        for index_key, of, size in zip(spec.index_keys, places, spec.sizes, strict=True):
            indices.append(_checked_places(of(columns), column, rows, index_key, size))
        shape = (len(column), *spec.sizes)
        found = np.stack(indices, axis=1)
        if spec.already_sorted:
            return Sparse(found, column.values, shape)
        return _sorted(found, column.values, shape)

    return make


def _checked_places(
    places: Any, column: Ragged, rows: npt.NDArray[np.int64], key: str, size: int
) -> npt.NDArray[np.int64]:
    odd = np.flatnonzero(np.diff(places.row_splits) != np.diff(column.row_splits))
    if len(odd):
        held, wanted = (int(np.diff(each.row_splits)[odd[0]]) for each in (places, column))
        raise ColumnFault(
            int(odd[0]),
            key,
            f"the record holds {held} places for {wanted} values; write one place for each value",
        )
    numbers: npt.NDArray[np.int64] = places.values
    wrong = (numbers < 0) | (numbers >= size)
    if wrong.any():
        first = int(wrong.argmax())
        raise ColumnFault(
            int(rows[first]),
            key,
            f"the record holds place {numbers[first]}, but the spec's size is {size}; correct the "
            "size, or the record",
        )
    return numbers


def _sorted(indices: npt.NDArray[np.int64], values: Any, shape: tuple[int, ...]) -> Sparse:
    """Sort the values by their places; values with the same place keep their order."""
    order = np.lexsort(indices.T[::-1])
    if isinstance(values, BytesColumn):
        strings = values.to_list()
        return Sparse(indices[order], BytesColumn.of([strings[i] for i in order.tolist()]), shape)
    return Sparse(indices[order], values[order], shape)
