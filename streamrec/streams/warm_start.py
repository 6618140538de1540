"""The warm start: a thread reads until the trainer works, and an engine process from then on.

To a trainer that only waits a thread gives as much as a process, which would take a core for half a
second to start, and read again what the thread has read ahead. Beside a trainer that works, both
would wait for the interpreter's lock. The process goes on after the last batch of the thread. This
takes a stream that can go on anywhere at little cost, and that calls no function of the user's:
those belong into the process. The thread reads a short run alone, since that is over before the
process is ready.
"""

from __future__ import annotations

import time
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Literal

from streamrec.config.dataset import MIB
from streamrec.errors import FeedError, Stalled
from streamrec.feeder.engine.engine import order_for
from streamrec.pipeline.batch.functions import SETTINGS as FUNCTIONS
from streamrec.pipeline.terms.memory_needs import COUNTERS
from streamrec.streams.session import ThreadSession, call_engine

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from streamrec.config import DatasetSettings
    from streamrec.feeder.client.client import BlockingFeed
    from streamrec.pipeline.batch.batch import Batch
    from streamrec.pipeline.dataset import Dataset
    from streamrec.plan.state.position import Position
    from streamrec.plan.state.resume_point import ResumePoint
    from streamrec.stores.base.protocol import ObjectInfo
    from streamrec.streams.ranks import Rank


ENOUGH = 4 * MIB
"""Bytes of records after which the thread reads no further beside a trainer that has worked from
the beginning. It shares the cores, and the lock of the interpreter, with the trainer and the
process that is to be ready soon: half a second of it delays the process by more than a second."""
BUSY = 0.05
"""Seconds that the trainer has worked before the process starts."""
BUSY_PART = 0.25
"""The part of its time that the trainer works, for the same."""
LOOK_EVERY = 0.05
"""Seconds between two looks how long it takes to get the interpreter's lock."""
LONG_WAIT = 0.003
"""Seconds of a wait for the lock from which on a thread of the trainer holds it: the interpreter
takes it away after 5 ms. The threads that read hold it for less than one."""
PERIOD = 2.0
"""Seconds that the trainer's clock looks back on, up to twice as many: a trainer may begin to work
after a long time."""
SHORT = 64 * MIB
"""Bytes of shards that a short run reads at most: it is over before a process is ready."""


def can_warm_start(settings: DatasetSettings) -> bool:
    """Return whether a stream can go on in another process at the cost of what it has read.

    Packs would be begun twice, and what is skipped counted twice.
    """
    stages = (settings.weights, settings.pack, settings.window)
    holds = any(stage is not None for stage in stages)
    calls = any(getattr(settings, name) is not None for name in FUNCTIONS)
    leaves_out = settings.on_corrupt != "raise" or settings.exclude is not None
    return not (holds or calls or leaves_out)


