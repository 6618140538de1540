"""Readings that several subscriptions share: each batch is read and decoded once, and sent to each.

With tensor or pipeline parallelism several hosts are one rank, and need the same batches. They say
so (``connect(replicas=True)``), since a feeder cannot know at the first batch whether anybody else
will come for it, and to keep batches for others takes memory.

A reading keeps its last batches, up to a number of bytes. Who begins at one of them joins it; who
is so slow that its next batch is no longer there goes on with a reading of its own, which others
may join. So the slowest holds nobody back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from streamrec.flow.channel import EndOfStream
from streamrec.flow.cleanup import finish
from streamrec.pipeline.terms.memory_needs import Measures
from streamrec.plan.state.resume_point import Beginning
from streamrec.values.columns import size_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from streamrec.pipeline.batch.batch import Batch
    from streamrec.pipeline.served import Served, ServedRun
    from streamrec.plan.state.position import Position
    from streamrec.plan.state.resume_point import ResumePoint

WINDOW = 128 << 20
"""Bytes of batches that a reading keeps, at most: twice the credit of a client, by which one that
is in step with the others may be ahead of them."""


@dataclass(frozen=True)
class ReplicaReader:
    """The part of a dataset that replicas read."""

    name: str
    """The dataset's name at the feeder."""
    dataset: Served
    rank: int
    world_size: int
    batch_size: int | None


class Readings:
    """The shared readings of a feeder.

    Args:
        start: Returns a run from a position, with the bytes of its batches that may be kept.
    """

    def __init__(
        self,
        start: Callable[
            [ReplicaReader, Position], AbstractAsyncContextManager[tuple[ServedRun, int]]
        ],
    ) -> None:
        self._start = start
        self._readings: dict[ReplicaReader, list[_SharedReading]] = {}

    def __repr__(self) -> str:
        return f"<Readings, {sum(map(len, self._readings.values()))} of them>"

    def replica(self, reader: ReplicaReader, point: ResumePoint | None) -> Replica:
        """Return a part in a reading from a position on, or the beginning.

        Raises:
            StateError: The position belongs to another dataset, order, rank or world size.
        """
        position = reader.dataset.position(
            reader.batch_size, reader.rank, reader.world_size, point or Beginning()
        )
        return Replica(self, reader, position)

    def join(self, reader: ReplicaReader, position: Position) -> tuple[_SharedReading, int]:
        """Join the reading that is at a position, or start one.

        Returns:
            The reading, which is to be left again, and the number of the batch there.
        """
        readings = self._readings.setdefault(reader, [])
        for reading in readings:
            number = reading.find(position)
            if number is not None:
                break
        else:
            reading, number = _SharedReading(self._start(reader, position), position), 0
            readings.append(reading)
        # Counted at once, and not after an await: the last one to leave ends the reading.
        reading.replicas += 1
        return reading, number

    async def leave(self, reader: ReplicaReader, reading: _SharedReading) -> None:
        """Leave a reading; the last one to leave ends it."""
        reading.replicas -= 1
        if reading.replicas:
            return
        readings = self._readings[reader]
        readings.remove(reading)
        if not readings:
            del self._readings[reader]
        await finish(reading.aclose())


