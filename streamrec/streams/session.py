"""Sessions: readers for a stream, in its event loop, in a thread or in an engine process.

A feed (:mod:`streamrec.feeder.client.client`) is a session as well, be it of a feeder or of an
engine process, whose speed the trainer's interpreter lock cannot limit; so is a warm start
(:mod:`streamrec.streams.warm_start`). :mod:`streamrec.streams.loops` says what all of them do.

What reads in this process and what talks to another are imported where they are used: a program
that needs one of them does not wait for the import of both.
"""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, Unpack

from streamrec.config.machine import memory_budget
from streamrec.feeder.client.welcome import facts_of
from streamrec.feeder.engine.engine import Engine, order_for
from streamrec.flow.bridge import Bridge, on_recall
from streamrec.flow.cleanup import until_done
from streamrec.pipeline.terms.memory_needs import Measures
from streamrec.plan.reading.ranges import sent_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import TypeAlias

    from streamrec.config import DatasetSettings
    from streamrec.feeder.client.client import BlockingFeed
    from streamrec.feeder.client.healing import AsyncHealingFeed, Route
    from streamrec.pipeline.batch.batch import Batch
    from streamrec.pipeline.dataset import Dataset
    from streamrec.pipeline.run import Run
    from streamrec.plan.state.position import Position
    from streamrec.plan.state.resume_point import ResumePoint
    from streamrec.streams.ranks import Rank

    Begin: TypeAlias = "ResumePoint | Callable[[Dataset], ResumePoint]"


Inner = TypeVar("Inner", bound="LoopSession | AsyncHealingFeed")

ENGINE_PATIENCE = 300.0
"""Seconds: an engine process that dies closes its socket, so this is only for one that hangs."""


class LoopSession:
    """A session in the running event loop; made by :meth:`open`.

    One task owns everything that must be closed. It ends when the session is closed, and also when
    the loop itself is shut down and cancels its tasks: no stream warns of having been left open.
    """

    is_async: Literal[True] = True

    def __init__(
        self, dataset: Dataset, rank: Rank, position: ResumePoint, measures: Measures | None = None
    ) -> None:
        self._dataset = dataset
        self._rank = rank
        self._batch_size = dataset.settings.batch_size
        # A list, as WELCOME has it: a session must not tell by its type who reads.
        self.settings = facts_of(dataset, list(dataset.shards), self._batch_size, rank.world_size)
        """Facts of the dataset. They are gathered once, since each batch asks for one of them."""
        self._run = self._start(position, measures)
        # Changes of a mix's weights come from the place where it begins.
        self.fingerprint = self._run.position.fingerprint
        """Everything that determines the order of the batches."""
        self.loop = asyncio.get_running_loop()
        self._owner = asyncio.create_task(self._own(), name="streamrec-session")
        self._ready = asyncio.Event()
        self._wanted = asyncio.Event()
        self._closing = False
        self._failure: Exception | None = None
        """The error by which no run has begun, or by which the last one did not end well."""

    @classmethod
    async def open(cls, settings: DatasetSettings, rank: Rank, begin: Begin) -> LoopSession:
        """Find the shards and start to read.

        Args:
            settings: Those of the dataset.
            rank: The part of it to read.
            begin: The place to begin at; or a function that returns it, called before anything is
                read.

        Raises:
            StreamrecError: The dataset cannot be opened, or the position does not fit it.
        """
        from streamrec.pipeline.dataset import Dataset

        measures = Measures()
        # The time until the dataset is open counts as the listing's, as at a feeder.
        measures.waits.consume("list")
        dataset = await Dataset.open(settings)
        measures.waits.consume("client")
        try:
            position = begin(dataset) if callable(begin) else begin
            return cls(dataset, rank, position, measures)
        except BaseException:
            await dataset.aclose()
            raise

    @property
    def position(self) -> dict[str, Any] | None:
        """The state after the last batch taken."""
        return self._run.position.to_dict()

    async def receive(self) -> Batch:
        """Return the next batch; raise ``EndOfStream`` at the end of a run."""
        await self._wait_for_begin()
        return await self._run.receive()

    def subscribe(self) -> None:
        """Start the next run, where the last one ended."""
        # Until the owner has closed the old run, nobody may receive from it.
        self._ready.clear()
        self._wanted.set()

    def interrupt(self) -> None:
        """Decode no further than to the end of the pictures begun, from any thread."""
        if self._ready.is_set():
            self._run.interrupt()

    async def halt(self) -> Position | None:
        """Read no further in this run; as :meth:`streamrec.pipeline.run.Run.halt`."""
        await self._wait_for_begin()
        return await self._run.halt()

    def statistics(self) -> dict[str, Any]:
        """Return the counters of the present run; none before it has begun."""
        return self._run.statistics() if self._ready.is_set() else {}

    @property
    def is_over(self) -> bool:
        """True once all is closed."""
        return self._owner.done()

    async def aclose(self) -> None:
        """Stop, and leave nothing behind."""
        self._closing = True
        # Both events: the owner waits for one, and a receiver, between two runs, for the other.
        self._ready.set()
        self._wanted.set()
        await until_done(self._owner)

    def _start(self, position: ResumePoint, measures: Measures | None = None) -> Run:
        rank, world_size = self._rank
        return self._dataset.run(
            rank=rank,
            world_size=world_size,
            batch_size=self._batch_size,
            position=position,
            measures=measures,
        )

    async def _wait_for_begin(self) -> None:
        """Wait until the run has begun, or raise the error by which it has not."""
        await self._ready.wait()
        if self._failure is not None:
            raise self._failure

    async def _own(self) -> None:
        try:
            while True:
                async with self._run:
                    self._ready.set()
                    # Until the next run is asked for, or the end.
                    await self._wanted.wait()
                # The run is closed by now: what it holds is free before another begins.
                if self._closing:
                    return
                self._wanted.clear()
                self._run = self._start(self._run.position)
        except Exception as error:  # noqa: BLE001 - whoever waits for the run raises it
            self._failure = error
            self._ready.set()
        finally:
            await self._dataset.aclose()


