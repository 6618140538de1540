"""How a plain ``for`` has its first batch before the engine process has imported its libraries.

A thread of this process reads the first batches with a small budget; the engine process goes on
behind the last of them. This takes a stream that can go on anywhere at little cost, and that calls
no function of the user's: those belong into the engine process.
"""

from __future__ import annotations

from concurrent.futures import CancelledError, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

from streamrec.config import DEFAULT_LANES, MIB
from streamrec.errors import FeedError
from streamrec.feeder.engine import Engine, Situation, order_for
from streamrec.memory import memory_budget
from streamrec.pipeline.functions import SETTINGS as FUNCTIONS
from streamrec.pipeline.run import COUNTERS
from streamrec.plan.ranges import least_budget
from streamrec.session import EngineSession, ThreadSession

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Future

    from streamrec.config import DatasetSettings
    from streamrec.plan.place import Place
    from streamrec.plan.position import Fingerprint, Position
    from streamrec.ranks import Rank
    from streamrec.session import Session
    from streamrec.types import Batch

__all__ = ["RelaySession", "can_relay", "started"]

BUDGET = 64 * MIB
"""Bytes that the thread may take: heads of 256 KiB for 48 lanes, and a bit more."""
ENOUGH = 4 * MIB
"""Bytes of records after which the thread reads no further. It shares the cores, and the lock of
the interpreter, with the trainer and the process that is to be ready soon: half a second of it
beside a busy trainer delays the process by more than a second."""
HEAD_START = 0.25
"""Seconds after which the process is started, should the first batch not be there by then. What it
imports would delay the batch, where there are few cores, and is not needed before the second."""


def can_relay(settings: DatasetSettings) -> bool:
    """Whether a stream can go on in another process for the price of what was read ahead.

    Windows would be filled twice, packs begun twice, and what is skipped counted twice.
    """
    holds = settings.has_windows or settings.weights is not None or settings.pack is not None
    calls = any(getattr(settings, name) is not None for name in FUNCTIONS)
    return not (holds or calls) and settings.on_corrupt == "raise"


class RelaySession:
    """Reads the first batches in a thread, and all others in the private process.

    Args:
        settings: Of a stream that can be relayed.
        rank: Which part of it.
        position: Where to begin.

    Raises:
        StreamrecError: The dataset cannot be opened, or the position does not fit it.
    """

    def __init__(self, settings: DatasetSettings, rank: Rank, position: Place) -> None:
        thread = ThreadSession(_small(settings), rank, position)
        try:
            order = order_for(settings, thread.objects)
            first = thread.ask()
            self._engine = started(first, settings, rank, order)
        except BaseException:
            thread.close()
            raise
        self._thread: ThreadSession | None = thread
        self._first: Future[Batch] | None = first
        """Until it is taken."""
        self._session: Session = thread
        self._end: Position | None = None
        """Where the process goes on, once the thread reads no further."""
        self._counted: dict[str, Any] = {}
        """What the thread has counted in the present run."""
        self.fingerprint: Fingerprint = thread.fingerprint
        """What determines the order of what is received."""
        self.settings: Mapping[str, Any] = thread.settings
        """Facts of the dataset."""

    @property
    def position(self) -> dict[str, Any] | None:
        """The state after the last batch taken."""
        return self._session.position if self._first is None else None

    def receive(self) -> Batch:
        """The next batch; raises ``EndOfStream`` at the end of a run."""
        if self._first is not None:
            return self._take(self._first)
        if self._thread is not None:
            self._relay(self._thread)
        return self._session.receive()

    def subscribe(self) -> None:
        """Start the next run, where the last one ended."""
        self._counted = {}
        self._session.subscribe()

    def statistics(self) -> dict[str, Any]:
        """Counters of the present run, of both; how things stand, of the one that reads."""
        now = self._session.statistics()
        return now | {name: now.get(name, 0) + count for name, count in self._counted.items()}

    def close(self) -> None:
        """Stop, and leave nothing behind."""
        if self._thread is not None:
            self._thread.close()
        wait([self._engine])
        if not self._engine.exception():
            self._engine.result().close()

    def _take(self, first: Future[Batch]) -> Batch:
        wait([first])  # interrupted, it can still be taken
        self._first = None
        return first.result()

    def _relay(self, thread: ThreadSession) -> None:
        """Have the process go on behind what the thread has ready, and leave the thread then."""
        if self._end is None and (self._answers or _used(thread) >= ENOUGH):
            self._end = thread.halt()
        if self._end is None:
            return
        is_through = self._step() >= self._end.step
        if is_through or self._answers:
            self._begin(self._end)
        if is_through:
            counts = thread.statistics()
            self._counted = {name: counts[name] for name in COUNTERS if name in counts}
            self._session, self._thread = self._engine.result(), None
            thread.close()

    @property
    def _answers(self) -> bool:
        """Whether the process is ready to read, or has failed: beginning tells."""
        return self._engine.done() and self._engine.result().answers

    def _begin(self, end: Position) -> None:
        engine = self._engine.result()
        if engine.has_begun:
            return
        try:
            engine.begin(end)
        except FeedError as error:
            error.position = self.position  # what the thread has ready is not delivered yet
            raise

    def _step(self) -> int:
        position = self._session.position
        return 0 if position is None else int(position["step"])


def started(
    first: Future[Batch], settings: DatasetSettings, rank: Rank, order: bytes
) -> Future[EngineSession]:
    """The process, to be: it is started once the first batch is there, or has taken HEAD_START.

    Args:
        first: The batch, to be. If it is cancelled, nothing is started.
        settings: What the process is to read.
        rank: Which part of it.
        order: The settings, as :func:`streamrec.feeder.engine.order_for` makes them.
    """
    situation = Situation.now()

    def start() -> EngineSession:
        wait([first], HEAD_START)
        if first.cancelled():
            raise CancelledError
        engine = Engine.spawn(next(iter(settings.urls), ""), situation)
        engine.hand_over(order)
        return EngineSession(engine, settings, rank)

    threads = ThreadPoolExecutor(1, "streamrec-engine")
    engine = threads.submit(start)
    threads.shutdown(wait=False)
    return engine


def _used(thread: ThreadSession) -> int:
    """Bytes of the records that it has delivered in this run."""
    return int(thread.statistics().get("bytes_used", 0))


def _small(settings: DatasetSettings) -> DatasetSettings:
    """The same with less memory, as far as its lanes can do with it."""
    lanes = DEFAULT_LANES if settings.lanes == "auto" else settings.lanes
    budget = min(memory_budget(settings), max(BUDGET, least_budget(lanes)))
    return settings.model_copy(update={"memory_budget": budget})
