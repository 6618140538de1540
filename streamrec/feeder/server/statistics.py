"""The counters of a feeder, and snapshots of them that add up over processes."""

from __future__ import annotations

import time
from collections import Counter, deque
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

from streamrec.feeder.server.subscription import Subscription, gauges_of, measures_of
from streamrec.flow.loop_delay import LoopDelay
from streamrec.flow.timings import added
from streamrec.masking import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from streamrec.pipeline.served import ServedRun

VERSION = 1
"""The version of the form of snapshots; it changes where a name changes its meaning or goes."""
DROPS = ("full", "crowd", "handshake", "tls", "idle", "garbage", "status")
MOST_ERRORS = 20
"""The number of last errors that are kept."""
COUNTERS = ("connections_opened", "dropped", "faults", "timings")
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
    def subscribed(self, dataset: str, **facts: Any) -> Iterator[Subscription]:
        """Show a subscription while the block runs, and keep what it has counted."""
        subscription = Subscription(next(self._numbers), dataset, **facts)
        self.subscriptions[subscription.number] = subscription
        try:
            with nullcontext() if self.tracing is None else self.tracing(subscription):
                yield subscription
        finally:
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
            self._end(dataset, _shared(run))

    def sent(self, subscription: Subscription, step: int, records: int, nbytes: int) -> None:
        """Count a batch that was sent, behind which the run stands at ``step``."""
        dataset = subscription.dataset
        self.batches[dataset] += 1
        self.records[dataset] += records
        self.bytes[dataset] += nbytes
        subscription.count(step, records, nbytes)

    def opened(self, dataset: str, seconds: float) -> None:
        """Count the time for which a client waited until its dataset was open."""
        self._end(dataset, {"waits": {"list": seconds}})

    def failed(self, kind: str, message: str, **where: Any) -> None:
        """Count an error that was sent to a client, and keep its text."""
        self.faults[kind] += 1
        text = printable(message)
        self.errors.append({"time": time.time(), "type": kind, "message": text, **where})

    def snapshot(self) -> dict[str, Any]:
        """Return all of it as JSON can hold it; :func:`merged` adds up those of several feeders."""
        measures = self._measures()
        return {
            "version": VERSION,
            "started": self.started,
            "taken": time.time(),
            "connections_opened": self.connections_total,
            "dropped": dict(self.dropped),
            "faults": dict(self.faults),
            "datasets": {name: self._dataset(name, measures) for name in self._names(measures)},
            "timings": added(part.get("timings", {}) for part in measures.values()),
            "subscriptions": [self._shown(each) for each in self.subscriptions.values()],
            "errors": list(self.errors),
            "loop": {"delay": self.loop.histogram.to_dict(), "recent": self.loop.recent},
        }

    def _end(self, dataset: str, measures: Mapping[str, Any]) -> None:
        self._ended[dataset] = added((self._ended.get(dataset, {}), measures))

    def _measures(self) -> dict[str, dict[str, Any]]:
        """Return the measures of all subscriptions, those that are over too, by dataset."""
        parts = {name: [ended] for name, ended in self._ended.items()}
        for each in self.subscriptions.values():
            parts.setdefault(each.dataset, []).append(each.measures())
        for run, dataset in self.readings.items():
            parts.setdefault(dataset, []).append(_shared(run))
        return {name: added(every) for name, every in parts.items()}

    def _names(self, measures: Mapping[str, Any]) -> Iterable[str]:
        return dict.fromkeys((*measures, *self.batches))

    def _dataset(self, name: str, measures: Mapping[str, Any]) -> dict[str, Any]:
        parts, readers = measures.get(name, {}), self._readers(name)
        shared = [gauges_of(run) for run, dataset in self.readings.items() if dataset == name]
        now = added((*(each.gauges() for each in readers), *shared))
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

    def _shown(self, subscription: Subscription) -> dict[str, Any]:
        waits = subscription.measures().get("waits", {})
        return {"worker": self.worker, **subscription.to_dict(), "waits": waits}


def merged(whole: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Add what parts of a daemon have counted to the snapshot of the whole.

    Args:
        whole: The snapshot that says how things are: the state of datasets, clients, memory.
        parts: Snapshots of workers.
    """
    every = (whole, *parts)
    errors = sorted((error for part in every for error in part["errors"]), key=_time)
    names = dict.fromkeys(
        (*whole["datasets"], *(name for part in parts for name in part["datasets"]))
    )
    return {
        **whole,
        **added({name: part[name] for name in COUNTERS} for part in every),
        "datasets": {name: _merged_dataset(name, every) for name in names},
        "subscriptions": [each for part in every for each in part["subscriptions"]],
        "errors": errors[-MOST_ERRORS:],
        "loop": {
            "delay": added(part["loop"]["delay"] for part in every),
            "recent": max(part["loop"]["recent"] for part in every),
        },
        "budget": whole["budget"] | {"used": sum(part["budget"]["used"] for part in every)},
    }


def counted(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    """Return a snapshot without what goes with its process: what was counted stays."""
    datasets: Mapping[str, Any] = snapshot["datasets"]
    return {
        **snapshot,
        "datasets": {name: {**one, "now": {"subscriptions": 0}} for name, one in datasets.items()},
        "subscriptions": [],
        "loop": {**snapshot["loop"], "recent": 0.0},
        "budget": {"used": 0},
    }


def _merged_dataset(name: str, parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    found = [part["datasets"][name] for part in parts if name in part["datasets"]]
    names = (*COUNTERS_OF_A_DATASET, "now")
    return {**found[0], **added({name: one[name] for name in names} for one in found)}


def _time(error: Mapping[str, Any]) -> float:
    time: float = error["time"]
    return time


def _shared(run: ServedRun) -> dict[str, Any]:
    """Return the measures of a shared run; its replicas know best what their clients do."""
    measures = measures_of(run)
    measures["waits"].pop("client", None)
    return measures
