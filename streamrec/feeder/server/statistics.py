"""The counters of a feeder and its subscriptions, and snapshots of them that add up over processes.

Each subscription measures all its runs; each connection has a log of its own.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import Counter, deque
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

from streamrec.errors import FeederDraining, FeederLost, StreamrecError
from streamrec.flow.child_process import HELPERS
from streamrec.flow.timings import LoopDelay, add_up
from streamrec.masking import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from streamrec.pipeline.served import ServedRun
    from streamrec.wire.messages import Hello


log = logging.getLogger("streamrec.feeder")
MOST_NAME = 200
"""Characters of a dataset's name that are logged: whoever asks may not be known."""
_numbers = count(1)


class SessionLog:
    """The log of one connection; each of its records says which, in the field ``subscription``.

    Args:
        peer: The other end, as text.
    """

    def __init__(self, peer: str) -> None:
        self._clock = asyncio.get_running_loop().time
        self._began = self._clock()
        self._batches = self._bytes = 0
        self._is_welcome = False
        self._facts: dict[str, Any] = {
            "subscription": f"{os.getpid()}-{next(_numbers)}",
            "peer": peer,
        }

    def note_hello(self, hello: Hello) -> None:
        """Note what a client asks for."""
        # Cut: a stranger may send a name of 64 KiB, and each line of the log would carry it.
        self._facts.update(dataset=hello.dataset[:MOST_NAME], world_size=hello.world_size)

    def welcome(self) -> None:
        """Say that a client is welcome."""
        self._is_welcome = True
        self._say(logging.INFO, "a client is welcome")

    def subscribe(self, rank: int, step: int) -> None:
        """Say which rank a client reads, and from which step."""
        self._facts["rank"] = rank
        self._say(logging.INFO, "a client reads from step %d", step)

    def count(self, size: int) -> None:
        """Count a batch that was sent."""
        self._batches += 1
        self._bytes += size

    def fail(self, error: Exception) -> None:
        """Say what a client was told: why it is refused, sent elsewhere, or cannot go on."""
        if not isinstance(error, StreamrecError):
            self._say(logging.ERROR, "serving a client failed", error=error)
        elif isinstance(error, FeederDraining):
            self._say(logging.INFO, "a client is sent elsewhere: %s", error)
        elif not self._is_welcome:
            self._say(logging.WARNING, "a client is refused: %s", error)
        else:
            self._say(logging.WARNING, "a client's stream fails: %s", error)

    def end(self, broken: Exception | None) -> None:
        """Say that the connection is closed, and what was sent."""
        if not self._is_welcome:
            self._say(logging.DEBUG, "a connection ends before its client was welcome: %s", broken)
            return
        why = broken if isinstance(broken, FeederLost) else "it was told why"
        totals: dict[str, Any] = {
            "batches": self._batches,
            "bytes": self._bytes,
            "seconds": round(self._clock() - self._began, 3),
        }
        self._say(logging.INFO, "a client has gone: %s", why, **totals)

    def _say(
        self, level: int, message: str, *arguments: Any, error: Exception | None = None, **more: Any
    ) -> None:
        facts = {**self._facts, **more}
        if arguments and isinstance(arguments[0], StreamrecError):
            place = arguments[0].fields()
            facts.update(shard=place.get("url"), offset=place.get("offset"))
        log.log(level, message, *arguments, exc_info=error, extra=facts)


FETCHED = (
    *("requests", "retries", "throttled", "cut", "hedges", "hedges_won"),
    *("bytes_read", "bytes_used", "cache_hits", "cache_bytes"),
    *("cached_batches", "cached_pictures", "cached_mapped"),
    *("refetched", "skipped_records", "quarantined", "records_excluded"),
)
"""The counters of a run that a feeder adds up."""
GAUGES = (
    *("in_flight", "concurrency", "batches_ready", "bytes_ready"),
    *("bytes_in_memory", "bytes_idle", "bytes_budgeted"),
)
"""The sizes of a run that a feeder adds up while it reads."""


