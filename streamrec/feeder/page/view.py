"""The view of a feeder: what its page and ``streamrec top`` show of a snapshot, as text. No I/O.

A snapshot counts from the start of the feeder. What is shown is how fast it counts: samples of the
last minutes are the differences between snapshots.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from streamrec.flow.stages import BOXES, RESOURCES, TABLE
from streamrec.flow.timings import add_up, quantile
from streamrec.report.charts import POINTS, Line
from streamrec.report.verdict import Evidence, judge
from streamrec.report.words import (
    clip,
    clock,
    count_of,
    duration,
    memory,
    percent,
    rate,
    seconds,
    size,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from streamrec.flow.stages import Box
    from streamrec.report.verdict import Blame


EVERY = 5.0
"""Seconds between two samples."""
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
        self._totals: deque[_Totals] = deque(maxlen=2)
        """The totals of the last snapshots: a rate is over one interval at least."""

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
            {**each, "now": self._rates(_key(each), now, snapshot["taken"] - each["since"])}
            for each in snapshot["subscriptions"]
        ]
        return {**snapshot, "subscriptions": subscriptions, "samples": list(self._samples)}

    def _rates(self, key: Key, now: _Totals, age: float) -> dict[str, float]:
        """Return what a subscription does in a second, over the last interval or two."""
        marks = [
            mark for mark in self._totals if key in mark.subscriptions and mark.time < now.time
        ]
        # A subscription younger than a sample counts from its beginning.
        began, before = now.time - max(age, 0.001), _Counters()
        if marks:
            began, before = marks[0].time, marks[0].subscriptions[key]
        return now.subscriptions[key].rates_since(before, now.time - began)


@dataclass(frozen=True)
class _Counters:
    bytes: int = 0
    records: int = 0
    stall: float = 0.0
    """Seconds for which the client was ready for a batch that had not been sent."""

    def rates_since(self, before: _Counters, seconds: float) -> dict[str, float]:
        """Return the differences to an earlier time by second."""
        return {
            "bytes_per_second": max(self.bytes - before.bytes, 0) / seconds,
            "records_per_second": max(self.records - before.records, 0) / seconds,
            # A worker's counts are up to half a second old: a bit more than all time may come out.
            "stalled": min(max(self.stall - before.stall, 0.0) / seconds, 1.0),
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
        reads = add_up(store["read"] for store in snapshot["timings"].values() if "read" in store)
        return cls(
            time=now,
            sent=_Counters(sent.get("bytes", 0), sent.get("records", 0)),
            first_bytes=reads["first_byte"]["counts"] if reads else [],
            waits=add_up(dataset["waits"] for dataset in datasets),
            kept_back=add_up(dataset["kept_back"] for dataset in datasets),
            subscriptions={_key(each): _counters(each) for each in snapshot["subscriptions"]},
        )


def _key(subscription: Mapping[str, Any]) -> Key:
    return subscription["worker"], subscription["id"], subscription["since"]


def _counters(subscription: Mapping[str, Any]) -> _Counters:
    waits = subscription["waits"]
    stall = sum(seconds for stage, seconds in waits.items() if stage != "client")
    return _Counters(subscription["bytes"], subscription["records"], stall)


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
        "waits": _growth(before.waits, now.waits),
        "kept_back": _growth(before.kept_back, now.kept_back),
        "subscriptions": len(now.subscriptions),
        "memory": snapshot["budget"]["used"],
    }


def _growth(before: Mapping[str, float], now: Mapping[str, float]) -> dict[str, float]:
    """Return what has grown, and by how much."""
    grown = {name: total - before.get(name, 0.0) for name, total in now.items()}
    return {name: seconds for name, seconds in grown.items() if seconds > 0}


WINDOW = 60.0
"""Seconds over which waits are added up: long enough to be steady, short enough to be now."""


@dataclass(frozen=True)
class Fill:
    """The fill of a stage."""

    text: str
    part: float | None = None
    """0 to 1; ``None`` where nothing limits it."""


@dataclass(frozen=True)
class PathStage:
    """A stage of the path, or several that a person sees as one."""

    name: str
    fill: Fill | None
    waits: dict[str, float]
    """The part of subscriptions' time that each of its stages held back, 0 to 1."""
    is_limit: bool = False
    """True: a faster feeder, or store, begins here; at ``client`` the feeder is fast enough."""
    longest: str | None = None
    """Of a limit, the stage that held back for longest."""
    kept_back: str = ""
    """The cause for which a limit that waits for the store made no more requests at a time."""

    @property
    def share(self) -> float:
        """The part of subscriptions' time that it held back."""
        return sum(self.waits.values())

    @property
    def detail(self) -> str:
        """The shares of its stages where these are several."""
        parts = sorted(self.waits.items(), key=lambda item: -item[1])
        some = [f"{stage} {percent(part)}" for stage, part in parts if part >= 0.005]
        return ", ".join(some) if len(some) > 1 or (some and parts[0][0] != self.name) else ""


