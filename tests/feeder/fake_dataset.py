"""A dataset in memory, as a feeder serves it: batches whose position is their number."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Self

import numpy as np

from streamrec.config import DatasetSettings
from streamrec.errors import StateError
from streamrec.flow.channel import EndOfStream
from streamrec.flow.timings import Timings
from streamrec.pipeline.batch import payload
from streamrec.pipeline.batch.batch import Batch
from streamrec.pipeline.batch.origin import Origin
from streamrec.pipeline.terms.memory_needs import NO_CEILING, Measures, RunCeiling
from streamrec.plan.state.fingerprint import Fingerprint
from streamrec.plan.state.position import Position
from streamrec.plan.state.resume_point import Beginning
from streamrec.stores.base.protocol import ObjectInfo
from streamrec.values.columns import BytesColumn
from streamrec.wire.frame import allocate_aligned
from streamrec.wire.messages import BatchMessage

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamrec.kernel.contract import Allocate
    from streamrec.pipeline.served import Served, ServedRun
    from streamrec.plan.state.resume_point import ResumePoint
    from streamrec.values.columns import Column

LANES = 4
ROWS = 8


def fingerprint(
    names: str = "double", seed: int = 0, global_batch: int | None = ROWS
) -> Fingerprint:
    return Fingerprint(names, 2, "shard", LANES, bool(seed), seed, 0, global_batch)


def position(step: int, rank: int = 0, world_size: int = 1, **changes: object) -> Position:
    start = Position.start(
        fingerprint(global_batch=ROWS * world_size),
        [0] * (LANES // world_size),
        rank=rank,
        world_size=world_size,
        step=step,
    )
    return replace(start, **changes)  # type: ignore[arg-type]


def batch(step: int, *, size: int = 100, rank: int = 0, world_size: int = 1) -> Batch:
    """Return batch number ``step``; each row has ``size`` float32 values, its own number."""
    first = step * ROWS
    numbers = np.arange(first, first + ROWS, dtype=np.int64)
    columns: dict[str, Column] = {
        "number": numbers,
        "values": np.repeat(numbers.astype(np.float32), size).reshape(ROWS, size),
        "name": BytesColumn.of([b"row %d" % n for n in numbers]),
    }
    origin = Origin(np.zeros(ROWS, np.int32), numbers)
    return Batch(columns, ROWS, 0, origin, position(step + 1, rank, world_size))


def received(message: BatchMessage) -> BatchMessage:
    """Return a message as it comes from a socket: with one aligned, writable buffer."""
    if not message.payload_size:
        return BatchMessage(message.metadata)
    memory = allocate_aligned(message.payload_size)
    memory[:] = b"".join(message.payload)
    return BatchMessage(message.metadata, (memory,))


def decoded(message: BatchMessage) -> Batch:
    """Return the batch of a received message of the only rank."""
    return payload.decode(message, fingerprint(), 0, 1)


class FakeDataset:
    """A dataset of ``steps`` batches a run.

    ``fail_at`` raises ``error`` instead of that batch; ``hang_at`` never gives it; ``taken`` counts
    what was received from all runs, ``open_runs`` the runs that were not closed.
    With ``counts`` the runs have statistics. ``made`` is shown every batch, ``budgets`` and
    ``allocates`` are those of the runs.
    """

    stored_bytes: int | None = None

    def __init__(
        self,
        steps: int = 10,
        *,
        size: int = 100,
        fail_at: int = -1,
        hang_at: int = -1,
        error: Exception | None = None,
    ) -> None:
        self.settings = DatasetSettings(source="double", batch_size=ROWS)
        self.shards = ("memory://double/a", "memory://double/b")
        self.objects = [ObjectInfo(url) for url in self.shards]
        self.lanes = LANES
        self.steps = steps
        self.size = size
        self.fail_at, self.hang_at, self.error = fail_at, hang_at, error
        self.taken = 0
        self.open_runs = 0
        self.counts = False
        self.timings = Timings()
        self.closed = False
        self.budgets: list[int | None] = []
        self.allocates: list[Allocate | None] = []
        self.made: Callable[[Batch], object] = lambda _: None

    def fingerprint(self, batch_size: int | None, world_size: int, *, rank: int = 0) -> Fingerprint:
        return fingerprint(global_batch=batch_size * world_size if batch_size else None)

    def length(self, batch_size: int | None, world_size: int) -> int | None:
        return None

    def surplus(self, batch_size: int | None, world_size: int) -> int | None:
        return None

    def run(
        self,
        *,
        rank: int,
        world_size: int,
        batch_size: int | None,
        position: ResumePoint | None,
        allocate: Allocate | None = None,
        budget: int | None = None,
        ceiling: RunCeiling = NO_CEILING,
    ) -> FakeRun:
        self.budgets.append(budget)
        self.allocates.append(allocate)
        start = self.position(batch_size, rank, world_size, position or Beginning())
        return FakeRun(self, rank, world_size, start.step)

    def position(
        self, batch_size: int | None, rank: int, world_size: int, point: ResumePoint
    ) -> Position:
        if not isinstance(point, Position):
            return position(0, rank, world_size)
        self.fingerprint(batch_size, world_size).check(point.fingerprint)
        if point.rank != rank:
            raise StateError(f"the position is of rank {point.rank}")
        return point

    def check_memory(self) -> None:
        """Find that it fits."""

    def least_budget(self, world_size: int) -> int:
        return 8 << 20

    async def aclose(self) -> None:
        self.closed = True


class SlowlyClosedDataset(FakeDataset):
    """A dataset that takes some turns of the loop to close."""

    async def aclose(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        self.closed = True


class FakeRun:
    """A run to the next multiple of the dataset's ``steps``."""

    def __init__(self, dataset: FakeDataset, rank: int, world_size: int, step: int) -> None:
        self._dataset = dataset
        self._rank, self._world_size = rank, world_size
        self._step = step
        self.position = position(step, rank, world_size)
        self._end = (step // dataset.steps + 1) * dataset.steps
        self.measures = Measures()

    def statistics(self) -> dict[str, object]:
        return {"requests": self._step, "reason": "the start"} if self._dataset.counts else {}

    async def receive(self) -> Batch:
        dataset, step = self._dataset, self._step
        await asyncio.sleep(0)
        if step == self._end:
            raise EndOfStream
        if step == dataset.hang_at:
            await asyncio.get_running_loop().create_future()
        if step == dataset.fail_at and dataset.error is not None:
            raise dataset.error
        self._step += 1
        self.position = position(self._step, self._rank, self._world_size)
        dataset.taken += 1
        made = batch(step, size=dataset.size, rank=self._rank, world_size=self._world_size)
        dataset.made(made)
        return made

    async def __aenter__(self) -> Self:
        self._dataset.open_runs += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        self._dataset.open_runs -= 1


if TYPE_CHECKING:
    _DATASET: type[Served] = FakeDataset
    _RUN: type[ServedRun] = FakeRun