class WarmStartSession:
    """A session that reads in a thread, and in the engine process once the trainer works.

    Args:
        settings: Those of a stream that :func:`can_warm_start`.
        rank: The part of it to read.
        position: The place to begin at.

    Raises:
        StreamrecError: The dataset cannot be opened, or the position does not fit it.
    """

    is_async: Literal[False] = False

    def __init__(self, settings: DatasetSettings, rank: Rank, position: ResumePoint) -> None:
        def begin(dataset: Dataset) -> ResumePoint:
            """Prepare the order for the process, before anything is read."""
            order = order_for(settings, dataset.objects)
            self._call = partial(call_engine, settings, rank, order)
            self._is_short = _is_short(settings, rank, dataset.objects)
            return position

        # This opens the dataset and calls begin, so the attributes of begin are there after it.
        # Without fetch processes, which would start twice.
        alone = settings.model_copy(update={"fetch_processes": 0})
        thread = ThreadSession(alone, rank, begin)
        self._reads_apart = settings.fetch_processes != 0
        """True if the process reads with processes of its own."""
        self._is_first = True
        """False after the first run: whoever runs a short stream again does it often."""
        self._feed: BlockingFeed | None = None
        """The feed of the process, once that was started."""
        self._thread: ThreadSession | None = thread
        self._session: ThreadSession | BlockingFeed = thread
        self._trainer = TrainerClock()
        self._was_idle = False
        """True once the trainer has asked for a batch without having worked."""
        self._end: Position | None = None
        """The position where the process goes on, once the thread reads no further."""
        self._counted: dict[str, Any] = {}
        """Counts of the thread in the present run."""
        self.fingerprint = thread.fingerprint
        """Everything that determines the order of the batches."""
        self.settings = thread.settings
        """Facts of the dataset."""

    @property
    def position(self) -> dict[str, Any] | None:
        """The state after the last batch taken."""
        return self._session.position

    def receive(self) -> Batch:
        """Return the next batch; raise ``EndOfStream`` at the end of a run."""
        self._trainer.stop()
        self._go_on()
        if self._thread is not None and self._feed is not None:
            try:
                self._hand_off(self._thread, self._feed)
            except (FeedError, Stalled) as error:
                error.position = self.position  # what the thread has ready is not delivered yet
                raise
        batch = self._session.receive()
        self._trainer.start()
        return batch

    def _go_on(self) -> None:
        """Start the process if the trainer works."""
        # Not before the first batch, which the process's imports would delay on two cores.
        if self._feed is not None or not self._trainer.has_begun:
            return
        is_busy = self._trainer.is_busy
        self._was_idle = self._was_idle or not is_busy
        # Who asks for fetch processes has cores for them, and the thread has none.
        if (is_busy or self._reads_apart) and not (self._is_short and self._is_first):
            self._feed = self._call()

    def subscribe(self) -> None:
        """Start the next run, where the last one ended."""
        self._counted = {}
        self._is_first = False
        # The threads of the last run end, and their time would count as the trainer's.
        self._trainer = TrainerClock()
        self._session.subscribe()

    def statistics(self) -> dict[str, Any]:
        """Return the counters of the present run, summed, and the gauges of whoever reads now."""
        # Gauges are of whoever reads now; only counts add up.
        now = self._session.statistics()
        return now | {name: now.get(name, 0) + count for name, count in self._counted.items()}

    def close(self) -> None:
        """Stop, and leave nothing behind."""
        if self._thread is not None:
            self._thread.close()
        if self._feed is not None:
            self._feed.close()

    def _hand_off(self, thread: ThreadSession, feed: BlockingFeed) -> None:
        """Have the process go on after what the thread has ready, and close the thread then."""
        if self._end is None and (feed.answers or self._has_enough(thread)):
            self._end = thread.halt()
        if self._end is None:
            return
        # The process begins after what the thread has ready, so that is delivered first.
        is_through = self._step() >= self._end.step
        if not feed.has_begun and (is_through or feed.answers):
            feed.begin(self._end)
        if is_through:
            counts = thread.statistics()
            self._counted = {name: counts[name] for name in COUNTERS if name in counts}
            self._session, self._thread = feed, None
            thread.close()

    def _has_enough(self, thread: ThreadSession) -> bool:
        """Return whether the thread reads no further, though the process is not ready."""
        if self._was_idle or self._is_short:
            return False
        return bool(thread.statistics().get("bytes_used", 0) >= ENOUGH)

    def _step(self) -> int:
        position = self._session.position
        return 0 if position is None else int(position["step"])


def _wait_for_lock() -> float:
    """Let go of the interpreter's lock; return the seconds until this thread has it again."""
    began = time.perf_counter()
    # Not 0, as a thread that waits for the lock must wake up before it can take it.
    time.sleep(0.0001)
    return time.perf_counter() - began


class TrainerClock:
    """The time that a trainer works between its batches, and the waits for its other threads.

    Args:
        clock: Returns the time in seconds.
        wait_for_lock: Returns the seconds that it takes to get the interpreter's lock.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        wait_for_lock: Callable[[], float] = _wait_for_lock,
    ) -> None:
        self._clock, self._wait_for_lock = clock, wait_for_lock
        self._worked = self._waited = 0.0
        self._looks = 0.0
        self._look_at = self._begin = 0.0
        self._since: float | None = None
        self.has_begun = False
        """True once the trainer has worked after a batch, if only for an instant."""

    def start(self) -> None:
        """Note that the trainer gets a batch."""
        self._since = self._clock()
        if not self.has_begun:
            self._begin = self._since

    def stop(self) -> None:
        """Note that the trainer asks for the next batch."""
        if self._since is None:
            return
        now = self._clock()
        self._worked += now - self._since
        self._since, self.has_begun = None, True
        if now >= self._look_at:
            self._look_at = now + LOOK_EVERY
            self._waited += self._wait_for_lock()
            self._looks += 1
        if now - self._begin > 2 * PERIOD:  # half of what was is forgotten
            self._begin += (now - self._begin) / 2
            self._worked, self._waited, self._looks = (
                one / 2 for one in (self._worked, self._waited, self._looks)
            )

    @property
    def is_busy(self) -> bool:
        """True if it works for a good part of the time, or its threads hold the lock."""
        works = self._worked >= max(BUSY, BUSY_PART * (self._clock() - self._begin))
        return works or self._waited >= max(BUSY, LONG_WAIT * self._looks)


def _is_short(settings: DatasetSettings, rank: Rank, objects: Sequence[ObjectInfo]) -> bool:
    """Return whether a run is known to read few bytes."""
    # An epoch of steps may go through the shards many times, so their sizes say nothing of it.
    if settings.epochs is None or settings.steps_per_epoch is not None:
        return False
    # A shard whose size the store does not tell may be large.
    sizes = [inf if info.size is None else info.size for info in objects]
    # Each rank reads about an equal share of the shards.
    return settings.epochs * sum(sizes) <= SHORT * rank.world_size
