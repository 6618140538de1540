"""A lane: from its records to the order in which it delivers them."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from streamrec.errors import StreamrecError
from streamrec.kernel.contract import Run
from streamrec.pipeline.stages import Coordinates, Segment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamrec.pipeline.column_rows import Rows
    from streamrec.pipeline.filter_stage import FilterStage
    from streamrec.pipeline.packing import Packing
    from streamrec.pipeline.record_reader import Source
    from streamrec.pipeline.stages import Segments, Stage
    from streamrec.types import Indices

__all__ = ["Lane"]


class Lane:
    """Takes one lane's records as they come, and keeps what is ready.

    Args:
        source: Where they come from.
        stage: What is done to the order.
        start: Where the lane stands.
        filter_stage: Leaves out what the filter does not keep.
        packing: Makes packs of the records.
    """

    def __init__(
        self,
        source: Source,
        stage: Stage,
        start: Coordinates,
        *,
        filter_stage: FilterStage | None = None,
        packing: Packing | None = None,
    ) -> None:
        self.error: StreamrecError | None = None
        """Why nothing comes after what is available."""
        self.available = 0
        """Rows that are ready to be merged."""
        self.ended = False
        """Whether nothing will come after what is available."""
        self.start = start
        """Where the lane stood at first."""
        self._source = source
        self._stage = stage
        self._filter_stage = filter_stage
        self._packing = packing
        self._segments: deque[Segment] = deque()

    def poll(self, wanted: int) -> None:
        """Read what has been received, until so many rows are available."""
        try:
            while self.available < wanted and self.error is None and self._advance():
                pass
        except StreamrecError as error:
            self.error = error
        self._source.progress.lacks = self._stage.lacks

    def take(self, count: int) -> list[Run[Rows]]:
        """The next ``count`` rows for the round robin."""
        runs, progress = [], self._source.progress
        self.available -= count
        for segment in self._segments:
            if not count:
                break
            first, rows = segment.merged, segment.rows
            if given := min(count, len(rows) - first):
                count -= given
                segment.merged = first + given
                runs.append(Run(rows, first, first + given, segment.epoch))
                progress.ready -= segment.row_bytes * given
        if not self.available:
            progress.ready = 0  # it is a sum of fractions
        return runs

    def deliver(self, count: int) -> Sequence[int] | Indices:
        """So many rows more are in a batch; the lane's coordinates behind them, as numbers."""
        while True:
            segment = self._segments[0]
            segment.delivered += count
            count = segment.delivered - len(segment.rows)
            if count < 0:
                return segment.end(segment.delivered - 1)
            self._segments.popleft()
            if not count:
                return segment.end(len(segment.rows) - 1)

    @property
    def waits_for(self) -> str:
        """The stage that the lane's next records are in."""
        if self._packing or self._filter_stage:
            return "pack" if self._packing else "filter"
        return self._source.waits_for

    @property
    def component(self) -> int:
        """The component of a mix that the lane's next records are of; 0 where there is no mix."""
        return self._source.component

    @property
    def refetched(self) -> int:
        """Faults that were gone when the bytes were read once more."""
        return self._source.refetched

    def _advance(self) -> bool:
        """Go one step on, if something is there; whether it is."""
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
            packing.put(error)  # what is being packed comes before it
            return True

    def _take_filtered(self) -> bool:
        """Take what comes next, filtered; whether something is there."""
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
        """Have the filter asked about what comes next; whether something does."""
        try:
            item = self._source.pop()
        except StreamrecError as error:
            filter_stage.put(error)  # what is being sifted comes before it
            return True
        if item is None:
            return not filter_stage and self._finish()
        filter_stage.put(item)
        return True

    def _finish(self) -> bool:
        """Whether this is found out now: that the lane has ended."""
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
            self._source.progress.record = segment.rows.nbytes / len(segment.rows)
            if self._packing is not None:
                self._packing.put(segment)
            else:
                self._append(segment)

    def _append(self, segment: Segment) -> None:
        """Rows are ready."""
        nbytes, count = segment.rows.nbytes, len(segment.rows)
        segment.row_bytes = nbytes / count
        self._segments.append(segment)
        self.available += count
        self._source.progress.ready += nbytes
