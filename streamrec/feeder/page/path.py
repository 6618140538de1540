"""The path of a byte through a feeder: how full each stage is, and which one holds clients back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from streamrec.flow.stages import BOXES, RESOURCES, TABLE
from streamrec.flow.timings import added
from streamrec.report.verdict import Evidence, judge
from streamrec.report.words import counted, memory, percent, rate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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


def _listed(snapshot: Mapping[str, Any]) -> Fill:
    states = [dataset["state"] for dataset in snapshot["datasets"].values()]
    is_open = states.count("open")
    return Fill(f"{is_open} of {len(states)} datasets open", _part(is_open, len(states)))


def _requests(snapshot: Mapping[str, Any]) -> Fill:
    now = _now(snapshot)
    under_way, limit = now.get("in_flight", 0), now.get("concurrency", 0)
    return Fill(f"{under_way:,} of {limit:,} requests", _part(under_way, limit))


def _buffers(snapshot: Mapping[str, Any]) -> Fill:
    now = _now(snapshot)
    used, limit = now.get("bytes_in_memory", 0), now.get("bytes_budgeted", 0)
    return Fill(f"{memory(used)} of {memory(limit)} buffers", _part(used, limit))


def _ready(snapshot: Mapping[str, Any]) -> Fill:
    now = _now(snapshot)
    batches = counted(now.get("batches_ready", 0), "batch", "batches")
    return Fill(f"{batches}, {memory(now.get('bytes_ready', 0))}")


def _sent(snapshot: Mapping[str, Any]) -> Fill:
    samples = snapshot["samples"]
    return Fill(rate(samples[-1]["bytes_per_second"] if samples else 0))


def _clients(snapshot: Mapping[str, Any]) -> Fill:
    return Fill(counted(len(snapshot["subscriptions"]), "subscription", "subscriptions"))


_FILLS: Final[Mapping[Box, Callable[[Mapping[str, Any]], Fill]]] = {
    "list": _listed,
    "fetch": _requests,
    "order": _buffers,
    "queue": _ready,
    "wire": _sent,
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
    waits = {part: share for stage in stages for part, share in stage.waits.items()}
    blame = judge(Evidence(waits=waits, kept_back=_lately(snapshot, "kept_back")))
    return [
        replace(stage, is_limit=True, longest=blame.stage, kept_back=_kept_back(stage, blame))
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
    total = _lately(snapshot, "waits")
    whole = sum(total.values())
    return {stage: wait / whole for stage, wait in total.items()} if whole else {}


def _kept_back(limit: PathStage, blame: Blame) -> str:
    """Return the cause that kept requests few for most of the time, if it is one to tell."""
    resource = RESOURCES[blame.resource] if blame.resource is not None else None
    return resource.meanwhile if resource is not None and limit.name == "fetch" else ""


def _lately(snapshot: Mapping[str, Any], name: str) -> dict[str, float]:
    """Return seconds by name, added up over the last minute."""
    parts, covered = [], 0.0
    for sample in reversed(snapshot["samples"]):
        if covered >= WINDOW:
            break
        parts.append(sample[name])
        covered += sample["seconds"]
    if not parts:  # The feeder has just started.
        parts = [dataset[name] for dataset in snapshot["datasets"].values()]
    return added(parts)


def _now(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    return added(dataset["now"] for dataset in snapshot["datasets"].values())


def _part(some: float, limit: float) -> float:
    return min(max(some / limit, 0.0), 1.0) if limit > 0 else 0.0
