"""Histograms of the times of requests, as plain numbers that add up; the delay of an event loop.

That is the time for which work that is ready waits until it runs. Whatever blocks a loop holds up
all who share it. A timer in the loop measures by how much it is late. A thread looks at the timer,
as a loop that stands still cannot tell what it stands at.

A task for which all is always there gives others a turn by its share of the loop's time.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
import threading
import time
import traceback
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""The upper bounds of the buckets in seconds; one more bucket has no bound. A store in the same
region answers in 10 to 100 ms; what takes 30 s has been hedged or cut long before."""

Tree: TypeAlias = Mapping[str, Any]
"""Numbers, lists of numbers of one length, and further trees, by name."""


class Histogram:
    """A histogram of seconds with fixed buckets."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        """Count one time."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds

    def to_dict(self) -> dict[str, Any]:
        """Return the counts of the buckets, and the sum of the seconds."""
        return {"counts": list(self.counts), "sum": self.total}


class Timings:
    """The times of requests by kind of store and operation (``list`` or ``read``)."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, str], tuple[Histogram, Histogram]] = {}

    def observe(self, store: str, operation: str, first_byte: float, duration: float) -> None:
        """Count a request that succeeded.

        Args:
            store: The kind of the store: ``s3``, ``gcs``, ``http``, ``file``, ...
            operation: ``"list"`` or ``"read"``.
            first_byte: Seconds from the request to the first byte, or name, of the answer.
            duration: Seconds from the request to the end of the answer.
        """
        key = store, operation
        if key not in self._of:
            self._of[key] = Histogram(), Histogram()
        first, whole = self._of[key]
        first.observe(first_byte)
        whole.observe(duration)

    def to_dict(self) -> dict[str, Any]:
        """Return all histograms: store, operation, ``first_byte`` or ``duration``."""
        tree: dict[str, Any] = {}
        for (store, operation), (first, whole) in list(self._of.items()):
            times = {"first_byte": first.to_dict(), "duration": whole.to_dict()}
            tree.setdefault(store, {})[operation] = times
        return tree


def quantile(counts: Sequence[int], part: float) -> float | None:
    """Return the seconds in which a part of the requests was done; ``None`` without any.

    Args:
        counts: The counts of a histogram's buckets; negative ones count as 0.
        part: 0.5 for the median.
    """
    target = part * sum(max(count, 0) for count in counts)
    if not target:
        return None
    for low, high, count in zip((0.0, *BOUNDS), (*BOUNDS, BOUNDS[-1]), counts, strict=True):
        if count >= target:
            # Within a bucket the times are taken as evenly spread, as Prometheus does.
            return low + (high - low) * target / count
        target -= max(count, 0)
    return BOUNDS[-1]


def first_bytes_of(timings: Mapping[str, Any]) -> list[int]:
    """Return the histogram of the first bytes of reads, over all stores; empty without a read.

    Args:
        timings: The times as :meth:`Timings.to_dict` returns them.
    """
    reads = add_up(store["read"] for store in timings.values() if "read" in store)
    counts: list[int] = reads["first_byte"]["counts"] if reads else []
    return counts


def growth(before: Mapping[str, float], now: Mapping[str, float]) -> dict[str, float]:
    """Return the counters that have grown, and by how much."""
    grown = {name: total - before.get(name, 0.0) for name, total in now.items()}
    return {name: rise for name, rise in grown.items() if rise > 0}


def add_up(trees: Iterable[Tree]) -> dict[str, Any]:
    """Add up trees of numbers, name by name and element by element."""
    total: dict[str, Any] = {}
    for tree in trees:
        for name, value in tree.items():
            # A copy: the sum must not be one of its parts.
            total[name] = _sum(total[name], value) if name in total else _copy(value)
    return total


def _sum(one: Any, other: Any) -> Any:
    if isinstance(one, dict):
        return add_up((one, other))
    if isinstance(one, list):
        return [a + b for a, b in zip(one, other, strict=True)]
    return one + other


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return add_up((value,))
    return list(value) if isinstance(value, list) else value


LONGEST_TURN = 0.005
"""Seconds for which one task works before others of the loop get a turn: an idle turn of asyncio's
loop takes about 15 us, so that is 0.3 %."""


class LoopShare:
    """The share of the loop's time that one task takes; ``await`` alone gives no other a turn.

    ::

        if perf_counter() >= share.until:  # for single records, a call would cost more than they
            await share.give_way()
    """

    def __init__(self) -> None:
        self.until = 0.0
        """The time, of ``perf_counter``, until which this task may go on."""

    async def give_way(self) -> None:
        """Let other tasks run, if this one has run for long enough; it may be cancelled here."""
        if perf_counter() >= self.until:
            await asyncio.sleep(0)
            self.until = perf_counter() + LONGEST_TURN


EVERY = 0.05
"""Seconds between two looks at the loop: 20 timers a second are 0.03 % of its time."""
LONG = 0.5
"""Seconds of a delay that is logged. A busy machine delays a loop by a tenth of a second."""
SAY_EVERY = 60.0
"""Seconds between two warnings, at least."""
PERIOD = 30.0
"""Seconds; :attr:`LoopDelay.recent` looks back over one to two of these."""
FRAMES = 12
"""The innermost calls that a warning names."""

log = logging.getLogger("streamrec.flow")


class LoopDelay:
    """The delays of one loop.

    Args:
        clock: Gives the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.histogram = Histogram()
        """The delays since the start, one for each look."""
        self.clock = clock
        self._due = math.inf
        self._period = 0
        self._largest = [0.0, 0.0]
        """The largest delay of this period, and of the one before."""

    def expect(self) -> None:
        """Expect the loop's next turn after :data:`EVERY` seconds."""
        self._due = self.clock() + EVERY

    def rest(self) -> None:
        """Expect no turn any more."""
        self._due = math.inf

    def note(self) -> None:
        """Note a turn of the loop, and expect the next one."""
        delay = max(0.0, self.now)
        self.histogram.observe(delay)
        self._begin_period()
        self._largest[0] = max(self._largest[0], delay)
        self.expect()

    @property
    def now(self) -> float:
        """Seconds for which the loop's next turn is overdue; negative: it is not due yet."""
        return self.clock() - self._due

    @property
    def recent(self) -> float:
        """The largest delay of the last half minute, or of the last minute."""
        self._begin_period()
        return max(*self._largest, self.now)

    def _begin_period(self) -> None:
        period = int(self.clock() / PERIOD)
        if period > self._period:
            before = self._largest[0] if period == self._period + 1 else 0.0
            self._period, self._largest = period, [0.0, before]