@dataclass(eq=False)
class Subscription:
    """A client that reads one rank of a dataset, in one run after the other."""

    number: int
    """The number of the subscription, from 1 on, in the process that serves it."""
    dataset: str
    rank: int
    world_size: int
    batch_size: int | None
    peer: str | None
    """The address of the client's machine; ``None``: it is this one."""
    since: float = field(default_factory=time.time)
    """The time of its beginning in seconds since 1970."""
    step: int = 0
    """The step after the last batch that was sent."""
    batches: int = 0
    records: int = 0
    bytes: int = 0
    on_first_batch: Callable[[], None] | None = None
    """Called once, when the first batch was sent."""
    _run: ServedRun | None = None
    _ended: dict[str, Any] = field(default_factory=dict)
    """The measures of its runs that are over."""

    def begin(self, run: ServedRun) -> None:
        """Count on with a run."""
        self._run = run
        self.step = run.position.step

    def finish(self) -> None:
        """Keep the measures of the run, which is over."""
        # Measured once more while the run is there: its last counts are in it.
        self._ended, self._run = self.measures(), None

    def count(self, step: int, records: int, nbytes: int) -> None:
        """Count a batch that was sent, after which the run stands at ``step``."""
        self.step = step
        self.batches += 1
        self.records += records
        self.bytes += nbytes
        if self.batches == 1 and self.on_first_batch is not None:
            self.on_first_batch()

    def measures(self) -> dict[str, Any]:
        """Return the counters, the waits and the times of requests of all its runs."""
        return self._ended if self._run is None else add_up((self._ended, measures_of(self._run)))

    def gauges(self) -> dict[str, int]:
        """Return the sizes of its run now."""
        return {} if self._run is None else gauges_of(self._run)

    def to_dict(self) -> dict[str, Any]:
        """Return the facts and the counters that are shown."""
        return {
            "id": self.number,
            "dataset": self.dataset,
            "rank": self.rank,
            "world_size": self.world_size,
            "batch_size": self.batch_size,
            "peer": self.peer or "local",
            "since": self.since,
            "step": self.step,
            "batches": self.batches,
            "records": self.records,
            "bytes": self.bytes,
        }


def measures_of(run: ServedRun) -> dict[str, Any]:
    """Return the counters, the waits and the times of requests of a run.

    ``kept_back``: the seconds of each cause for which no more requests were in flight.
    """
    statistics = run.statistics()
    return {
        "fetch": _some(statistics, FETCHED),
        "kept_back": statistics.get("concurrency_seconds", {}),
        "waits": run.measures.waits.seconds(),
        "timings": run.measures.timings.to_dict(),
    }


def gauges_of(run: ServedRun) -> dict[str, int]:
    """Return the sizes of a run now."""
    return _some(run.statistics(), GAUGES)


def _some(statistics: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, int]:
    return {name: statistics[name] for name in names if name in statistics}


VERSION = 1
"""The version of the form of snapshots; it changes where a name changes its meaning or goes."""
DROPS = ("full", "crowd", "handshake", "tls", "idle", "garbage", "status")
MOST_ERRORS = 20
"""The number of last errors that are kept."""
COUNTERS = ("connections_opened", "cpu_seconds", "dropped", "faults", "timings")
COUNTERS_OF_A_DATASET = ("sent", "fetch", "kept_back", "waits")