def _open_datasets(snapshot: Mapping[str, Any]) -> Fill:
    states = [dataset["state"] for dataset in snapshot["datasets"].values()]
    is_open = states.count("open")
    return Fill(f"{is_open} of {len(states)} datasets open", _part(is_open, len(states)))


def _requests(snapshot: Mapping[str, Any]) -> Fill:
    now = _add_up_now(snapshot)
    under_way, limit = now.get("in_flight", 0), now.get("concurrency", 0)
    return Fill(f"{under_way:,} of {limit:,} requests", _part(under_way, limit))


def _buffers(snapshot: Mapping[str, Any]) -> Fill:
    now = _add_up_now(snapshot)
    used, limit = now.get("bytes_in_memory", 0), now.get("bytes_budgeted", 0)
    return Fill(f"{memory(used)} of {memory(limit)} buffers", _part(used, limit))


def _ready(snapshot: Mapping[str, Any]) -> Fill:
    now = _add_up_now(snapshot)
    batches = count_of(now.get("batches_ready", 0), "batch", "batches")
    return Fill(f"{batches}, {memory(now.get('bytes_ready', 0))}")


def _throughput(snapshot: Mapping[str, Any]) -> Fill:
    samples = snapshot["samples"]
    return Fill(rate(samples[-1]["bytes_per_second"] if samples else 0))


def _clients(snapshot: Mapping[str, Any]) -> Fill:
    return Fill(count_of(len(snapshot["subscriptions"]), "subscription", "subscriptions"))


_FILLS: Final[Mapping[Box, Callable[[Mapping[str, Any]], Fill]]] = {
    "list": _open_datasets,
    "fetch": _requests,
    "order": _buffers,
    "queue": _ready,
    "wire": _throughput,
    "client": _clients,
}
"""How full a box is, where that is known."""


def path_of(snapshot: Mapping[str, Any]) -> list[PathStage]:
    """Return the stages in the order in which bytes go through them."""
    shares = _shares(snapshot)
    stages = [
        PathStage(
            name=box,
            fill=_FILLS[box](snapshot) if box in _FILLS else None,
            waits={part: shares.get(part, 0.0) for part in parts},
        )
        for box, parts in BOXES.items()
    ]
    # Only stages that have a box: a newer feeder may tell more, which top cannot show.
    waits = {part: share for stage in stages for part, share in stage.waits.items()}
    blame = judge(Evidence(waits=waits, kept_back=_add_up_lately(snapshot, "kept_back")))
    return [
        replace(stage, is_limit=True, longest=blame.stage, kept_back=_describe_cause(stage, blame))
        if blame.stage is not None and blame.stage in stage.waits
        else stage
        for stage in stages
    ]


def verdict_of(path: list[PathStage]) -> str:
    """Return one sentence about where the wait is."""
    limit = next((stage for stage in path if stage.is_limit), None)
    if limit is None:
        return "Nobody reads now."
    if limit.name == "client":
        return "The trainers are the bottleneck, as it should be."
    waits = sum(stage.share for stage in path[:-1])
    awaited = TABLE[limit.longest].awaited if limit.longest else ""
    because = f" Meanwhile {limit.kept_back}." if limit.kept_back else ""
    return f"Clients wait for {percent(waits)} of the time, longest for {awaited}.{because}"


