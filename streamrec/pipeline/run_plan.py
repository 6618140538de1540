"""What one rank is to deliver in a run, and where its lanes begin and end."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from typing import TYPE_CHECKING

from streamrec.pipeline.functions import NONE, Functions
from streamrec.pipeline.quarantine import keeps_places
from streamrec.pipeline.stages import Coordinates
from streamrec.plan.position import Position
from streamrec.plan.record_order import RecordOrder
from streamrec.plan.record_run import RecordRun
from streamrec.plan.window import Windows

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    import numpy.typing as npt

    from streamrec.config import DatasetSettings
    from streamrec.plan.order import Extent, Order
    from streamrec.plan.ranges import MemoryPlan
    from streamrec.plan.record_order import ChunkWindows

__all__ = ["RunPlan"]


@dataclass(frozen=True)
class RunPlan:
    """What one rank is to deliver."""

    settings: DatasetSettings
    order: Order
    position: Position
    memory: MemoryPlan
    batch_size: int | None
    remainder: str
    functions: Functions = NONE
    windows: Windows | ChunkWindows | None = None
    """``None``: nothing is shuffled."""

    @cached_property
    def by_record(self) -> RecordRun | None:
        """The arithmetic of a run in the order by record, as long as its counts are known."""
        if self.position.since is None:
            return None
        assert isinstance(self.order, RecordOrder)
        assert not isinstance(self.windows, Windows)
        return RecordRun(
            self.order,
            self.windows,
            self.own_lanes,
            self.batch_size,
            *self.position.since,
            self.end_epoch,
            self.remainder,
        )

    @property
    def starts(self) -> npt.NDArray[np.int64]:
        """Where the lanes begin, as in a position by shard."""
        run = self.by_record
        return self.position.lanes if run is None else run.starts(self.position.step)

    def rows(self, step: int) -> int:
        """The records of that step's batch, as far as they are there; 1 for single records."""
        return self.batch_size or 1 if self.by_record is None else self.by_record.rows(step)

    @property
    def own_lanes(self) -> range:
        """The numbers of the rank's lanes."""
        return range(self.position.rank, self.order.lanes, self.position.world_size)

    @property
    def keeps_places(self) -> bool:
        """Whether a damaged record becomes padding, so that those behind it keep their places."""
        return keeps_places(self.settings, self.batch_size)

    @property
    def end_epoch(self) -> int | None:
        """The epoch of records before which the run ends; ``None``: it is not ended by records."""
        epochs = self.settings.epochs
        if epochs is None or self.settings.steps_per_epoch is not None:
            return None
        return self.position.run_epoch + epochs

    @property
    def end_step(self) -> int | None:
        """The step at which the run ends; ``None``: it is not ended by steps."""
        epochs, steps = self.settings.epochs, self.settings.steps_per_epoch
        if epochs is None or steps is None:
            return self.by_record.end_step if self.by_record else None
        return (self.position.run_epoch + epochs) * steps

    def extents(self, lane: int, number: int) -> Iterator[Extent]:
        """The lane's extents from ``number`` on, to the end of the run."""
        endless = self.order.extents(lane, number)
        end = self.end_epoch
        return endless if end is None else takewhile(lambda extent: extent.epoch < end, endless)

    def lane_end(self, lane: int) -> Coordinates:
        """Where the lane stands after the run."""
        end = self.end_epoch
        number = self.order.first(lane, end) if end is not None else 0
        return Coordinates(number, 0, 0)

    def next_run(self, position: Position) -> Position:
        """Where the run after this one begins, when this one has ended at ``position``."""
        epoch = position.run_epoch + (self.settings.epochs or 0)
        if self.end_epoch is None:
            return replace(position, run_epoch=epoch)
        return Position.start(
            position.fingerprint,
            [self.order.first(lane, epoch) for lane in self.own_lanes],
            rank=position.rank,
            world_size=position.world_size,
            epoch=epoch,
            step=position.step,
        )