class _InThread(Generic[Inner]):
    """A session in a thread with an event loop of its own.

    Args:
        open_session: Opens the session, whose tasks close what it holds when they are cancelled.
    """

    is_async: Literal[False] = False

    def __init__(self, open_session: Callable[[], Coroutine[Any, Any, Inner]]) -> None:
        self._bridge = Bridge()
        on_recall(self._bridge.end)
        try:
            session = self._bridge.call(open_session())
        except BaseException:
            self._bridge.close()
            raise
        self._session: Inner = session
        self.fingerprint = session.fingerprint
        """Everything that determines the order of the batches."""
        self.settings = session.settings
        """Facts of the dataset."""

    @property
    def position(self) -> dict[str, Any] | None:
        """The state after the last batch taken."""
        return self._session.position

    def receive(self) -> Batch:
        """Return the next batch; raise ``EndOfStream`` at the end of a run."""
        return self._bridge.call(self._session.receive())

    def subscribe(self) -> None:
        """Start the next run, where the last one ended."""
        # In the loop's own thread, whose events this sets.
        self._bridge.call(_call(self._session.subscribe))

    def statistics(self) -> dict[str, Any]:
        """Return the counters of the present run."""
        return self._session.statistics()

    def close(self) -> None:
        """Stop, and leave nothing behind."""
        self._bridge.close()


class ThreadSession(_InThread[LoopSession]):
    """A session of a dataset in a thread; arguments as of `LoopSession.open`."""

    def __init__(self, settings: DatasetSettings, rank: Rank, begin: Begin) -> None:
        super().__init__(partial(LoopSession.open, settings, rank, begin))

    def receive(self) -> Batch:
        """Return the next batch; raise ``EndOfStream`` at the end of a run."""
        try:
            return super().receive()
        except KeyboardInterrupt:
            # An interpreter that ends waits for its threads, which might decode for minutes.
            self._session.interrupt()
            raise

    def halt(self) -> Position | None:
        """Read no further in this run; as :meth:`streamrec.pipeline.run.Run.halt`."""
        return self._bridge.call(self._session.halt())


class ThreadFeed(_InThread["AsyncHealingFeed"]):
    """The feed of a feeder in a thread; arguments as of `AsyncHealingFeed.open`."""

    def __init__(self, address: str, **route: Unpack[Route]) -> None:
        from streamrec.feeder.client.healing import AsyncHealingFeed

        super().__init__(partial(AsyncHealingFeed.open, address, **route))


async def _call(function: Callable[[], None]) -> None:
    function()


def call_engine(settings: DatasetSettings, rank: Rank, order: bytes) -> BlockingFeed:
    """Start an engine process, and return its feed at once; the process waits for ``begin``.

    Args:
        settings: Those of the dataset that it reads.
        rank: The part of it to read.
        order: The message of ``order_for`` for these settings.

    Raises:
        ConfigError: No process can be started.
    """
    budget = memory_budget(settings)
    # The process imports its libraries while this one imports what talks to it.
    engine = Engine.start(order)
    on_recall(engine.process.kill)
    from streamrec.feeder.client.client import BlockingFeed

    try:
        return BlockingFeed.call(
            engine.socket,
            patience=ENGINE_PATIENCE,
            engine=engine,
            rank=rank.rank,
            world_size=rank.world_size,
            batch_size=settings.batch_size,
            credit_bytes=sent_bytes(budget),
            # Twice as much as decoded batches may take, so that a large one has a place to lie in
            # beside those that the trainer has or has just let go. What is not used takes none.
            shared_bytes=budget,
        )
    except BaseException:
        engine.close()
        raise


def open_engine(
    settings: DatasetSettings, rank: Rank, position: ResumePoint, functions: str | None = None
) -> BlockingFeed:
    """Start an engine process, and have it read.

    Args:
        settings: Those of the dataset.
        rank: The part of it to read.
        position: The place to begin at.
        functions: The user's functions, as for ``order_for``.

    Raises:
        StreamrecError: The dataset cannot be opened, or the position does not fit it.
    """
    feed = call_engine(settings, rank, order_for(settings, functions=functions))
    feed.begin(position)
    return feed


def open_relay(address: str, **route: Unpack[Route]) -> BlockingFeed:
    """Start an engine process, and have it receive from a feeder.

    Args:
        address: As of `AsyncHealingFeed.open`, with all others.
        route: The options.

    Raises:
        StreamrecError: No feeder serves what is wanted.
    """
    from streamrec.feeder.client.client import BlockingFeed
    from streamrec.feeder.client.session import state_of

    # Neither is JSON: this side checks the fingerprint, and the position is sent as a plain state.
    fingerprint, position = route.pop("fingerprint", None), route.pop("position", None)
    order = {"address": address, "position": state_of(position), **route}
    engine = Engine.start(json.dumps({"route": order}).encode())
    on_recall(engine.process.kill)
    try:
        feed = BlockingFeed.call(
            engine.socket,
            patience=ENGINE_PATIENCE,
            engine=engine,
            fingerprint=fingerprint,
            position=position,
            rank=route["rank"],
            world_size=route["world_size"],
            batch_size=route["batch_size"],
        )
    except BaseException:
        engine.close()
        raise
    feed.begin()
    return feed
