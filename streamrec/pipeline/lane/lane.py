"""The lane: it takes records from its source through its stages and keeps those that are ready."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, TypeAlias

from streamrec.errors import StreamrecError
from streamrec.pipeline.fetch.demand import Demand
from streamrec.plan.coordinates import Coordinates
from streamrec.values.records import Run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamrec.pipeline.lane.filter_stage import FilterStage
    from streamrec.pipeline.lane.mix_source import Mix
    from streamrec.pipeline.lane.open_shards import OpenShards
    from streamrec.pipeline.lane.ordering_stages import Segment, Segments, Stage
    from streamrec.pipeline.lane.packing_stage import Packing
    from streamrec.pipeline.lane.record_reader import RecordReader
    from streamrec.values.columns import Indices

__all__ = ["Lane", "Source"]

Source: TypeAlias = "RecordReader | Mix | OpenShards"
"""A source of a lane's records."""


class Lane:
    """A lane of a run: its source, its stages and the rows that are ready.

    Args:
        source: The source of its records.
        stage: Orders the records.
        start: The coordinates that the lane begins at.
        filter_stage: Gives the source's records that the user's filter keeps.
        packing: Packs the records.
        record_size: The mean size of a record in bytes, until records tell.
    """

    def __init__(
        self,
        source: Source,
        stage: Stage,
        start: Coordinates,
        *,
        filter_stage: FilterStage | None = None,
        packing: Packing | None = None,
        record_size: float = 0,
    ) -> None:
        self.error: StreamrecError | None = None
        """The error that follows the available rows."""
        self.available = 0
        """The number of rows that are ready to be merged."""
        self.ended = False
        """True when no rows will follow the available ones."""
        self.start = start
        """The coordinates that the lane began at."""
        self._source = source
        self._stage = stage
        self._records = filter_stage or source
        self._packing = packing
        self.record_size = record_size
        """The mean size of a record in bytes."""
        self._ready = 0.0  # the bytes of the available rows
        self._segments: deque[Segment] = deque()

    def poll(self, wanted: int) -> None:
        """Read received records until ``wanted`` rows are available."""
        try:
            while self.available < wanted and self.error is None and self._advance():
                pass
        except StreamrecError as error:
            self.error = error

    def take(self, count: int) -> list[Run]:
        """Take the next ``count`` rows for the round robin."""
        runs = []
        self.available -= count
        for segment in self._segments:
            if not count:
                break
            first, rows = segment.merged, segment.rows
            if given := min(count, len(rows) - first):
                count -= given
                segment.merged = first + given
                runs.append(Run(rows.part(first, first + given), segment.epoch))
                self._ready -= segment.row_bytes * given
        if not self.available:
            self._ready = 0  # a sum of fractions, so clear its rounding error
        return runs

    def deliver(self, count: int) -> Sequence[int] | Indices:
        """Mark ``count`` more rows as delivered; return the coordinates behind them as numbers."""
        while True:
            segment = self._segments[0]
            segment.delivered += count
            count = segment.delivered - len(segment.rows)
            if count < 0:
                return segment.end(segment.delivered - 1)
            self._segments.popleft()
            if not count:
                return segment.end(len(segment.rows) - 1)

    def demand(self, number: int) -> Demand:
        """Return the lane's demand of its feed of that number."""
        return self._source.demand(number, Demand(self._ready, self._stage.lacks))

    @property
    def waits_for(self) -> str:
        """The name of the stage that the lane's next records are in."""
        return "pack" if self._packing else self._records.waits_for

    @property
    def component(self) -> int:
        """The source that the lane's next record comes from, if it draws from several; else 0."""
        return self._source.component

    def _advance(self) -> bool:
        """Take one step; return whether there was anything to do."""
        packing = self._packing
        if packing is None:
            return self._take_records()
        segment = packing.pop()
        if segment is not None:
            self._append(segment)
        if segment is not None or packing.full:
            return segment is not None
        try:
            return self._take_records()
        except StreamrecError as error:
            packing.put(error)  # the records being packed come before it
            return True

    def _take_records(self) -> bool:
        """Order the next records; return whether there was anything to do."""
        item = self._records.pop()
        if item is None:
            is_new = self._records.ended and not self.ended and not self._packing
            self.ended = self.ended or is_new
            return is_new
        if not isinstance(item, Coordinates):
            self._add(self._stage.add(item))
            return True
        self._add(self._stage.end_epoch(item))
        if self._packing is not None:
            self._packing.put(item)
        return True

    def _add(self, segments: Segments) -> None:
        for segment in segments:
            self.record_size = segment.rows.nbytes / len(segment.rows)
            if self._packing is not None:
                self._packing.put(segment)
            else:
                self._append(segment)

    def _append(self, segment: Segment) -> None:
        """Make a segment's rows available."""
        nbytes, count = segment.rows.nbytes, len(segment.rows)
        segment.row_bytes = nbytes / count
        self._segments.append(segment)
        self.available += count
        self._ready += nbytes