@dataclass
class FeederStatistics:
    """The counters of a feeder since its start."""

    worker: int = 1
    """The number of this process among the daemon's workers."""
    started: float = field(default_factory=time.time)
    connections_total: int = 0
    batches: Counter[str] = field(default_factory=Counter)
    """Batches that were sent, by dataset."""
    records: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    """Bytes of whole frames that were sent, by dataset."""
    faults: Counter[str] = field(default_factory=Counter)
    """Errors that were sent to clients, by type."""
    errors: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=MOST_ERRORS))
    """The last of these errors."""
    dropped: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DROPS, 0))
    """Connections that the feeder ended, by reason: no room for the client (``full``), or for so
    many handshakes (``crowd``), a handshake that took too long, or whose TLS failed (``tls``), no
    sign of life (``idle``), not HTTP at the status port (``garbage``), there too many or too slow
    (``status``)."""
    subscriptions: dict[int, Subscription] = field(default_factory=dict)
    """The subscriptions that are served now, by number."""
    tracing: Callable[[Subscription], AbstractContextManager[None]] | None = None
    """Called with each subscription, for a block that lasts as long; ``None``: traces are off."""
    readings: dict[ServedRun, str] = field(default_factory=dict)
    """The datasets of the runs that several subscriptions share."""
    loop: LoopDelay = field(default_factory=LoopDelay)
    """The delays of this process's event loop, where somebody watches it."""
    _ended: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The measures of subscriptions and readings that are over, by dataset."""
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    @contextmanager
    def subscribe(self, dataset: str, **facts: Any) -> Iterator[Subscription]:
        """Show a subscription while the block runs, and keep what it has counted."""
        subscription = Subscription(next(self._numbers), dataset, **facts)
        self.subscriptions[subscription.number] = subscription
        try:
            with nullcontext() if self.tracing is None else self.tracing(subscription):
                yield subscription
        finally:
            # In one turn of the loop, so that no snapshot counts it twice, or not at all.
            del self.subscriptions[subscription.number]
            self._end(dataset, subscription.measures())

    @contextmanager
    def reading(self, dataset: str, run: ServedRun) -> Iterator[None]:
        """Count with a run that several subscriptions share while the block runs."""
        self.readings[run] = dataset
        try:
            yield
        finally:
            del self.readings[run]
            self._end(dataset, _measures_of_shared(run))

    def count_batch(self, subscription: Subscription, step: int, records: int, nbytes: int) -> None:
        """Count a batch that was sent, after which the run stands at ``step``."""
        dataset = subscription.dataset
        self.batches[dataset] += 1
        self.records[dataset] += records
        self.bytes[dataset] += nbytes
        subscription.count(step, records, nbytes)

    def count_opening(self, dataset: str, seconds: float) -> None:
        """Count the time for which a client waited until its dataset was open."""
        self._end(dataset, {"waits": {"list": seconds}})

    def count_fault(self, kind: str, message: str, **where: Any) -> None:
        """Count an error that was sent to a client, and keep its text."""
        self.faults[kind] += 1
        text = printable(message)
        self.errors.append({"time": time.time(), "type": kind, "message": text, **where})

    def snapshot(self) -> dict[str, Any]:
        """Return all of it as JSON can hold it; :func:`merge_snapshots` adds up several."""
        measures = self._measures()
        return {
            "version": VERSION,
            "started": self.started,
            "taken": time.time(),
            "connections_opened": self.connections_total,
            "cpu_seconds": time.process_time() + HELPERS.total(),
            "dropped": dict(self.dropped),
            "faults": dict(self.faults),
            "datasets": {name: self._dataset(name, measures) for name in self._names(measures)},
            "timings": add_up(part.get("timings", {}) for part in measures.values()),
            "subscriptions": [self._describe(each) for each in self.subscriptions.values()],
            "errors": list(self.errors),
            "loop": {"delay": self.loop.histogram.to_dict(), "recent": self.loop.recent},
        }

    def _end(self, dataset: str, measures: Mapping[str, Any]) -> None:
        self._ended[dataset] = add_up((self._ended.get(dataset, {}), measures))

    def _measures(self) -> dict[str, dict[str, Any]]:
        """Return the measures of all subscriptions, those that are over too, by dataset."""
        parts = {name: [ended] for name, ended in self._ended.items()}
        for each in self.subscriptions.values():
            parts.setdefault(each.dataset, []).append(each.measures())
        for run, dataset in self.readings.items():
            parts.setdefault(dataset, []).append(_measures_of_shared(run))
        return {name: add_up(every) for name, every in parts.items()}

    def _names(self, measures: Mapping[str, Any]) -> Iterable[str]:
        return dict.fromkeys((*measures, *self.batches))

    def _dataset(self, name: str, measures: Mapping[str, Any]) -> dict[str, Any]:
        parts, readers = measures.get(name, {}), self._readers(name)
        shared = [gauges_of(run) for run, dataset in self.readings.items() if dataset == name]
        now = add_up((*(each.gauges() for each in readers), *shared))
        return {
            "sent": {
                "batches": self.batches[name],
                "records": self.records[name],
                "bytes": self.bytes[name],
            },
            "fetch": parts.get("fetch", {}),
            "kept_back": parts.get("kept_back", {}),
            "waits": parts.get("waits", {}),
            "now": {"subscriptions": len(readers), **now},
        }

    def _readers(self, name: str) -> list[Subscription]:
        return [each for each in self.subscriptions.values() if each.dataset == name]

    def _describe(self, subscription: Subscription) -> dict[str, Any]:
        waits = subscription.measures().get("waits", {})
        return {"worker": self.worker, **subscription.to_dict(), "waits": waits}


def merge_snapshots(whole: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Add what parts of a daemon have counted to the snapshot of the whole.

    Args:
        whole: The snapshot that says how things are: the state of datasets, clients, memory.
        parts: Snapshots of workers.
    """
    every = (whole, *parts)
    # Each process keeps the last ones of its own; of all of them the latest stay.
    errors = sorted((error for part in every for error in part["errors"]), key=_time)
    names = dict.fromkeys(
        (*whole["datasets"], *(name for part in parts for name in part["datasets"]))
    )
    return {
        **whole,
        **add_up({name: part[name] for name in COUNTERS} for part in every),
        "datasets": {name: _merge_dataset(name, every) for name in names},
        "subscriptions": [each for part in every for each in part["subscriptions"]],
        "errors": errors[-MOST_ERRORS:],
        "loop": {
            "delay": add_up(part["loop"]["delay"] for part in every),
            # Each process has a loop of its own: the worst one counts.
            "recent": max(part["loop"]["recent"] for part in every),
        },
        "budget": whole["budget"] | {"used": sum(part["budget"]["used"] for part in every)},
    }


def keep_counts(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    """Return a snapshot without what goes with its process: what was counted stays."""
    datasets: Mapping[str, Any] = snapshot["datasets"]
    return {
        **snapshot,
        "datasets": {name: {**one, "now": {"subscriptions": 0}} for name, one in datasets.items()},
        "subscriptions": [],
        "loop": {**snapshot["loop"], "recent": 0.0},
        "budget": {"used": 0},
    }


def _merge_dataset(name: str, parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    entries = [part["datasets"][name] for part in parts if name in part["datasets"]]
    names = (*COUNTERS_OF_A_DATASET, "now")
    return {**entries[0], **add_up({name: one[name] for name in names} for one in entries)}


def _time(error: Mapping[str, Any]) -> float:
    time: float = error["time"]
    return time


def _measures_of_shared(run: ServedRun) -> dict[str, Any]:
    """Return the measures of a shared run; its replicas know best what their clients do."""
    measures = measures_of(run)
    measures["waits"].pop("client", None)
    return measures
