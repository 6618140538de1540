"""Who reads for a stream: this event loop, a thread, the private engine process, or a feeder.

Each is a session: it delivers batches from a position on and, after the end of a run, starts the
next one. Nothing here holds the stream, so that a stream that is dropped can be cleaned up.
"""

from __future__ import annotations

import asyncio
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, Self

from streamrec.config import ends
from streamrec.feeder.engine import Engine
from streamrec.flow.bridge import Bridge
from streamrec.flow.cleanup import until_done
from streamrec.memory import memory_budget
from streamrec.pipeline.dataset import Dataset
from streamrec.plan.ranges import sent_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from streamrec.config import DatasetSettings
    from streamrec.pipeline.run import Run
    from streamrec.plan.place import Place
    from streamrec.plan.position import Fingerprint, Position
    from streamrec.stores.base import ObjectInfo
    from streamrec.streams.ranks import Rank
    from streamrec.types import Batch

__all__ = ["AsyncSession", "EngineSession", "LoopSession", "Session", "ThreadSession", "close_in"]


class AsyncSession(Protocol):
    """Delivers batches to asyncio code."""

    @property
    def fingerprint(self) -> Fingerprint:
        """What determines the order of what is received."""
        ...

    @property
    def settings(self) -> Mapping[str, Any]:
        """Facts of the dataset: batch_size, lanes, shards, features."""
        ...

    @property
    def position(self) -> dict[str, Any] | None:
        """The state after the last batch taken, as plain data."""
        ...

    async def receive(self) -> Batch:
        """The next batch; raises ``EndOfStream`` at the end of a run."""
        ...

    def statistics(self) -> dict[str, Any]:
        """Counters of the present run; none before it has begun."""
        ...

    def subscribe(self) -> None:
        """Start the next run."""
        ...

    async def aclose(self) -> None:
        """Stop, and leave nothing behind."""
        ...


class Session(Protocol):
    """Delivers batches to plain code."""

    @property
    def fingerprint(self) -> Fingerprint:
        """What determines the order of what is received."""
        ...

    @property
    def settings(self) -> Mapping[str, Any]:
        """Facts of the dataset: batch_size, lanes, shards, features."""
        ...

    @property
    def position(self) -> dict[str, Any] | None:
        """The state after the last batch taken, as plain data."""
        ...

    def receive(self) -> Batch:
        """The next batch; raises ``EndOfStream`` at the end of a run."""
        ...

    def statistics(self) -> dict[str, Any]:
        """Counters of the present run; none before it has begun."""
        ...

    def subscribe(self) -> None:
        """Start the next run."""
        ...

    def close(self) -> None:
        """Stop, and leave nothing behind."""
        ...


class LoopSession:
    """Reads in the running event loop; made by :meth:`open`.

    One task owns everything that must be closed. It ends when the session is closed, and also when
    the loop itself is shut down and cancels its tasks: no stream warns of having been left open.
    """

    def __init__(self, dataset: Dataset, rank: Rank, position: Place) -> None:
        self._dataset = dataset
        self._rank = rank
        self._batch_size = dataset.settings.batch_size
        self._run = self._start(position)
        self._owner = asyncio.create_task(self._own(), name="streamrec-session")
        self._ready = asyncio.Event()
        self._wanted = asyncio.Event()
        self._closing = False

    @classmethod
    async def open(cls, settings: DatasetSettings, rank: Rank, position: Place) -> LoopSession:
        """Find the shards and start to read.

        Raises:
            StreamrecError: The dataset cannot be opened, or the position does not fit it.
        """
        dataset = await Dataset.open(settings)
        try:
            return cls(dataset, rank, position)
        except BaseException:
            await dataset.aclose()
            raise

    @property
    def fingerprint(self) -> Fingerprint:
        """What determines the order of what is received."""
        return self._dataset.fingerprint(self._batch_size, self._rank.world_size)

    @property
    def objects(self) -> Sequence[ObjectInfo]:
        """The shards, as they were found."""
        return self._dataset.objects

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """Facts of the dataset; it is asked for with each batch, and they may be many."""
        dataset = self._dataset
        return {
            "batch_size": self._batch_size,
            "lanes": dataset.lanes,
            "shards": list(dataset.shards),
            "features": dataset.settings.features,
            "length": dataset.length(self._batch_size, self._rank.world_size),
            "surplus": dataset.surplus(self._batch_size, self._rank.world_size),
            **ends(dataset.settings),
        }

    @property
    def position(self) -> dict[str, Any] | None:
        """The state after the last batch taken."""
        return self._run.position.to_dict()

    async def receive(self) -> Batch:
        """The next batch; raises ``EndOfStream`` at the end of a run."""
        await self._ready.wait()
        return await self._run.receive()

    def subscribe(self) -> None:
        """Start the next run, where the last one ended."""
        self._ready.clear()
        self._wanted.set()

    async def halt(self) -> Position | None:
        """Read no further in this run; as :meth:`streamrec.pipeline.run.Run.halt`."""
        await self._ready.wait()
        return await self._run.halt()

    def statistics(self) -> dict[str, Any]:
        """Counters of the present run; none before it has begun."""
        return self._run.statistics() if self._ready.is_set() else {}

    async def aclose(self) -> None:
        """Stop, and leave nothing behind."""
        self._closing = True
        self._ready.set()
        self._wanted.set()
        await until_done(self._owner)

    def _start(self, position: Place) -> Run:
        rank, world_size = self._rank
        return self._dataset.run(
            rank=rank, world_size=world_size, batch_size=self._batch_size, position=position
        )

    async def _own(self) -> None:
        try:
            while True:
                async with self._run:
                    self._ready.set()
                    await self._wanted.wait()
                if self._closing:
                    return
                self._wanted.clear()
                self._run = self._start(self._run.position)
        finally:
            await self._dataset.aclose()


