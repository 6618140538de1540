"""The view of a feeder: what its page and ``streamrec top`` show of a snapshot, as text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streamrec.feeder.page.path import PathStage, path_of, verdict_of
from streamrec.report.charts import Line
from streamrec.report.words import (
    clipped,
    clock,
    counted,
    duration,
    memory,
    percent,
    rate,
    seconds,
    size,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

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
        state="ready" if is_ready else f"not ready: {clipped(snapshot['obstacle'], MOST_STATE)}",
        is_ready=is_ready,
        taken=clock(snapshot["taken"]),
        up=duration(snapshot["taken"] - snapshot["started"]),
        workers=_workers(snapshot["workers"], snapshot["workers_lost"]),
        build={name: clipped(value, MOST_NAME) for name, value in snapshot["build"].items()},
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
    text = counted(ready, "worker", "workers")
    return f"{text} ({lost:,} lost)" if lost else text


def _first(subscriptions: list[dict[str, Any]]) -> list[dict[str, Any]]:
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
            "name": clipped(name, MOST_NAME),
            "state": clipped(one["state"], MOST_NAME),
            "problem": clipped(one["problem"] or ""),
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
        "dataset": clipped(each["dataset"], MOST_NAME),
        "rank": f"{each['rank']:,} of {each['world_size']:,}",
        "step": f"{each['step']:,}",
        "rate": rate(now["bytes_per_second"]),
        "records": f"{now['records_per_second']:,.0f}/s",
        "stalled": percent(now["stalled"]),
        "peer": clipped(each["peer"], MOST_NAME),
        "since": clock(each["since"]),
    }


def _error(error: Mapping[str, Any]) -> dict[str, str]:
    rank = error.get("rank")
    return {
        "time": clock(error["time"]),
        "type": clipped(error["type"], MOST_NAME),
        "dataset": clipped(error.get("dataset") or "", MOST_NAME),
        "rank": "" if rank is None else f"{rank:,}",
        "peer": clipped(error.get("peer") or "", MOST_NAME),
        "message": clipped(error["message"]),
    }
