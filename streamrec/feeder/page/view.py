"""The view of a feeder: what its page and ``streamrec top`` show of a snapshot, as text. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from streamrec.feeder.page.samples import MOST_NAME, late_ranks
from streamrec.flow.stages import BOXES, RESOURCES, TABLE
from streamrec.flow.timings import add_up
from streamrec.report.charts import Line
from streamrec.report.verdict import Evidence, judge
from streamrec.report.words import (
    clip,
    clock,
    duration,
    memory,
    percent,
    quantity,
    rate,
    seconds,
    size,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from streamrec.flow.stages import Box
    from streamrec.report.verdict import Blame


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
    batches = quantity(now.get("batches_ready", 0), "batch", "batches")
    return Fill(f"{batches}, {memory(now.get('bytes_ready', 0))}")


def _throughput(snapshot: Mapping[str, Any]) -> Fill:
    samples = snapshot["samples"]
    return Fill(rate(samples[-1]["bytes_per_second"] if samples else 0))


def _clients(snapshot: Mapping[str, Any]) -> Fill:
    return Fill(quantity(len(snapshot["subscriptions"]), "subscription", "subscriptions"))


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
    late: list[str]
    """Sentences about ranks that hold the others of their jobs back."""
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
        late=late_ranks(snapshot["subscriptions"]),
        series=series,
        datasets=datasets[:MOST_ROWS],
        subscriptions=[_subscription(each) for each in _first(subscriptions)],
        errors=[_error(error) for error in reversed(snapshot["errors"])],
        more_datasets=max(len(datasets) - MOST_ROWS, 0),
        more_subscriptions=max(len(subscriptions) - MOST_ROWS, 0),
    )


def _workers(ready: int, lost: int) -> str:
    text = quantity(ready, "worker", "workers")
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


@dataclass(frozen=True)
class FleetView:
    """The facts about several feeders, whose clients may be the ranks of one job."""

    feeders: list[tuple[str, View | str]]
    """The address of each, and its view, or the reason why there is no view."""
    late: list[str]
    """Sentences about ranks that hold the others of their jobs back, whichever feeder they read."""


def view_of_fleet(snapshots: Mapping[str, Mapping[str, Any] | str]) -> FleetView:
    """Return what is shown of several feeders.

    Args:
        snapshots: By address, the snapshot with samples, or the reason why there is no snapshot.
    """
    answers = {where: one for where, one in snapshots.items() if not isinstance(one, str)}
    feeders = [
        (where, one if isinstance(one, str) else view_of(one)) for where, one in snapshots.items()
    ]
    readers = [
        # "local" is the feeder's machine, and there are several.
        {**each, "peer": where if each["peer"] == "local" else each["peer"]}
        for where, snapshot in answers.items()
        for each in snapshot["subscriptions"]
    ]
    return FleetView(feeders, late_ranks(readers))