class Replica:
    """A subscription's part in a shared reading; used like a run.

    Args:
        readings: The readings to join, and to start one in.
        reader: The part of the dataset to read.
        position: The position to begin at.
    """

    def __init__(self, readings: Readings, reader: ReplicaReader, position: Position) -> None:
        self.position = position
        """The position of the next batch."""
        self.measures = Measures()
        # A replica does no work of its own: whatever it waits for, it waits for the reading.
        self.measures.waits.produce("queue")
        self._readings = readings
        self._reader = reader
        self._reading: _SharedReading
        self._number: int
        self._batches = self._records = 0

    def __repr__(self) -> str:
        return f"<Replica of {self._reader.name}, step {self.position.step}>"

    async def __aenter__(self) -> Self:
        self._join()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._readings.leave(self._reader, self._reading)

    async def receive(self) -> Batch:
        """Return the next batch; errors as of :meth:`Run.receive`."""
        self.measures.waits.consume(None)
        try:
            batch = await self._next()
        finally:
            self.measures.waits.consume("client")
        self._number += 1
        self._batches += 1
        self._records += len(batch)
        self.position = batch.next_position
        return batch

    def statistics(self) -> dict[str, object]:
        """Return counters of what was received; what was fetched for it counts for the reading."""
        waits = self.measures.waits.seconds()
        return {"batches": self._batches, "records": self._records, "waits": waits}

    async def _next(self) -> Batch:
        try:
            batch = await self._reading.batch(self._number)
            while batch is None:  # it has fallen behind
                # Joined first: to leave may mean to wait until the old run has ended.
                left = self._reading
                self._join()
                await self._readings.leave(self._reader, left)
                batch = await self._reading.batch(self._number)
        except EndOfStream:
            self.position = self._reading.position
            raise
        return batch

    def _join(self) -> None:
        self._reading, self._number = self._readings.join(self._reader, self.position)


class _SharedReading:
    """A run, and its last batches.

    Args:
        start: Starts the run, when the first batch is asked for.
        position: The position of the first batch.
    """

    def __init__(
        self, start: AbstractAsyncContextManager[tuple[ServedRun, int]], position: Position
    ) -> None:
        self.replicas = 0
        """The number of those that have joined it, and not left."""
        self.position = position
        """The position after its last batch; at the end of the run, that of the next one."""
        self._start = start
        self._run: ServedRun | None = None
        self._most = 0
        self._stack = AsyncExitStack()
        self._first = 0
        """The number of the oldest batch that is kept."""
        self._places = deque([position])
        """The positions of the batches that are kept, and of the next one."""
        self._kept: deque[tuple[Batch, int]] = deque()
        self._size = 0
        self._over: Exception | None = None
        self._reads = asyncio.Lock()

    def __repr__(self) -> str:
        step = self.position.step
        return f"<_SharedReading for {self.replicas}, step {step}, {self._size} bytes kept>"

    def find(self, position: Position) -> int | None:
        """Return the number of the batch that begins at a position; ``None``: it has none."""
        if self._over is not None and not isinstance(self._over, EndOfStream):
            return None  # another attempt may go well
        for number, place in enumerate(self._places, self._first):
            # The step first: whole positions are compared array by array.
            if place.step == position.step and place == position:
                return number
        return None

    async def batch(self, number: int) -> Batch | None:
        """Return a batch, up to the next one; ``None``: it is not kept any more.

        Raises:
            EndOfStream: The run has ended before it.
            StreamrecError: The run has failed before it.
        """
        while number == self._first + len(self._kept):
            async with self._reads:  # whoever is first reads it for all
                if number == self._first + len(self._kept):
                    await self._read()
        return None if number < self._first else self._kept[number - self._first][0]

    async def aclose(self) -> None:
        """End the run, and keep nothing."""
        self._kept.clear()
        self._over = None  # its frames would keep the last batch
        await self._stack.aclose()

    async def _read(self) -> None:
        if self._over is not None:
            raise self._over
        try:
            run = self._run or await self._begin()
            self._keep(await run.receive())
        except Exception as error:
            if self._run is not None:
                # Behind the end of a run this is where the next one begins.
                self.position = self._run.position
            self._over = error
            raise

    async def _begin(self) -> ServedRun:
        run, self._most = await self._stack.enter_async_context(self._start)
        self._run = run
        return run

    def _keep(self, batch: Batch) -> None:
        size = sum(map(size_of, batch.values()))
        self._kept.append((batch, size))
        self._places.append(batch.next_position)
        self.position = batch.next_position
        self._size += size
        # One batch stays however large it is: whoever waits for it takes it from here.
        while self._size > self._most and len(self._kept) > 1:
            self._size -= self._kept.popleft()[1]
            self._places.popleft()
            self._first += 1
