"""Reports on a stream, once a period, from a thread of their own."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections import defaultdict
from contextlib import suppress
from itertools import count
from socket import gethostname
from typing import TYPE_CHECKING, Any, Protocol

from streamrec.report.pace import pace_between, values_of
from streamrec.streams.boards import find_board
from streamrec.streams.rank_watch import LastBeats, RankWatch, beats_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from streamrec.report.pace import StreamPace
    from streamrec.streams.targets import Tracker

PATIENCE = 5.0
"""Seconds that the end of a stream waits for the last report. A tracker may never answer."""

log = logging.getLogger("streamrec")
_places: defaultdict[str, count[int]] = defaultdict(count)


def place_of(topic: str) -> str:
    """Return the place on the board of the next stream that this process reports on.

    All ranks must begin to report on streams of one topic in the same order.

    Args:
        topic: The name of the stream; streams over one source have the same.
    """
    return f"{topic}#{next(_places[topic])}"


class Measured(Protocol):
    """The part of a stream that is reported on."""

    @property
    def epoch(self) -> int:
        """The epoch of what comes next."""

    def statistics(self) -> dict[str, Any]:
        """Return the counters."""


class Periods:
    """The figures of a stream, period by period.

    Args:
        statistics: ``stream.statistics()`` at the beginning.
        clock: Gives the time in seconds.
    """

    def __init__(
        self, statistics: Mapping[str, Any], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._began = clock()
        self._before = statistics

    def end(self, statistics: Mapping[str, Any]) -> StreamPace:
        """End a period, and begin the next; return the figures of the one that ends.

        Args:
            statistics: ``stream.statistics()`` now.
        """
        now = self._clock()
        # Two calls in one moment would divide by zero.
        pace = pace_between(self._before, statistics, max(now - self._began, 1e-6))
        self._began, self._before = now, statistics
        return pace


class Reporter:
    """Threads that report on a stream, until the stream is closed or dropped.

    Args:
        stream: The stream, which the threads do not keep alive.
        target: Takes the figures.
        every: Seconds of a period.
        topic: The name of the stream, the same on all ranks; ``None``: another reporter compares it
            with those of other ranks.
    """

    def __init__(self, stream: Measured, target: Tracker, every: float, topic: str | None) -> None:
        ended = threading.Event()
        self._ended = ended
        self._stream = weakref.ref(stream, lambda _: ended.set())
        self._target = target
        self._every = every
        self._periods = Periods(stream.statistics())
        self._last_beats = LastBeats()
        self._topic = topic and place_of(topic)
        self._watch: RankWatch | None = None
        self._has_failed = False
        self._threads = [self._start(self._write, every, self._end)]
        if topic is not None:
            # Another thread, so that a tracker that hangs does not look like a rank that does.
            self._threads.append(self._start(self._compare, every / beats_of(every), self._leave))

    def close(self) -> None:
        """Report once more, and end; wait for that, but not for long."""
        self._ended.set()
        until = time.monotonic() + PATIENCE
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _start(
        self, work: Callable[[], object], every: float, last: Callable[[], object]
    ) -> threading.Thread:
        """Start a thread that works once in so many seconds, and does the last work at the end."""

        def run() -> None:
            while not self._ended.wait(every):
                self._attempt(work)
            last()

        # A daemon: a tracker that does not answer must not keep the interpreter from its end.
        thread = threading.Thread(target=run, name="streamrec-report", daemon=True)
        thread.start()
        return thread

    def _attempt(self, work: Callable[[], object]) -> None:
        """Do a part of the work; its first error is logged, and all others are passed over."""
        try:
            work()
        except Exception as error:  # noqa: BLE001 - a tracker that fails must not end a training job
            if not self._has_failed:
                self._has_failed = True
                log.warning(
                    "report_to has failed (%s: %s); the job and the next reports go on, and no "
                    "other failure is logged",
                    type(error).__name__,
                    error,
                )

    def _write(self) -> None:
        """Write the figures of the period that ends now."""
        stream = self._stream()
        if stream is None:
            return
        statistics, epoch = stream.statistics(), stream.epoch
        del stream  # else this thread may be the one in which it is dropped
        values = {**values_of(self._periods.end(statistics)), "epoch": float(epoch)}
        self._target.write(statistics["step"], values)

    def _end(self) -> None:
        self._attempt(self._write)
        self._attempt(self._target.end)

    def _compare(self) -> None:
        """Compare this rank with the others, as soon as a framework knows them."""
        stream = self._stream()
        if stream is None:
            return
        pace = self._last_beats.beat(stream.statistics())
        del stream  # else this thread may be the one in which it is dropped
        watch = self._watch = self._watch or self._find_watch()
        if watch is not None and (line := watch.look(pace)) is not None:
            log.warning("%s", line)

    def _find_watch(self) -> RankWatch | None:
        assert self._topic is not None  # else nothing is compared
        board = find_board(self._topic)
        if board is None or board.size == 1:
            return None
        return RankWatch(board, self._every, gethostname())

    def _leave(self) -> None:
        if self._watch is not None:
            # The store may be gone already, as its framework ends.
            with suppress(Exception):
                self._watch.leave()
