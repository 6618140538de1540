"""Rows that are columns already, as references to records are rows that are not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Self, TypeAlias, cast

import numpy as np

from streamrec import kernel
from streamrec.kernel.contract import Run
from streamrec.types import RecordRows

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from streamrec.types import ByteArray, Indices

__all__ = ["ColumnRows", "Rows", "interleaved", "joined"]

Columns: TypeAlias = "dict[str, npt.NDArray[Any]]"


@dataclass(frozen=True, slots=True, eq=False)
class ColumnRows:
    """Rows of dense columns in the order in which they are delivered, as references to them.

    So rows are merged, ordered and cut by their indices, and copied once, into their batch. The
    arrays of indices are contiguous.
    """

    buffers: tuple[Columns, ...]
    """``[rows, ...]`` each, by name; all of the same names, dtypes and shapes."""
    buffer_index: npt.NDArray[np.int32]
    """int32 ``[n]``: the buffer of each row."""
    places: Indices
    """int64 ``[n]``: its place there."""
    shards: npt.NDArray[np.int32]
    """int32 ``[n]``: the shard that each row begins in."""
    ordinals: Indices
    """int64 ``[n]``: the number in its shard of the record that each row begins with."""

    @classmethod
    def of(cls, columns: Columns, shards: npt.NDArray[np.int32], ordinals: Indices) -> Self:
        """All rows of some columns."""
        n = len(shards)
        return cls((columns,), np.zeros(n, np.int32), np.arange(n), shards, ordinals)

    @classmethod
    def from_references(cls, rows: RecordRows) -> Self:
        """Those of which these are the :attr:`references`, in another order or number."""
        columns = cast("tuple[Columns, ...]", rows.buffers)
        return cls(columns, rows.buffer_index, rows.offsets, rows.shards, rows.ordinals)

    @classmethod
    def concatenate(cls, parts: Sequence[ColumnRows]) -> ColumnRows:
        """All rows of all parts, in that order."""
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
        """The rows from ``first`` to before ``last``; holds all the buffers."""
        return self._pick(slice(first, last))

    def take(self, rows: Indices) -> ColumnRows:
        """Some of the rows, in the order of the indices; holds the buffers of these alone."""
        return self._pick(rows).prune()

    def prune(self) -> ColumnRows:
        """The same rows, without the buffers that none of them is in."""
        used, index = np.unique(self.buffer_index, return_inverse=True)
        buffers = tuple(self.buffers[k] for k in used.tolist())
        return replace(self, buffers=buffers, buffer_index=index.astype(np.int32))

    def columns(self) -> Columns:
        """The rows' columns, in memory of their own."""
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
        """The rows as the kernel moves rows, which looks into no buffer: by place, not offset."""
        buffers = cast("tuple[ByteArray, ...]", self.buffers)
        places, lengths = self.places, self.lengths
        return RecordRows(buffers, self.buffer_index, places, lengths, self.shards, self.ordinals)

    @property
    def lengths(self) -> Indices:
        """int64 ``[n]``: the bytes of each row, the same for all."""
        columns = self.buffers[0].values() if self.buffers else ()
        return np.full(len(self), sum(column[:1].nbytes for column in columns))

    @property
    def nbytes(self) -> int:
        """The size of their columns together."""
        return int(self.lengths[:1].sum()) * len(self)


Rows: TypeAlias = RecordRows | ColumnRows


def joined(parts: Sequence[Rows]) -> Rows:
    """All rows of all parts, which are of one kind; of no parts, no records."""
    kind: Any = type(parts[0]) if parts else RecordRows
    return kind.concatenate(parts)  # type: ignore[no-any-return]


def interleaved(
    lanes: Sequence[Sequence[Run[Rows]]], keys: Indices
) -> tuple[Rows, Indices, Indices]:
    """The rows of several lanes, which are of one kind, in the order of their keys.

    Returns:
        Them, their epochs and the running sums of their sizes: see :func:`kernel.interleave`.
    """
    if isinstance(next(chain.from_iterable(lanes)).rows, RecordRows):
        return kernel.interleave(cast("Sequence[Sequence[Run[RecordRows]]]", lanes), keys)
    references = [[_by_reference(run) for run in runs] for runs in lanes]
    rows, epochs, ends = kernel.interleave(references, keys)
    return ColumnRows.from_references(rows), epochs, ends


def _by_reference(run: Run[Rows]) -> Run[RecordRows]:
    rows = run.rows.references if isinstance(run.rows, ColumnRows) else run.rows
    return Run(rows, run.first, run.last, run.epoch)
