"""The counters of a feeder, and their snapshot."""

from __future__ import annotations

import time
from collections import Counter, deque
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

from streamrec.feeder.subscription import Subscription
from streamrec.flow.timings import added

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = ["VERSION", "Statistics"]

VERSION = 1
"""The version of the form of snapshots; it changes where a name changes its meaning or goes."""
DROPS = ("full", "crowd", "handshake", "idle")
MOST_ERRORS = 20
"""The number of last errors that are kept."""


@dataclass
class Statistics:
    """The counters of a feeder since its start."""

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
    many handshakes (``crowd``), a handshake that took too long, no sign of life (``idle``)."""
    subscriptions: dict[int, Subscription] = field(default_factory=dict)
    """The subscriptions that are served now, by number."""
    _ended: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The measures of subscriptions that are over, by dataset."""
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    @contextmanager
    def subscribed(self, dataset: str, **facts: Any) -> Iterator[Subscription]:
        """Show a subscription while the block runs, and keep what it has counted."""
        subscription = Subscription(next(self._numbers), dataset, **facts)
        self.subscriptions[subscription.number] = subscription
        try:
            yield subscription
        finally:
            del self.subscriptions[subscription.number]
            self._end(dataset, subscription.measures())

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
        self.errors.append({"time": time.time(), "type": kind, "message": message, **where})

    def snapshot(self) -> dict[str, Any]:
        """Return all of it as JSON can hold it."""
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
            "subscriptions": [_shown(each) for each in self.subscriptions.values()],
            "errors": list(self.errors),
        }

    def _end(self, dataset: str, measures: Mapping[str, Any]) -> None:
        self._ended[dataset] = added((self._ended.get(dataset, {}), measures))

    def _measures(self) -> dict[str, dict[str, Any]]:
        """Return the measures of all subscriptions, those that are over too, by dataset."""
        parts = {name: [ended] for name, ended in self._ended.items()}
        for each in self.subscriptions.values():
            parts.setdefault(each.dataset, []).append(each.measures())
        return {name: added(every) for name, every in parts.items()}

    def _names(self, measures: Mapping[str, Any]) -> Iterable[str]:
        return dict.fromkeys((*measures, *self.batches))

    def _dataset(self, name: str, measures: Mapping[str, Any]) -> dict[str, Any]:
        parts, readers = measures.get(name, {}), self._readers(name)
        return {
            "sent": {
                "batches": self.batches[name],
                "records": self.records[name],
                "bytes": self.bytes[name],
            },
            "fetch": parts.get("fetch", {}),
            "waits": parts.get("waits", {}),
            "now": {"subscriptions": len(readers), **added(each.gauges() for each in readers)},
        }

    def _readers(self, name: str) -> list[Subscription]:
        return [each for each in self.subscriptions.values() if each.dataset == name]


def _shown(subscription: Subscription) -> dict[str, Any]:
    return subscription.to_dict() | {"waits": subscription.measures().get("waits", {})}
