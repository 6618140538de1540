"""The samples of a feeder, and the ranks that hold their jobs back by them.

A sample is the difference between two snapshots, which count from the feeder's start.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from streamrec.flow.timings import add_up, first_bytes_of, growth, quantile
from streamrec.report.charts import POINTS
from streamrec.report.pace import StreamPace, describe_late, late_rank
from streamrec.report.words import clip

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

EVERY = 5.0
"""Seconds between two samples."""
LATELY = 30.0
"""Seconds over which the ranks of a job are compared: in fewer, a hiccup would be much."""
MOST = POINTS
"""The most samples that are kept: ten minutes, or a line of the whole width."""

Key: TypeAlias = tuple[int, int, float]
"""A subscription: its worker, its number there, and the time of its beginning."""


class Samples:
    """A ring of samples, and the present rates of subscriptions.

    Args:
        most: The most samples that are kept.
        clock: Gives the time in seconds; the calendar's may be set back.
    """

    def __init__(self, most: int = MOST, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._samples: deque[dict[str, Any]] = deque(maxlen=most)
        self._totals: deque[_Totals] = deque(maxlen=1 + round(LATELY / EVERY))
        """The totals of the last snapshots."""

    def take(self, snapshot: Mapping[str, Any]) -> None:
        """Add the sample of the time from the snapshot before to this one."""
        now = _Totals.of(snapshot, self._clock())
        # Two snapshots of one moment would divide by zero.
        if self._totals and now.time > self._totals[-1].time:
            self._samples.append(_sample(self._totals[-1], now, snapshot))
        self._totals.append(now)

    def add_to(self, snapshot: Mapping[str, Any]) -> dict[str, Any]:
        """Return a snapshot with the samples, and with the rates of its subscriptions."""
        now = _Totals.of(snapshot, self._clock())
        subscriptions = [
            {
                **each,
                "now": self._rates(_key(each), now, snapshot["taken"] - each["since"]),
                "lately": self._lately(_key(each), now),
            }
            for each in snapshot["subscriptions"]
        ]
        return {**snapshot, "subscriptions": subscriptions, "samples": list(self._samples)}

    def _rates(self, key: Key, now: _Totals, age: float) -> dict[str, Any]:
        """Return what a subscription does in a second, over the last interval or two."""
        # The last but one, so that it is over one interval at least.
        marks = [
            mark
            for mark in list(self._totals)[-2:]
            if key in mark.subscriptions and mark.time < now.time
        ]
        # A subscription younger than a sample counts from its beginning.
        began, before = now.time - max(age, 0.001), _Counters()
        if marks:
            began, before = marks[0].time, marks[0].subscriptions[key]
        return now.subscriptions[key].rates_since(before, now.time - began)

    def _lately(self, key: Key, now: _Totals) -> dict[str, Any] | None:
        """Return what a subscription did over the last half minute; ``None``: it has just begun."""
        before = self._totals[0].subscriptions.get(key) if self._totals else None
        seconds = now.time - self._totals[0].time if self._totals else 0.0
        if before is None or seconds < LATELY - EVERY:
            return None
        # The first batch takes some clients longer, as connections are opened for it.
        has_just_begun = not before.records and now.subscriptions[key].records
        return None if has_just_begun else now.subscriptions[key].rates_since(before, seconds)


@dataclass(frozen=True)
class _Counters:
    bytes: int = 0
    records: int = 0
    waits: Mapping[str, float] = field(default_factory=dict)
    """Seconds by stage."""

    @property
    def stall(self) -> float:
        """Seconds for which the client was ready for a batch that had not been sent."""
        return sum(seconds for stage, seconds in self.waits.items() if stage != "client")

    def rates_since(self, before: _Counters, seconds: float) -> dict[str, Any]:
        """Return the differences to an earlier time by second."""
        return {
            "bytes_per_second": max(self.bytes - before.bytes, 0) / seconds,
            "records_per_second": max(self.records - before.records, 0) / seconds,
            # A worker's counts are up to half a second old: a bit more than all time may come out.
            "stalled": min(max(self.stall - before.stall, 0.0) / seconds, 1.0),
            "seconds": seconds,
            "waits": growth(before.waits, self.waits),
        }


@dataclass(frozen=True)
class _Totals:
    """The counters of a snapshot from which samples are made."""

    time: float
    sent: _Counters
    first_bytes: list[int]
    """The counts of the histogram of reads, over all stores."""
    waits: dict[str, float]
    kept_back: dict[str, float]
    """The seconds of each cause for which no more requests were in flight."""
    subscriptions: dict[Key, _Counters]

    @classmethod
    def of(cls, snapshot: Mapping[str, Any], now: float) -> _Totals:
        datasets = snapshot["datasets"].values()
        sent = add_up(dataset["sent"] for dataset in datasets)
        return cls(
            time=now,
            sent=_Counters(sent.get("bytes", 0), sent.get("records", 0)),
            first_bytes=first_bytes_of(snapshot["timings"]),
            waits=add_up(dataset["waits"] for dataset in datasets),
            kept_back=add_up(dataset["kept_back"] for dataset in datasets),
            subscriptions={_key(each): _counters(each) for each in snapshot["subscriptions"]},
        )


def _key(subscription: Mapping[str, Any]) -> Key:
    return subscription["worker"], subscription["id"], subscription["since"]


def _counters(subscription: Mapping[str, Any]) -> _Counters:
    return _Counters(subscription["bytes"], subscription["records"], subscription["waits"])


def _sample(before: _Totals, now: _Totals, snapshot: Mapping[str, Any]) -> dict[str, Any]:
    seconds = now.time - before.time
    rates = now.sent.rates_since(before.sent, seconds)
    # The first read of a store makes its histogram, which was missing before.
    earlier = before.first_bytes or [0] * len(now.first_bytes)
    answers = [count - old for count, old in zip(now.first_bytes, earlier, strict=True)]
    return {
        "taken": snapshot["taken"],
        "seconds": seconds,
        "bytes_per_second": rates["bytes_per_second"],
        "records_per_second": rates["records_per_second"],
        "first_byte_p50": quantile(answers, 0.5),
        "waits": growth(before.waits, now.waits),
        "kept_back": growth(before.kept_back, now.kept_back),
        "subscriptions": len(now.subscriptions),
        "memory": snapshot["budget"]["used"],
    }


MOST_NAME = 80
"""The most characters of a dataset's name in a sentence."""

