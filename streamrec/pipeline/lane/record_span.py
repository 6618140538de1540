"""Spans of records, as a reader finds them in an extent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from streamrec.formats.shards.tfrecord import HEADER
from streamrec.plan.coordinates import OWN, Coordinates
from streamrec.plan.window import FRAME_OVERHEAD
from streamrec.values.records import RecordRows

if TYPE_CHECKING:
    from streamrec.plan.order import Extent
    from streamrec.values.columns import Indices
    from streamrec.values.records import RecordBlock

__all__ = ["RecordSpan"]


@dataclass(frozen=True, slots=True, eq=False)
class RecordSpan:
    """Records of one extent in their order, some of them perhaps filtered out."""

    extent: Extent
    rows: RecordRows
    begins: Indices
    """int64 ``[rows]``: the offsets of the records' frames in the shard, in bytes."""
    lengths: Indices
    """int64 ``[rows]``: the payloads' sizes in the shard, in bytes, damaged ones included."""

    @classmethod
    def of(cls, extent: Extent, block: RecordBlock) -> Self:
        """Make a span of all records of a block."""
        begins = block.offsets + (block.base - HEADER)
        return cls(extent, RecordRows.from_block(block), begins, block.lengths)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def ends(self) -> Indices:
        """int64 ``[rows, numbers]``: the lane's coordinates behind each record."""
        ends = np.empty((len(self), OWN), np.int64)
        ordinals = self.rows.ordinals
        ends[:, 0] = self.extent.number
        ends[:, 1] = self.begins + self.lengths + FRAME_OVERHEAD
        ends[:, 2] = np.maximum(ordinals, ~ordinals) + 1
        ends[:, 3:] = 0
        return ends

    def keep(self, kept: Indices, rows: RecordRows) -> RecordSpan:
        """Return the records that a filter keeps; ``rows`` refer to their bytes."""
        return RecordSpan(self.extent, rows, self.begins[kept], self.lengths[kept])

    def cut(self, first: int, last: int | None) -> RecordSpan:
        """Return the records from ``first`` to before ``last``."""
        places = slice(first, last)
        rows = self.rows.part(first, last)
        return RecordSpan(self.extent, rows, self.begins[places], self.lengths[places])

    def before(self, row: int) -> Coordinates:
        """Return the coordinates of a lane whose next record is this one."""
        return Coordinates(self.extent.number, self.begins.item(row), self._ordinal(row))

    def after(self, row: int) -> Coordinates:
        """Return the coordinates of a lane whose last record was this one."""
        end = self.begins.item(row) + self.lengths.item(row) + FRAME_OVERHEAD
        return Coordinates(self.extent.number, end, self._ordinal(row) + 1)

    def _ordinal(self, row: int) -> int:
        ordinal: int = self.rows.ordinals.item(row)
        return ordinal if ordinal >= 0 else ~ordinal
