"""Rows of decoded columns, and functions for rows of either kind: records or columns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Self, TypeAlias, cast

import numpy as np

from streamrec import kernel
from streamrec.kernel.contract import Run
from streamrec.values.records import RecordRows

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from streamrec.values.columns import ByteArray, Indices

__all__ = ["ColumnRows", "Rows", "interleaved", "joined"]

Columns: TypeAlias = "dict[str, npt.NDArray[Any]]"


@dataclass(frozen=True, slots=True, eq=False)
class ColumnRows:
    """References to rows of dense columns, in the order of delivery.

    Rows are merged, ordered and cut by their indices, and copied only once, into their batch. The
    arrays of indices are contiguous.
    """

    buffers: tuple[Columns, ...]
    """Arrays ``[rows, ...]`` by name; all buffers have the same names, dtypes and shapes."""
    buffer_index: npt.NDArray[np.int32]
    """int32 ``[n]``: the buffer of each row."""
    places: Indices
    """int64 ``[n]``: the row's index in its buffer."""
    shards: npt.NDArray[np.int32]
    """int32 ``[n]``: the shard that each row begins in."""
    ordinals: Indices
    """int64 ``[n]``: the number, within the shard, of the record that each row begins with."""

    @classmethod
    def of(cls, columns: Columns, shards: npt.NDArray[np.int32], ordinals: Indices) -> Self:
        """Refer to all rows of some columns."""
        n = len(shards)
        return cls((columns,), np.zeros(n, np.int32), np.arange(n), shards, ordinals)

    @classmethod
    def from_references(cls, rows: RecordRows) -> Self:
        """Return the rows of :attr:`references` that were reordered or cut."""
        columns = cast("tuple[Columns, ...]", rows.buffers)
        return cls(columns, rows.buffer_index, rows.offsets, rows.shards, rows.ordinals)

    @classmethod
    def concatenate(cls, parts: Sequence[ColumnRows]) -> ColumnRows:
        """Join all rows of all parts, in that order."""
        if len(parts) == 1:
            return parts[0]
        counts = np.fromiter((len(part.buffers) for part in parts), np.int32, len(parts))
        first = (np.cumsum(counts, dtype=np.int32) - counts).tolist()
        return cls(
            tuple(buffer for part in parts for buffer in part.buffers),
            np.concatenate(
                [p.buffer_index + np.int32(k) for p, k in zip(parts, first, strict=True)]
            ),
            np.concatenate([part.places for part in parts]),
            np.concatenate([part.shards for part in parts]),
            np.concatenate([part.ordinals for part in parts]),
        )

    def part(self, first: int, last: int | None) -> ColumnRows:
        """Return the rows from ``first`` to before ``last``; they keep all buffers."""
        return self._pick(slice(first, last))

    def take(self, rows: Indices) -> ColumnRows:
        """Return some rows in the order of the indices; they keep only the buffers they need."""
        return self._pick(rows).prune()

    def prune(self) -> ColumnRows:
        """Return the same rows without the buffers that none of them is in."""
        used, index = np.unique(self.buffer_index, return_inverse=True)
        buffers = tuple(self.buffers[k] for k in used.tolist())
        return replace(self, buffers=buffers, buffer_index=index.astype(np.int32))

    def columns(self) -> Columns:
        """Copy the rows into columns of their own."""
        pieces = [np.flatnonzero(self.buffer_index == k) for k in range(len(self.buffers))]
        columns: Columns = {}
        for name, like in self.buffers[0].items():
            column = np.empty((len(self), *like.shape[1:]), like.dtype)
            for buffer, rows in zip(self.buffers, pieces, strict=True):
                column[rows] = buffer[name][self.places[rows]]
            columns[name] = column
        return columns

    def _pick(self, rows: Indices | slice) -> ColumnRows:
        return ColumnRows(
            self.buffers,
            self.buffer_index[rows],
            self.places[rows],
            self.shards[rows],
            self.ordinals[rows],
        )

    def __len__(self) -> int:
        return len(self.shards)

    @property
    def references(self) -> RecordRows:
        """The rows as the kernel moves them; it reads no buffer, so places stand for offsets."""
        buffers = cast("tuple[ByteArray, ...]", self.buffers)
        places, lengths = self.places, self.lengths
        return RecordRows(buffers, self.buffer_index, places, lengths, self.shards, self.ordinals)

    @property
    def lengths(self) -> Indices:
        """int64 ``[n]``: the bytes of each row; all have the same."""
        columns = self.buffers[0].values() if self.buffers else ()
        return np.full(len(self), sum(column[:1].nbytes for column in columns))

    @property
    def nbytes(self) -> int:
        """The total size of the rows in bytes."""
        return int(self.lengths[:1].sum()) * len(self)


Rows: TypeAlias = RecordRows | ColumnRows


def joined(parts: Sequence[Rows]) -> Rows:
    """Join all rows of all parts, which are of one kind; no parts give no records."""
    kind: Any = type(parts[0]) if parts else RecordRows
    return kind.concatenate(parts)  # type: ignore[no-any-return]


def interleaved(
    lanes: Sequence[Sequence[Run[Rows]]], keys: Indices
) -> tuple[Rows, Indices, Indices]:
    """Merge the rows of several lanes, which are of one kind, by their keys.

    Returns:
        The rows, their epochs and the running sums of their sizes: see :func:`kernel.interleave`.
    """
    if isinstance(next(chain.from_iterable(lanes)).rows, RecordRows):
        return kernel.interleave(cast("Sequence[Sequence[Run[RecordRows]]]", lanes), keys)
    references = [[_by_reference(run) for run in runs] for runs in lanes]
    rows, epochs, ends = kernel.interleave(references, keys)
    return ColumnRows.from_references(rows), epochs, ends


def _by_reference(run: Run[Rows]) -> Run[RecordRows]:
    rows = run.rows.references if isinstance(run.rows, ColumnRows) else run.rows
    return Run(rows, run.first, run.last, run.epoch)
