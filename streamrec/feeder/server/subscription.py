"""The log of one connection, and the measures of its subscription to a dataset."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

from streamrec.errors import FeederDraining, FeederLost, StreamrecError
from streamrec.flow.timings import added

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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

    def hello(self, hello: Hello) -> None:
        """Note what a client asks for."""
        self._facts.update(dataset=hello.dataset[:MOST_NAME], world_size=hello.world_size)

    def welcomed(self) -> None:
        """Say that a client is welcome."""
        self._is_welcome = True
        self._say(logging.INFO, "a client is welcome")

    def subscribed(self, rank: int, step: int) -> None:
        """Say which rank a client reads, and from which step."""
        self._facts["rank"] = rank
        self._say(logging.INFO, "a client reads from step %d", step)

    def sent(self, size: int) -> None:
        """Count a batch that was sent."""
        self._batches += 1
        self._bytes += size

    def failed(self, error: Exception) -> None:
        """Say what a client was told: why it is refused, sent elsewhere, or cannot go on."""
        if not isinstance(error, StreamrecError):
            self._say(logging.ERROR, "serving a client failed", error=error)
        elif isinstance(error, FeederDraining):
            self._say(logging.INFO, "a client is sent elsewhere: %s", error)
        elif not self._is_welcome:
            self._say(logging.WARNING, "a client is refused: %s", error)
        else:
            self._say(logging.WARNING, "a client's stream fails: %s", error)

    def ended(self, broken: Exception | None) -> None:
        """Say that the connection is closed, and what was sent."""
        if not self._is_welcome:
            self._say(logging.DEBUG, "a connection ends before anybody was welcome: %s", broken)
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
    *("refetched", "skipped_records", "quarantined"),
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
    """The step behind the last batch that was sent."""
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
        self._ended, self._run = self.measures(), None

    def count(self, step: int, records: int, nbytes: int) -> None:
        """Count a batch that was sent, behind which the run stands at ``step``."""
        self.step = step
        self.batches += 1
        self.records += records
        self.bytes += nbytes
        if self.batches == 1 and self.on_first_batch is not None:
            self.on_first_batch()

    def measures(self) -> dict[str, Any]:
        """Return the counters, the waits and the times of requests of all its runs."""
        return self._ended if self._run is None else added((self._ended, measures_of(self._run)))

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
