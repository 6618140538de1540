"""The judge of who holds a job back: the time of each stage, held against what was measured. Pure.

Each moment of a job belongs to a stage, and each stage to a few resources. A resource is to blame
if its stages took much of the time and its ceiling explains the rate. Where none does, none is.

A feeder knows where the time of its clients went, and a benchmark knows ceilings and a rate as
well: both come as :class:`Evidence`. Names and numbers decide, and words do not come in.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from streamrec.flow.stages import GROUPS, RESOURCES, STAGES, TABLE
from streamrec.plan.reading.concurrency import Limit, main_limit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from streamrec.flow.stages import Bottleneck, Group

EXPLAINS = 0.8
"""The part of a ceiling that a job which it holds back should reach."""
CONTRADICTS = 0.5
"""The part of a ceiling below which a job is not held back by it, whatever the job waited for."""
MUCH = 0.25
"""The least part of the wait of a resource that holds a job back."""
MOST = 0.5
"""The part of the wait that speaks for itself where no ceiling is known."""
LEAST = 0.1
"""The part of a job's time below which a stage does not hold it back."""
FAST = 0.9
"""The part of the time for which a client does something else where all before it is fast enough.
"""
FULL = 0.75
"""The part of all cores above which a job's threads wait for one another."""
LATE = 2.0
"""Times the seconds of a request alone from which on those of a job share something that is full.
On a busy machine with nothing full they took up to 1.3 times as long where they had bodies to wait
for; on a full link 20 to 57 times."""
DECODING_THREADS = 4
"""The most threads that decode; see ``pipeline/assembler.py``."""

_ON_CORES: Final[tuple[Group, ...]] = ("loop", "decoding", "transform")
CAUSES: Final[Mapping[Limit, Bottleneck]] = {
    resource.cause: name for name, resource in RESOURCES.items() if resource.cause is not None
}
"""The resource of each cause for which the engine asks for no more, where it knows that cause."""
_LAST_CAUSES: Final[Mapping[Limit, Bottleneck]] = {
    Limit.THROTTLED: "throttling",
    Limit.SATURATED: "link",
}
"""The resource of the last cause, where nothing else tells."""


class KnownCeiling(Protocol):
    """The most that one resource allows."""

    @property
    def resource(self) -> Bottleneck:
        """The resource."""
        ...

    @property
    def bytes_per_second(self) -> float:
        """The rate."""
        ...


@dataclass(frozen=True, kw_only=True)
class Rates:
    """The rate of a job, the ceilings that its parts have, and the state of the machine."""

    rate: float
    """Bytes a second that the job got."""
    came: float
    """Bytes a second that came from the store, what was read ahead among them."""
    ceilings: Sequence[KnownCeiling] = ()
    """The lowest first."""
    step_seconds: float = 0.0
    """Seconds that the trainer's steps were asked to take, of the whole job."""
    is_of_feeder: bool = False
    """True: a feeder read, and the job is its client."""
    cores: int = 1
    core_seconds: float = 0.0
    """Seconds for which the job's threads ran."""
    used: float = 0.0
    """The part of all cores' time that the job used."""
    is_busy: bool = False
    """True: other programs had the cores for much of the time."""
    lateness: float | None = None
    """Times the seconds of one request alone that those of the job took."""
    is_capped: bool = False
    """True: the sweep came to one rate in several ways, as a busy machine does not."""
    fills_link: bool = False
    """True: the job's own requests take the link from one another."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The facts by which a job is judged."""

    waits: Mapping[str, float]
    """Seconds by stage."""
    seconds: float = 0.0
    """Seconds of the whole job."""
    kept_back: Mapping[str, float] = field(default_factory=dict)
    """Seconds of each cause for which the engine asked for no more."""
    last_cause: Limit | None = None
    """The cause at the end of the job."""
    requests: int = 0
    throttled: int = 0
    """Requests that the store refused."""
    rates: Rates | None = None
    """``None``: no rate was measured, as of the clients of a feeder; the waits alone speak."""


@dataclass(frozen=True)
class Blame:
    """The stage and the resource that hold a job back."""

    stage: str | None
    """The stage that took most of the time; ``"client"``: all before it is fast enough; ``None``:
    nothing took any."""
    resource: Bottleneck | None
    """``None``: nothing that was measured explains the rate."""