def close_in(
    loop: asyncio.AbstractEventLoop, aclose: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    """Close a session whose stream was dropped, if its loop still runs."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(lambda: loop.create_task(aclose()))


class ThreadSession:
    """Reads in a thread with an event loop of its own, for notebooks and tests."""

    def __init__(self, settings: DatasetSettings, rank: Rank, position: Place) -> None:
        self._bridge = Bridge()
        try:
            self._session = self._bridge.call(LoopSession.open(settings, rank, position))
        except BaseException:
            self._bridge.close()
            raise

    @property
    def fingerprint(self) -> Fingerprint:
        """What determines the order of what is received."""
        return self._session.fingerprint

    @property
    def settings(self) -> Mapping[str, Any]:
        """Facts of the dataset."""
        return self._session.settings

    @property
    def position(self) -> dict[str, Any] | None:
        """The state after the last batch taken."""
        return self._session.position

    def receive(self) -> Batch:
        """The next batch; raises ``EndOfStream`` at the end of a run."""
        return self._bridge.call(self._session.receive())

    def subscribe(self) -> None:
        """Start the next run, where the last one ended."""
        self._bridge.call(_called(self._session.subscribe))

    @property
    def objects(self) -> Sequence[ObjectInfo]:
        """The shards, as they were found."""
        return self._session.objects

    def halt(self) -> Position | None:
        """Read no further in this run; as :meth:`streamrec.pipeline.run.Run.halt`."""
        return self._bridge.call(self._session.halt())

    def statistics(self) -> dict[str, Any]:
        """Counters of the present run."""
        return self._session.statistics()

    def close(self) -> None:
        """Stop, and leave nothing behind."""
        self._bridge.close()


async def _called(function: Any) -> None:
    function()


class EngineSession:
    """Reads in a private process over a socket: the trainer's interpreter lock cannot slow it.

    It prepares itself in the background; :meth:`begin` says where it is to read.

    Args:
        engine: Started; closed with the session.
        settings: What it reads.
        rank: Which part of it.
    """

    def __init__(self, engine: Engine, settings: DatasetSettings, rank: Rank) -> None:
        self.has_begun = False
        """Whether it was told where to read."""
        self._engine = engine
        try:
            self._feed = self._engine.call(
                rank=rank.rank,
                world_size=rank.world_size,
                batch_size=settings.batch_size,
                credit_bytes=sent_bytes(memory_budget(settings)),
            )
        except BaseException:
            self._engine.close()
            raise

    @classmethod
    def open(cls, settings: DatasetSettings, rank: Rank, position: Place) -> Self:
        """Start the process, and have it read.

        Raises:
            StreamrecError: The dataset cannot be opened, or the position does not fit it.
        """
        self = cls(Engine.start(settings), settings, rank)
        try:
            self.begin(position)
        except BaseException:
            self.close()
            raise
        return self

    def hand_over(self, order: bytes) -> None:
        """Give a process its settings that was started without; as of :class:`Engine`."""
        self._engine.hand_over(order)

    @property
    def answers(self) -> bool:
        """Whether the process is ready to read, or has failed: :meth:`begin` tells."""
        return self._feed.answers

    def begin(self, position: Place) -> None:
        """Have it read from a position on, as soon as it is ready; errors as of :meth:`open`."""
        self._feed.begin(position)
        self.has_begun = True

    @property
    def fingerprint(self) -> Fingerprint:
        """What determines the order of what is received."""
        return self._feed.fingerprint

    @property
    def settings(self) -> Mapping[str, Any]:
        """Facts of the dataset."""
        return self._feed.settings

    @property
    def position(self) -> dict[str, Any] | None:
        """The state after the last batch taken."""
        return self._feed.position

    def receive(self) -> Batch:
        """The next batch; raises ``EndOfStream`` at the end of a run."""
        return self._feed.receive()

    def subscribe(self) -> None:
        """Start the next run, where the last one ended."""
        self._feed.subscribe()

    def statistics(self) -> dict[str, Any]:
        """Counters of the present run, as the process has last told."""
        return self._feed.statistics()

    def close(self) -> None:
        """Disconnect and end the process."""
        self._feed.close()
        self._engine.close(at_once=not self.has_begun)
