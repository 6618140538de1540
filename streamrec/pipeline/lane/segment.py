"""The ends of a lane: the source of its records, and segments of rows that are ready."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from streamrec.pipeline.lane.mix_source import Mix
    from streamrec.pipeline.lane.open_shards import OpenShards
    from streamrec.pipeline.lane.record_reader import RecordReader
    from streamrec.values.columns import Indices
    from streamrec.values.record_rows import RecordRows

Source: TypeAlias = "RecordReader | Mix | OpenShards"
"""A source of a lane's records."""


@dataclass(slots=True, eq=False)
class Segment:
    """Rows of one epoch that are ready, in the order of delivery."""

    rows: RecordRows
    epoch: int
    end: Callable[[int], Sequence[int] | Indices]
    """Returns the lane's coordinates behind a row, as numbers."""
    merged: int = 0
    """The number of rows that the round robin has taken."""
    delivered: int = 0
    """The number of rows that are in a batch."""
    row_bytes: float = 0
    """The mean size of a row's payload in bytes."""
