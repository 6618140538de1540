"""Rows that are columns already, as references to records are rows that are not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from streamrec.types import RecordRows

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from streamrec.types import Indices

__all__ = ["ColumnRows", "Rows", "joined"]


@dataclass(frozen=True, slots=True, eq=False)
class ColumnRows:
    """Rows of dense columns, in the order in which they are delivered."""

    columns: dict[str, npt.NDArray[Any]]
    """``[n, ...]`` each."""
    shards: npt.NDArray[np.int32]
    """int32 ``[n]``: the shard that each row begins in."""
    ordinals: Indices
    """int64 ``[n]``: the number in its shard of the record that each row begins with."""

    @classmethod
    def concatenate(cls, parts: Sequence[ColumnRows]) -> ColumnRows:
        """All rows of all parts, in that order."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            {
                name: np.concatenate([part.columns[name] for part in parts])
                for name in parts[0].columns
            },
            np.concatenate([part.shards for part in parts]),
            np.concatenate([part.ordinals for part in parts]),
        )

    def part(self, first: int, last: int | None) -> ColumnRows:
        """The rows from ``first`` to before ``last``, as views."""
        return self._pick(slice(first, last))

    def take(self, rows: Indices) -> ColumnRows:
        """Some of the rows, in the order of the indices."""
        return self._pick(rows)

    def reorder(self, order: Indices) -> ColumnRows:
        """All of the rows in another order, which is a permutation of them."""
        return self._pick(order)

    def prune(self) -> ColumnRows:
        """The same rows, in memory of their own."""
        columns = {name: column.copy() for name, column in self.columns.items()}
        return ColumnRows(columns, self.shards, self.ordinals)

    def _pick(self, rows: Indices | slice) -> ColumnRows:
        columns = {name: column[rows] for name, column in self.columns.items()}
        return ColumnRows(columns, self.shards[rows], self.ordinals[rows])

    def __len__(self) -> int:
        return len(self.shards)

    @property
    def buffers(self) -> tuple[npt.NDArray[Any], ...]:
        """What holds memory."""
        return tuple(self.columns.values())

    @property
    def nbytes(self) -> int:
        """The columns' sizes together."""
        return sum(column.nbytes for column in self.columns.values())


Rows: TypeAlias = RecordRows | ColumnRows


def joined(parts: Sequence[Rows]) -> Rows:
    """All rows of all parts, which are of one kind; of no parts, no records."""
    kind: Any = type(parts[0]) if parts else RecordRows
    return kind.concatenate(parts)  # type: ignore[no-any-return]
