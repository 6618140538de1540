"""The demo's ranks: a client each, and a count of what it received."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec.streams.opening import connect

if TYPE_CHECKING:
    import threading

    from streamrec.demo.plan import DemoPlan
    from streamrec.pipeline.batch.batch import Batch


class ReceivedRecords:
    """The count of the records that one rank has received.

    Args:
        plan: The records to receive.
        images: The pictures by label.
    """

    def __init__(self, plan: DemoPlan, images: list[bytes]) -> None:
        self.counts = np.zeros((plan.epochs, plan.records), np.int64)
        """int64 ``[epochs, records]``: the number of times that each record came in each epoch."""
        self.records = 0
        self.bytes = 0
        self.damaged = 0
        """The records that differ from what was written."""
        self._images = images

    def add(self, batch: Batch) -> None:
        """Count the records of one batch."""
        columns: dict[str, Any] = dict(batch)
        rows = zip(columns["id"].tolist(), columns["label"].tolist(), columns["image"], strict=True)
        for number, label, image in rows:
            if self._is_written(batch.epoch, number, label, image):
                self.counts[batch.epoch, number] += 1
            else:
                self.damaged += 1
            self.bytes += len(image) + 16
        self.records += len(batch)

    def _is_written(self, epoch: int, number: int, label: int, image: bytes) -> bool:
        epochs, records = self.counts.shape
        known = 0 <= epoch < epochs and 0 <= number < records
        return known and number % len(self._images) == label and image == self._images[label]


@dataclass
class DemoRank:
    """One rank: a client of the feeder, to be run in a thread of its own."""

    address: str
    number: int
    plan: DemoPlan
    received: ReceivedRecords
    stopping: threading.Event
    """An event that is set to end the demo early."""
    first_batch: float | None = None
    """The seconds from connecting to the first batch."""
    finished: float = 0.0
    """The time of the last batch, from ``time.perf_counter()``."""
    resumed_at: int | None = None
    """The step of the state from which it was resumed."""
    _started: float = field(default=0.0, repr=False)

    def run(self) -> None:
        """Take all batches; the plan's stopped rank stops in the middle, and then resumes."""
        self._started = time.perf_counter()
        stopped = self.number == self.plan.stopped_rank
        state = self._follow(None, self.plan.stop_step if stopped else None)
        if stopped and not self.stopping.is_set():
            state = json.loads(json.dumps(state))  # as a checkpoint on disk would hold it
            self.resumed_at = state["step"]
            self._follow(state, None)

    def _follow(self, state: dict[str, Any] | None, stop_step: int | None) -> dict[str, Any]:
        """Connect, take batches, and return the state after the last one."""
        # The demo closes its feeder to end early: a rank must not look for it again.
        stream = connect(self.address, rank=self.number, world_size=self.plan.ranks, retry_for=0.0)
        if state is not None:
            stream.load_state_dict(state)
        with stream:
            for step, batch in enumerate(stream, 1):
                self._enter(batch)
                if step == stop_step or self.stopping.is_set():
                    break
        return stream.state_dict()

    def _enter(self, batch: Batch) -> None:
        self.finished = time.perf_counter()
        if self.first_batch is None:
            self.first_batch = self.finished - self._started
        self.received.add(batch)