def judge(evidence: Evidence) -> Blame:
    """Return who holds a job back."""
    stage = longest_stage(evidence.waits)
    if evidence.rates is not None:
        return Blame(stage, _judge_by_rates(evidence, evidence.rates))
    entry = TABLE.get(stage) if stage is not None else None
    return Blame(stage, _judge_by_waits(entry.group, evidence) if entry else None)


def longest_stage(waits: Mapping[str, float]) -> str | None:
    """Return the stage that holds a job back for longest, ``"client"`` if none does for long.

    Returns:
        The stage; ``None``: nobody waited, and nobody was busy.
    """
    parts = {stage: spent for stage, spent in on_path(waits).items() if stage != "client"}
    if waits.get("client", 0.0) >= FAST * (sum(waits.values()) or 1.0):
        return "client"
    longest = max(parts, key=lambda stage: parts[stage], default=None)
    return longest if longest is not None and parts[longest] else None


def on_path(waits: Mapping[str, float]) -> dict[str, float]:
    """Return waits in the order in which bytes pass the stages, unknown stages at the end."""
    return {stage: waits[stage] for stage in dict.fromkeys((*STAGES, *waits)) if stage in waits}


def waits_by_group(waits: Mapping[str, float], step_seconds: float) -> dict[Group, float]:
    """Return the seconds of the wait by the kind of resource; the listing comes before it.

    Args:
        waits: Seconds by stage.
        step_seconds: The seconds that the trainer's steps were asked to take; 0: there is none.
    """
    seconds: dict[Group, float] = {}
    for stage, spent in waits.items():
        group = TABLE[stage].group if stage in TABLE else "listing"
        if group == "trainer":
            # Without a simulated trainer, the client is the measurement itself. With one, a busy
            # machine wakes it late, and that is not its step.
            spent = min(spent, step_seconds)
        if group != "listing" and spent:
            seconds[group] = seconds.get(group, 0.0) + spent
    return seconds


def explains(ceiling: KnownCeiling | None, rate: float, part: float = EXPLAINS) -> bool:
    """Return whether a job of that rate is held back by the ceiling."""
    return ceiling is not None and rate >= part * ceiling.bytes_per_second


def _judge_by_rates(evidence: Evidence, rates: Rates) -> Bottleneck | None:
    """Return the resource to blame; ``None``: none explains the rate.

    Only the time and the ceilings near the rate decide: how high another ceiling is says nothing.
    """
    # A job that gets more than the sweep found has another way than the sweep had.
    ceilings = [
        one
        for one in rates.ceilings
        if one.resource != "link" or EXPLAINS * rates.came <= one.bytes_per_second
    ]
    # What was read ahead and left in no batch took its part of the way.
    came = max(rates.rate, rates.came)
    # The trainer's step is known: a rate that it does not explain has another cause.
    is_of_trainer = explains(_lowest("trainer", ceilings), rates.rate)
    seconds = waits_by_group(evidence.waits, rates.step_seconds if is_of_trainer else 0.0)
    total = sum(seconds.values())
    parts = {group: spent / total for group, spent in seconds.items() if total}
    order = sorted(parts, key=lambda group: -parts[group])
    if rates.is_of_feeder:
        return _judge_feeder(order[0], parts, evidence) if order else "feeder"
    order = [group for group in order if seconds[group] >= LEAST * evidence.seconds]
    much = [group for group in order if parts[group] >= MUCH]
    on_cores = sum(parts.get(group, 0.0) for group in _ON_CORES)
    held_up = rates.is_busy and on_cores >= MUCH
    # A busy machine takes from all connections alike, as a full link does, and makes requests late,
    # which keep their buffers and their places among max_concurrency.
    is_sure = rates.is_capped or (rates.fills_link and on_cores < parts.get("network", 0.0))
    is_late = held_up and (rates.lateness or LATE) >= LATE
    for group in much:
        lowest = _lowest(group, ceilings)
        if group == "network" and not _is_full(ceilings, came):
            cause = _cause_of_engine(evidence)
            if cause and (cause == "throttling" or not is_late):
                return cause
        reached = came if group == "network" else rates.rate
        is_doubtful = held_up and not is_sure and lowest and lowest.resource == "link"
        if lowest and explains(lowest, reached) and not is_doubtful:
            return lowest.resource
    if held_up:
        # More of the cores would bring no more than the link gives.
        if rates.is_capped and "network" in order and _is_full(ceilings, came):
            return "link"
        return _find_slowed(much, ceilings, evidence, rates) or "cores"
    if rates.used >= FULL:
        # What takes the cores says more than that they are taken.
        longest = [group for group in much[:1] if group in _ON_CORES]
        return _find_likely(longest, ceilings, rates.rate) or "cores"
    return _find_likely(much, ceilings, rates.rate) or _find_unmeasured(
        order, parts, ceilings, evidence
    )


