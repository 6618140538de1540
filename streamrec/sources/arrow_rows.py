"""The bytes that rows of Arrow take as plain values, known before they are made plain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from streamrec.sources.arrow_fields import module
from streamrec.values.columns import offsets_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    Sizes = npt.NDArray[np.int64]

_VIEW = 4
"""Numbers of 32 bits in a view of a text, of which the first is its length."""
_OFFSET = 8
"""Bytes that a value whose length is its own takes besides."""


def cut(batch: Any, rows: int, size: int) -> Iterator[tuple[int, int, int]]:
    """Yield the first row of each piece of a batch, the one past its last, and its bytes.

    Args:
        batch: The batch.
        rows: The most rows of a piece.
        size: The most bytes of a piece of more than one row.
    """
    for begin in range(0, batch.num_rows, rows):
        part = batch.slice(begin, rows)
        ends = np.cumsum(_of_columns(part.columns, part.num_rows))
        first, before = 0, 0
        while first < part.num_rows:
            stop = max(first + 1, int(np.searchsorted(ends, before + size, "right")))
            yield begin + first, begin + stop, int(ends[stop - 1]) - before
            first, before = stop, int(ends[stop - 1])


def row_sizes(array: Any) -> Sizes:
    """Return the bytes of each row of a column."""
    pyarrow = module("pyarrow")
    kind, types = array.type, pyarrow.types
    if isinstance(kind, pyarrow.BaseExtensionType):
        return row_sizes(array.storage)
    if types.is_struct(kind):
        return _of_columns(array.flatten(), len(array))
    if types.is_dictionary(kind):
        return _taken(row_sizes(array.dictionary), array.indices)
    if types.is_run_end_encoded(kind):
        return _of_runs(array)
    if types.is_fixed_size_list(kind):
        ends = offsets_of(row_sizes(array.values))
        bounds = (np.arange(len(array) + 1) + array.offset) * kind.list_size
        return cast("Sizes", np.diff(ends[bounds]))
    if hasattr(array, "offsets") and hasattr(array, "values"):
        return _of_lists(array)
    return _of_values(array)


def _of_columns(columns: list[Any], rows: int) -> Sizes:
    sizes = np.zeros(rows, np.int64)
    for column in columns:
        sizes += row_sizes(column)
    return sizes


def _taken(sizes: Sizes, indices: Any) -> Sizes:
    at = indices.fill_null(0).to_numpy(zero_copy_only=False)
    return sizes[at] if len(sizes) else np.zeros(len(at), np.int64)


def _of_runs(array: Any) -> Sizes:
    ends = array.run_ends.to_numpy(zero_copy_only=False)
    at = np.searchsorted(ends, np.arange(len(array)) + array.offset, "right")
    return cast("Sizes", row_sizes(array.values)[at])


def _of_lists(array: Any) -> Sizes:
    begins = array.offsets.to_numpy(zero_copy_only=False)
    views = getattr(array, "sizes", None)
    if views is None:
        begins, stops = begins[:-1], begins[1:]
    else:
        stops = begins + views.to_numpy(zero_copy_only=False)
    if not len(begins):
        return np.zeros(0, np.int64)
    first = int(begins.min())
    ends = offsets_of(row_sizes(array.values.slice(first, int(stops.max()) - first)))
    return cast("Sizes", ends[stops - first] - ends[begins - first] + _OFFSET)


def _of_values(array: Any) -> Sizes:
    types, kind = module("pyarrow").types, array.type
    if types.is_null(kind):
        return np.zeros(len(array), np.int64)
    if types.is_string_view(kind) or types.is_binary_view(kind):
        views = np.frombuffer(array.buffers()[1], np.int32).reshape(-1, _VIEW)
        return views[array.offset : array.offset + len(array), 0].astype(np.int64) + _OFFSET
    try:
        width = -(-kind.bit_width // 8)
    except ValueError:  # each value has its own
        lengths = module("pyarrow.compute").binary_length(array).fill_null(0)
        return cast("Sizes", lengths.to_numpy(zero_copy_only=False).astype(np.int64) + _OFFSET)
    return np.full(len(array), width, np.int64)
