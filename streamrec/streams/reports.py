"""Reports on a stream, once a period, from a thread of their own."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import weakref
from collections import defaultdict
from contextlib import suppress
from itertools import count
from socket import gethostname
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from streamrec.config.arguments import kind_of
from streamrec.errors import ConfigError
from streamrec.flow import endings
from streamrec.masking import masked
from streamrec.report.pace import pace_between, values_of
from streamrec.streams.rank_watch import LastBeats, RankWatch, beats_of, find_board

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from prometheus_client import Metric

    from streamrec.report.pace import StreamPace

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
    """Threads that report on a stream, until the stream is closed or dropped or the program ends.

    Args:
        stream: The stream, which the threads do not keep alive.
        target: Takes the figures.
        every: Seconds of a period.
        topic: The name of the stream, the same on all ranks; ``None``: another reporter compares it
            with those of other ranks.
        changes: Returns the changes of the weights of a stream that mixes.
    """

    def __init__(
        self,
        stream: Measured,
        target: Tracker,
        every: float,
        topic: str | None,
        changes: Callable[[Any], str] = lambda _: "",
    ) -> None:
        self._changes = changes
        self._ended = threading.Event()
        self._stream = weakref.ref(stream)
        self._left: tuple[dict[str, Any], int] | None = None
        """The counters of a stream that was dropped, and its epoch."""
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
        _OPEN.add(self)

    def close(self) -> None:
        """Report once more, and end; wait for that, but not for long."""
        self._ended.set()
        until = time.monotonic() + PATIENCE
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def leave(self, stream: Measured) -> None:
        """Report once more on a stream that is dropped, and end; wait for nothing."""
        try:
            self._left = stream.statistics(), stream.epoch
        finally:
            self._ended.set()

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
        facts = self._left if stream is None else (stream.statistics(), stream.epoch)
        del stream  # else this thread may be the one in which it is dropped
        if facts is None:
            return
        statistics, epoch = facts
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
        pace, changes = self._last_beats.beat(stream.statistics()), self._changes(stream)
        del stream  # else this thread may be the one in which it is dropped
        watch = self._watch = self._watch or self._find_watch()
        if watch is not None and (line := watch.look(pace, changes)) is not None:
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


_OPEN: weakref.WeakSet[Reporter] = weakref.WeakSet()
"""The reporters whose streams may be open when the program ends."""


def _close_all() -> None:
    for one in list(_OPEN):
        one.close()


# Before the functions of ``atexit``, by which engines and trackers end.
endings.after_readers(_close_all)
os.register_at_fork(after_in_child=_OPEN.clear)  # their threads are the parent's


Write: TypeAlias = "Callable[[int, Mapping[str, float]], object]"
"""A function that takes the step, and the figures by name."""

PREFIX = "streamrec/"
"""The folder of our figures, among those of the training job."""


def _nothing() -> None:
    pass


class Tracker(NamedTuple):
    """A tracker as a function, and the call that ends its use."""

    write: Write
    end: Callable[[], object] = _nothing


def target_of(target: Any, labels: Mapping[str, str]) -> Tracker:
    """Return how to write to a tracker.

    Args:
        target: The tracker; ``None``: the figures are written nowhere.
        labels: The names and values that tell this rank from others, for Prometheus.

    Raises:
        ConfigError: It is of no kind that is known, or has no run yet.
    """
    library = _library_of(target)
    if target is None:
        return Tracker(lambda *_: None)
    if library == "wandb":
        return _wandb(target)
    if library == "mlflow":
        return _mlflow(target)
    if isinstance(target, str):
        return _pushgateway(target, labels)
    if hasattr(target, "add_scalar"):
        return _tensorboard(target)
    if hasattr(target, "log_metrics"):
        return Tracker(lambda step, values: target.log_metrics(_ours(values), step=step))
    if hasattr(target, "register") and hasattr(target, "unregister"):
        return _registry(target, labels)
    if callable(target):
        return Tracker(lambda step, values: target(step, dict(values)))
    raise ConfigError(
        f"report_to cannot write to {kind_of(target)}; give a SummaryWriter of TensorBoard, a run "
        "of Weights & Biases or MLflow, a CollectorRegistry of Prometheus, the URL of a "
        "Pushgateway, or a function f(step, values)"
    )


def _library_of(target: Any) -> str:
    name = target.__name__ if isinstance(target, ModuleType) else type(target).__module__
    return name.partition(".")[0]


def _ours(values: Mapping[str, float]) -> dict[str, float]:
    return {PREFIX + name: value for name, value in values.items()}


def _tensorboard(writer: Any) -> Tracker:
    def write(step: int, values: Mapping[str, float]) -> None:
        for name, value in _ours(values).items():
            writer.add_scalar(name, value, step)

    # A writer that nobody closes loses what it has not flushed when the program ends.
    return Tracker(write, getattr(writer, "flush", _nothing))


def _wandb(target: Any) -> Tracker:
    run = target.run if isinstance(target, ModuleType) else target
    if run is None:
        raise ConfigError("Weights & Biases has no run yet; call wandb.init() before report_to")
    run.define_metric(f"{PREFIX}*", step_metric=f"{PREFIX}step")
    # Without a commit: that would count a step of the run, and drop what the job logs with its own.
    return Tracker(lambda step, values: run.log(_ours({**values, "step": step}), commit=False))


def _mlflow(target: Any) -> Tracker:
    mlflow = sys.modules["mlflow"]
    run = mlflow.active_run() if isinstance(target, ModuleType) else target
    if run is None:
        raise ConfigError("MLflow has no active run; call mlflow.start_run() before report_to")
    # By its name: the active run is one of the thread, and this is called in another.
    name = run.info.run_id
    return Tracker(lambda step, values: mlflow.log_metrics(_ours(values), step=step, run_id=name))


class _Gauges:
    """The latest figures as a collector of Prometheus.

    Args:
        labels: The labels of each gauge.
    """

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._labels = labels
        self._values: Mapping[str, float] = {}

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._values = {**values, "step": step}

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import GaugeMetricFamily

        for name, value in self._values.items():
            text = f"{name} of the last period, as stream.report_to describes it."
            gauge = GaugeMetricFamily(
                f"streamrec_stream_{name.replace('/', '_')}", text, labels=list(self._labels)
            )
            gauge.add_metric(list(self._labels.values()), value)
            yield gauge


def _registry(registry: Any, labels: Mapping[str, str]) -> Tracker:
    gauges = _Gauges(labels)
    registry.register(gauges)
    return Tracker(gauges.write, lambda: registry.unregister(gauges))


def _pushgateway(url: str, labels: Mapping[str, str]) -> Tracker:
    if not url.startswith(("http://", "https://")):
        raise ConfigError(
            f"report_to cannot write to {masked(url)!r}; give the URL of a Pushgateway, such as "
            "'http://pushgateway:9091'"
        )
    from prometheus_client import CollectorRegistry, push_to_gateway

    registry, gauges = CollectorRegistry(), _Gauges({})
    registry.register(gauges)

    def write(step: int, values: Mapping[str, float]) -> None:
        gauges.write(step, values)
        push_to_gateway(url, job="streamrec", registry=registry, grouping_key=dict(labels))

    return Tracker(write)