def _shares(snapshot: Mapping[str, Any]) -> dict[str, float]:
    """Return the part of the last minute that each stage held back, of all subscriptions."""
    total = _add_up_lately(snapshot, "waits")
    whole = sum(total.values())
    return {stage: wait / whole for stage, wait in total.items()} if whole else {}


def _describe_cause(limit: PathStage, blame: Blame) -> str:
    """Return the cause that kept requests few for most of the time, if it is one to tell."""
    resource = RESOURCES[blame.resource] if blame.resource is not None else None
    return resource.meanwhile if resource is not None and limit.name == "fetch" else ""


def _add_up_lately(snapshot: Mapping[str, Any], name: str) -> dict[str, float]:
    """Return seconds by name, added up over the last minute."""
    parts, covered = [], 0.0
    for sample in reversed(snapshot["samples"]):
        if covered >= WINDOW:
            break
        parts.append(sample[name])
        covered += sample["seconds"]
    if not parts:  # The feeder has just started.
        parts = [dataset[name] for dataset in snapshot["datasets"].values()]
    return add_up(parts)


def _add_up_now(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    return add_up(dataset["now"] for dataset in snapshot["datasets"].values())


def _part(some: float, limit: float) -> float:
    return min(max(some / limit, 0.0), 1.0) if limit > 0 else 0.0


MOST_ROWS = 200
"""The most subscriptions, and the most datasets, that are shown; all are in ``/status.json``."""
MOST_NAME = 80
"""The most characters of a name that are shown."""
MOST_STATE = 160


@dataclass(frozen=True)
class SessionMemory:
    """The memory of sessions; ``lent`` and ``limit`` are 0 where they share none."""

    used: int
    lent: int
    limit: int

    @property
    def text(self) -> str:
        """All of it in one line."""
        if not self.limit:
            return f"{memory(self.used)} in use"
        return f"{memory(self.used)} in use, {memory(self.lent)} lent of {memory(self.limit)}"


@dataclass(frozen=True)
class View:
    """The facts about a feeder, as text. What came from elsewhere is bounded, but not escaped."""

    state: str
    """``"ready"``, or why no new client could be served now."""
    is_ready: bool
    taken: str
    up: str
    workers: str
    """The processes that serve clients, and how many were lost."""
    build: dict[str, str]
    is_slow: bool
    """True: the kernel in C is missing."""
    facts: list[tuple[str, str]]
    """The most important numbers, by name."""
    memory: SessionMemory
    path: list[PathStage]
    verdict: str
    series: list[Line]
    datasets: list[dict[str, str]]
    subscriptions: list[dict[str, str]]
    errors: list[dict[str, str]]
    """The latest first."""
    more_datasets: int
    """The number of those that are not shown."""
    more_subscriptions: int


def view_of(snapshot: Mapping[str, Any]) -> View:
    """Return what is shown of a snapshot that has samples."""
    path, series, is_ready = path_of(snapshot), _series(snapshot), snapshot["obstacle"] is None
    datasets, subscriptions = list(_datasets(snapshot)), snapshot["subscriptions"]
    return View(
        state="ready" if is_ready else f"not ready: {clip(snapshot['obstacle'], MOST_STATE)}",
        is_ready=is_ready,
        taken=clock(snapshot["taken"]),
        up=duration(snapshot["taken"] - snapshot["started"]),
        workers=_workers(snapshot["workers"], snapshot["workers_lost"]),
        build={name: clip(value, MOST_NAME) for name, value in snapshot["build"].items()},
        is_slow=snapshot["build"]["kernel"] != "native",
        facts=_facts(snapshot, series),
        memory=_memory(snapshot["budget"]),
        path=path,
        verdict=verdict_of(path),
        series=series,
        datasets=datasets[:MOST_ROWS],
        subscriptions=[_subscription(each) for each in _first(subscriptions)],
        errors=[_error(error) for error in reversed(snapshot["errors"])],
        more_datasets=max(len(datasets) - MOST_ROWS, 0),
        more_subscriptions=max(len(subscriptions) - MOST_ROWS, 0),
    )


def _workers(ready: int, lost: int) -> str:
    text = count_of(ready, "worker", "workers")
    return f"{text} ({lost:,} lost)" if lost else text


def _first(subscriptions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    # Sorted before the cut: the same ones are shown each time.
    return sorted(subscriptions, key=lambda each: (each["dataset"], each["rank"]))[:MOST_ROWS]


def _facts(snapshot: Mapping[str, Any], series: list[Line]) -> list[tuple[str, str]]:
    clients = f"{snapshot['connections']:,}"
    return [*((line.title, line.summary) for line in series), ("Clients", clients)]


def _series(snapshot: Mapping[str, Any]) -> list[Line]:
    return [
        _line(snapshot, "Throughput", "bytes_per_second", rate),
        _line(snapshot, "Records", "records_per_second", lambda count: f"{count:,.0f}/s"),
        _line(snapshot, "First byte, p50", "first_byte_p50", seconds),
    ]


def _line(snapshot: Mapping[str, Any], title: str, key: str, text: Callable[[float], str]) -> Line:
    samples = snapshot["samples"]
    values: list[float | None] = [sample[key] for sample in samples]
    texts = ["none" if value is None else text(value) for value in values]
    # Ten minutes at most, so the day says nothing.
    times = [clock(sample["taken"]).partition(" ")[2] for sample in samples]
    labels = [f"{moment} {value}" for moment, value in zip(times, texts, strict=True)]
    return Line(
        title=title,
        values=values,
        texts=labels,
        summary=texts[-1] if texts else "none yet",
        text=text,
    )


def _memory(budget: Mapping[str, int]) -> SessionMemory:
    return SessionMemory(budget["used"], budget.get("lent", 0), budget.get("limit", 0))


def _datasets(snapshot: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    rates: dict[str, float] = {}
    for each in snapshot["subscriptions"]:
        name = each["dataset"]
        rates[name] = rates.get(name, 0.0) + each["now"]["bytes_per_second"]
    for name, one in snapshot["datasets"].items():
        fetch = one["fetch"]
        yield {
            "name": clip(name, MOST_NAME),
            "state": clip(one["state"], MOST_NAME),
            "problem": clip(one["problem"] or ""),
            "shards": f"{one['shards']:,}",
            "clients": f"{one['now']['subscriptions']:,}",
            "rate": rate(rates.get(name, 0.0)),
            "sent": f"{one['sent']['records']:,} records, {size(one['sent']['bytes'])}",
            "requests": f"{fetch.get('requests', 0):,}",
            "retries": f"{fetch.get('retries', 0):,}",
            "hedges": f"{fetch.get('hedges', 0):,}",
            "throttled": f"{fetch.get('throttled', 0):,}",
        }


def _subscription(each: Mapping[str, Any]) -> dict[str, str]:
    now = each["now"]
    return {
        "dataset": clip(each["dataset"], MOST_NAME),
        "rank": f"{each['rank']:,} of {each['world_size']:,}",
        "step": f"{each['step']:,}",
        "rate": rate(now["bytes_per_second"]),
        "records": f"{now['records_per_second']:,.0f}/s",
        "stalled": percent(now["stalled"]),
        "peer": clip(each["peer"], MOST_NAME),
        "since": clock(each["since"]),
    }


def _error(error: Mapping[str, Any]) -> dict[str, str]:
    rank = error.get("rank")
    return {
        "time": clock(error["time"]),
        "type": clip(error["type"], MOST_NAME),
        "dataset": clip(error.get("dataset") or "", MOST_NAME),
        "rank": "" if rank is None else f"{rank:,}",
        "peer": clip(error.get("peer") or "", MOST_NAME),
        "message": clip(error["message"]),
    }