def _find_slowed(
    much: Sequence[Group], ceilings: Sequence[KnownCeiling], evidence: Evidence, rates: Rates
) -> Bottleneck | None:
    """Return the step that a job on a busy machine waited for, and that took its core time.

    Core time is what such a job lacks. A step that needs little of it is late like all others.
    """
    for group in much:
        lowest = _lowest(group, ceilings) if group in _ON_CORES else None
        threads = 1 if group == "loop" else min(DECODING_THREADS, rates.cores)
        part = min(1.0, rates.core_seconds / (evidence.seconds * threads))
        # A pause of the user's function needs no core, so the whole ceiling may be the right one.
        if lowest and explains(lowest, rates.rate, MUCH * part):
            return lowest.resource
    return None


def _cause_of_engine(evidence: Evidence) -> Bottleneck | None:
    """Return what kept the engine from asking for more in most of the time that it waited.

    A request that is refused keeps its buffer until it is sent again. So where a store refuses most
    of them, full buffers are its doing.
    """
    if evidence.throttled and evidence.throttled >= MOST * evidence.requests:
        return "throttling"
    cause, part = main_limit(evidence.kept_back) or (None, 0.0)
    return CAUSES.get(cause) if cause and part >= MOST else None


def _is_full(ceilings: Sequence[KnownCeiling], rate: float) -> bool:
    """Return whether the link has no room for what more requests would bring."""
    return explains(next((one for one in ceilings if one.resource == "link"), None), rate)


def _find_likely(
    much: Sequence[Group], ceilings: Sequence[KnownCeiling], rate: float
) -> Bottleneck | None:
    """Return a resource that was waited for and whose ceiling at least does not contradict.

    A full link is not an estimate: a job that it holds back comes near it.
    """
    for group in much:
        lowest = _lowest(group, ceilings)
        is_link = lowest is not None and lowest.resource == "link"
        if lowest and not is_link and explains(lowest, rate, CONTRADICTS):
            return lowest.resource
    return None


def _find_unmeasured(
    order: Sequence[Group],
    parts: Mapping[Group, float],
    ceilings: Sequence[KnownCeiling],
    evidence: Evidence,
) -> Bottleneck | None:
    """Return the resource of the longest wait, if it is most of it and there is no ceiling."""
    if not order:
        return None
    group = order[0]
    if parts[group] < MOST or _lowest(group, ceilings) is not None:
        return None
    return _judge_by_waits(group, evidence)


def _lowest(group: Group, ceilings: Sequence[KnownCeiling]) -> KnownCeiling | None:
    return next((one for one in ceilings if one.resource in GROUPS[group]), None)


def _judge_feeder(group: Group, parts: Mapping[Group, float], evidence: Evidence) -> Bottleneck:
    """Return what a feeder's client waits for, of which ``group`` is the longest wait.

    While a full link is waited for, the feeder works ahead, and nothing is left to wait for of its
    work. Where much of it is waited for, the way was long because its ends had no core.
    """
    work = sum(parts.get(one, 0.0) for one in _ON_CORES)
    if group in _ON_CORES or (group == "wire" and work >= MUCH):
        return "feeder"
    return _judge_by_waits(group, evidence)


def _judge_by_waits(group: Group, evidence: Evidence) -> Bottleneck:
    """Return the resource of a group whose parts were not measured."""
    if group != "network":
        return GROUPS[group][0]
    first_byte, body = (evidence.waits.get(stage, 0.0) for stage in ("first_byte", "body"))
    default: Bottleneck = "store latency" if first_byte >= body else "connection bandwidth"
    last = _LAST_CAUSES.get(evidence.last_cause) if evidence.last_cause else None
    return _cause_of_engine(evidence) or last or default