@contextmanager
def watching(delay: LoopDelay) -> Iterator[None]:
    """Measure the running loop while the block runs, and log where it stands still for long."""
    loop = asyncio.get_running_loop()
    stopped = threading.Event()
    timer: asyncio.TimerHandle

    def note() -> None:
        nonlocal timer
        delay.note()
        timer = loop.call_later(EVERY, note)

    delay.expect()
    timer = loop.call_later(EVERY, note)
    watcher = _Watcher(delay, threading.get_ident())
    arguments = (watcher, stopped)
    # A daemon thread: it holds nothing, and must not hold up the end of the interpreter.
    threading.Thread(target=_watch, args=arguments, name="streamrec-watch", daemon=True).start()
    try:
        yield
    finally:
        timer.cancel()
        delay.rest()
        stopped.set()


def _watch(watcher: _Watcher, stopped: threading.Event) -> None:
    while not stopped.wait(EVERY):
        watcher.look()


class _Watcher:
    """The part of the watch that looks from outside the loop.

    Args:
        delay: The delays of the loop.
        thread: The identifier of the loop's thread.
    """

    def __init__(self, delay: LoopDelay, thread: int) -> None:
        self._delay = delay
        self._thread = thread
        self._stands = False
        self._said_at = -math.inf
        self._unsaid = 0
        """Delays that were not logged since the last one that was."""

    def look(self) -> None:
        """Log where the loop stands, once for each time that it stands still."""
        seconds = self._delay.now
        stood, self._stands = self._stands, seconds > LONG
        if stood or not self._stands:
            return
        now = self._delay.clock()
        if now < self._said_at + SAY_EVERY:
            self._unsaid += 1
            return
        others = f"; {self._unsaid} other delays were not logged" if self._unsaid else ""
        self._said_at, self._unsaid = now, 0
        where = calls(sys._current_frames().get(self._thread))  # noqa: SLF001 - documented
        log.warning("the event loop has stood still for %.2f s, at %s%s", seconds, where, others)


def calls(frame: FrameType | None) -> str:
    """Return the innermost calls of a stack in one line, the innermost first."""
    # Without the lines of the source, which would be read from the disk.
    walked = [] if frame is None else traceback.walk_stack(frame)
    stack = traceback.StackSummary.extract(walked, limit=FRAMES, lookup_lines=False)
    call_texts = [f"{Path(call.filename).name}:{call.lineno} {call.name}" for call in stack]
    return " < ".join(call_texts) or "an unknown place"
