"""The origin of a batch's rows, and the error for a column that a batch does not have."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from streamrec.suggestions import nearest

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from streamrec.values.columns import Indices


class Origin(NamedTuple):
    """The shard and the record that each row of a batch came from."""

    shards: npt.NDArray[np.int32]
    """int32 ``[n]``: the shard's number in ``stream.shards``; -1 for padding."""
    records: Indices
    """int64 ``[n]``: the record's number in its shard; -1 for padding."""


class Components(NamedTuple):
    """The components of a mix, sorted by name; each has a range of consecutive shard numbers."""

    names: tuple[str, ...]
    first_shards: tuple[int, ...]
    """The number of each component's first shard, in ascending order."""

    def of(self, shards: npt.NDArray[np.int32]) -> Indices:
        """Return the index of the component that each shard belongs to; -1 for shard -1."""
        # Padding has shard -1, which is left of the first: so it belongs to component -1.
        return np.searchsorted(np.array(self.first_shards), shards, "right") - 1

    def rows_of(self, shards: npt.NDArray[np.int32]) -> dict[str, int]:
        """Count the rows of each component, given the shard of every row."""
        # One more, as bincount takes no -1, which is padding.
        counts = np.bincount(self.of(shards) + 1, minlength=len(self.names) + 1)
        return dict(zip(self.names, counts[1:].tolist(), strict=True))


class NoColumn(KeyError):
    """The error for a column that a batch does not have.

    Args:
        name: The column's name.
        columns: The names of those that it has.
    """

    def __init__(self, name: object, columns: Iterable[str] = ()) -> None:
        super().__init__(name)
        self._columns = tuple(columns)

    def __str__(self) -> str:
        return (
            f"the batch has no column {self.args[0]!r}{nearest(str(self.args[0]), self._columns)}"
        )