log = logging.getLogger("streamrec.feeder")


def late_ranks(subscriptions: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a sentence about each job of which one rank waits much longer than the others.

    The ranks of a job read one dataset, and know the same number of ranks.

    Args:
        subscriptions: The subscriptions of a snapshot that has samples, or of several feeders.
    """
    jobs: dict[tuple[str, int], dict[int, Mapping[str, Any]]] = {}
    for each in subscriptions:
        # Missing: it has just begun, or an older feeder serves it.
        if each.get("lately") is not None:
            jobs.setdefault((each["dataset"], each["world_size"]), {})[each["rank"]] = each
    return [line for ranks in jobs.values() if (line := _describe(ranks)) is not None]


class LateLog:
    """A log of the ranks that hold their jobs back, once in half a minute.

    Args:
        clock: Gives the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told = -LATELY

    def look(self, snapshot: Mapping[str, Any]) -> None:
        """Log the ranks that are late in a snapshot, unless some were logged just before."""
        now = self._clock()
        lines = late_ranks(snapshot["subscriptions"]) if now >= self._told + LATELY else []
        for line in lines:
            self._told = now
            log.warning("%s", line)


def _describe(ranks: Mapping[int, Mapping[str, Any]]) -> str | None:
    paces = {rank: _pace(each["lately"]) for rank, each in ranks.items()}
    late = late_rank(paces)
    if late is None:
        return None
    dataset = clip(ranks[late]["dataset"], MOST_NAME)
    return f"{dataset}: {describe_late(late, ranks[late]['peer'], paces)}"


def _pace(lately: Mapping[str, Any]) -> StreamPace:
    waits = {stage: spent / lately["seconds"] for stage, spent in lately["waits"].items()}
    return StreamPace(seconds=lately["seconds"], waited=lately["stalled"], waits=waits)
