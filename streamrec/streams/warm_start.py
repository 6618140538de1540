"""The warm start: first batches come from a thread, while an engine process imports its libraries.

The thread has a small budget, and the process goes on after the last of its batches. This takes a
stream that can go on anywhere at little cost, and that calls no function of the user's: those
belong into the process. The thread reads a short run alone, since that is over before the process
is ready.
"""

from __future__ import annotations

import time
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Literal

from streamrec.config.dataset import MIB
from streamrec.config.memory_budget import memory_budget
from streamrec.errors import FeedError, Stalled, StreamrecError
from streamrec.feeder.engine.engine import order_for
from streamrec.pipeline.batch.functions import SETTINGS as FUNCTIONS
from streamrec.pipeline.terms.memory_needs import COUNTERS
from streamrec.plan.reading.ranges import least_budget
from streamrec.streams.session import Entry, ThreadSession, call_engine

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


BUDGET = 64 * MIB
"""Bytes that the thread may take: heads of 256 KiB for 48 lanes, and a bit more."""
ENOUGH = 4 * MIB
"""Bytes of records after which the thread reads no further. It shares the cores, and the lock of
the interpreter, with the trainer and the process that is to be ready soon: half a second of it
beside a busy trainer delays the process by more than a second."""
LARGE = MIB
"""Bytes of a mean record from which on the thread reads with all of the memory, until the process
is ready: each byte costs it little Python."""
BUSY = 0.05
"""Seconds that the trainer has worked between batches of large records before the process starts.
To a trainer that only waits the thread gives as much, and the process's start takes a core for half
a second."""
BUSY_PART = 0.25
"""The part of its time that the trainer works, for the same."""
SHORT = BUDGET
"""Bytes of shards that a short run reads at most: the thread has room for all of them at once."""


def can_warm_start(settings: DatasetSettings) -> bool:
    """Return whether a stream can go on in another process at the cost of its read-ahead alone.

    Windows would be filled twice, packs begun twice, and what is skipped counted twice.
    """
    holds = settings.has_windows or settings.weights is not None or settings.pack is not None
    calls = any(getattr(settings, name) is not None for name in FUNCTIONS)
    leaves_out = settings.on_corrupt != "raise" or settings.exclude is not None
    return not (holds or calls or leaves_out)


class WarmStartSession:
    """A session that reads the first batches in a thread, and all others in the engine process.

    Args:
        settings: Those of a stream that :func:`can_warm_start`.
        rank: The part of it to read.
        position: The place to begin at.

    Raises:
        StreamrecError: The dataset cannot be opened, or the position does not fit it.
    """

    is_async: Literal[False] = False

    def __init__(self, settings: DatasetSettings, rank: Rank, position: ResumePoint) -> None:
        def begin(dataset: Dataset) -> Entry:
            """Give the thread all of the memory for a short run, which it reads alone."""
            order = order_for(settings, dataset.objects)
            self._call = partial(call_engine, settings, rank, order)
            self._is_short = _is_short(settings, rank, dataset.objects)
            return Entry(position, None if self._is_short else _small_budget(dataset))

        # This opens the dataset and calls begin, so the attributes of begin are there after it.
        # Without fetch processes, which would start twice.
        alone = settings.model_copy(update={"fetch_processes": 0})
        thread = ThreadSession(alone, rank, begin)
        self._reads_apart = settings.fetch_processes != 0
        """True if the process reads with processes of its own."""
        self._is_first = True
        """False after the first run: whoever runs a short stream again does it often."""
        self._failure: StreamrecError | None = None
        """The failure to start the process, to be raised in place of the next batch."""
        self._feed: BlockingFeed | None = None
        """The feed of the process, once that was started."""
        self._thread: ThreadSession | None = thread
        self._session: ThreadSession | BlockingFeed = thread
        self._is_large = False
        """True once the first batch has told that records are large."""
        self._trainer = TrainerClock()
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
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        self._trainer.stop()
        if self._is_large and self._feed is None and self._trainer.is_busy:
            self._start()
        if self._thread is not None and self._feed is not None:
            try:
                self._hand_off(self._thread, self._feed)
            except (FeedError, Stalled) as error:
                error.position = self.position  # what the thread has ready is not delivered yet
                raise
        batch = self._session.receive()
        # Not before: on two cores the process's imports would delay the first batch.
        if self._feed is None and not (self._is_short and self._is_first):
            self._go_on()
        self._trainer.start()
        return batch

    def _go_on(self) -> None:
        """Start the process after the first batch; for large records only once it is needed."""
        thread = self._thread
        if thread is None or self._is_large:
            return
        counts = thread.statistics()
        records, nbytes = counts.get("records", 0), counts.get("bytes_used", 0)
        self._is_large = 0 < records * LARGE <= nbytes
        # Who asks for fetch processes has cores for them, and the thread has none.
        if not self._is_large or self._reads_apart:
            self._start()
        if self._is_large and not self._is_short:
            thread.enlarge()

    def _start(self) -> None:
        """Start the process; a failure waits for the next call, as this one has its batch."""
        try:
            self._feed = self._call()
        except StreamrecError as error:
            self._failure = error

    def subscribe(self) -> None:
        """Start the next run, where the last one ended."""
        self._counted = {}
        self._is_first = False
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
        if self._is_short or self._is_large:
            return False
        return bool(thread.statistics().get("bytes_used", 0) >= ENOUGH)

    def _step(self) -> int:
        position = self._session.position
        return 0 if position is None else int(position["step"])


class TrainerClock:
    """The time that a trainer works between its batches, and the time in all.

    Args:
        clock: Returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._worked = 0.0
        self._first: float | None = None
        self._since: float | None = None

    def start(self) -> None:
        """Note that the trainer gets a batch."""
        self._since = self._clock()
        self._first = self._since if self._first is None else self._first

    def stop(self) -> None:
        """Note that the trainer asks for the next batch."""
        if self._since is not None:
            self._worked += self._clock() - self._since
            self._since = None

    @property
    def is_busy(self) -> bool:
        """True once it has worked for a while, and for a good part of the time."""
        if self._first is None:
            return False
        return self._worked >= max(BUSY, BUSY_PART * (self._clock() - self._first))


def _is_short(settings: DatasetSettings, rank: Rank, objects: Sequence[ObjectInfo]) -> bool:
    """Return whether a run is known to read few bytes."""
    # An epoch of steps may go through the shards many times, so their sizes say nothing of it.
    if settings.epochs is None or settings.steps_per_epoch is not None:
        return False
    # A shard whose size the store does not tell may be large.
    sizes = [inf if info.size is None else info.size for info in objects]
    # Each rank reads about an equal share of the shards.
    return settings.epochs * sum(sizes) <= SHORT * rank.world_size


def _small_budget(dataset: Dataset) -> int:
    """Return the bytes for the thread: few, if the lanes can do with them."""
    return min(memory_budget(dataset.settings), max(BUDGET, least_budget(dataset.lanes)))
