"""The lane: it takes records from its source through its stages and keeps those that are ready."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from streamrec.errors import StreamrecError
from streamrec.pipeline.fetch.demand import Demand
from streamrec.plan.coordinates import Coordinates
from streamrec.values.records import Run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamrec.pipeline.lane.filter_stage import FilterStage
    from streamrec.pipeline.lane.lane_sources import Source
    from streamrec.pipeline.lane.ordering_stages import Segment, Segments, Stage
    from streamrec.pipeline.lane.packing_stage import Packing
    from streamrec.values.columns import Indices

__all__ = ["Lane"]


class Lane:
    """A lane of a run: its source, its stages and the rows that are ready.

    Args:
        source: The source of its records.
        stage: Orders the records.
        start: The coordinates that the lane begins at.
        filter_stage: Drops the records that the user's filter does not keep.
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
        self._filter_stage = filter_stage
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
        if self._packing or self._filter_stage:
            return "pack" if self._packing else "filter"
        return self._source.waits_for

    @property
    def component(self) -> int:
        """The source that the lane's next record comes from, if it draws from several; else 0."""
        return self._source.component

    def _advance(self) -> bool:
        """Take one step; return whether there was anything to do."""
        packing = self._packing
        if packing is None:
            return self._take_filtered()
        segment = packing.pop()
        if segment is not None:
            self._append(segment)
        if segment is not None or packing.full:
            return segment is not None
        try:
            return self._take_filtered()
        except StreamrecError as error:
            packing.put(error)  # the records being packed come before it
            return True

    def _take_filtered(self) -> bool:
        """Take the next records that passed the filter; return whether there was anything to do."""
        filter_stage = self._filter_stage
        item = self._source.pop() if filter_stage is None else filter_stage.pop()
        if isinstance(item, Coordinates):
            self._end_epoch(item)
        elif item is not None:
            self._add(self._stage.add(item))
        elif filter_stage is None:
            return self._finish()
        else:
            return not filter_stage.full and self._fill(filter_stage)
        return True

    def _fill(self, filter_stage: FilterStage) -> bool:
        """Give the next records to the filter; return whether there was anything to give."""
        try:
            item = self._source.pop()
        except StreamrecError as error:
            filter_stage.put(error)  # the records being filtered come before it
            return True
        if item is None:
            return not filter_stage and self._finish()
        filter_stage.put(item)
        return True

    def _finish(self) -> bool:
        """Mark the lane as ended if its source has; return whether that is new."""
        if self.ended or not self._source.ended:
            return False
        self.ended = not self._packing
        return self.ended

    def _end_epoch(self, following: Coordinates) -> None:
        self._add(self._stage.end_epoch(following))
        if self._packing is not None:
            self._packing.put(following)

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
