"""The bottleneck of a job: the ceilings of the parts, held against what the job did. Pure.

Each moment of a job belongs to a stage, and each stage to a few resources. A resource is to blame
if its stages took much of the time and its ceiling explains the rate. Where none does, none is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from streamrec.measure.ceilings import DECODING_THREADS, LATE, Resources, rate_text
from streamrec.measure.figures import Ceiling
from streamrec.measure.load import FULL, busy_part, used_part
from streamrec.measure.rates import read_rate, steady_rate
from streamrec.plan.reading.concurrency import Limit, kept_back_by

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from streamrec.measure.figures import Bottleneck, Figures, Job

NETWORK: Final[tuple[Bottleneck, ...]] = (
    *("store latency", "connection bandwidth", "link", "throttling"),
    *("memory budget", "max_concurrency"),
)
"""The resources between the store and this machine, and the settings that bound the requests."""
REQUESTS: Final[tuple[Bottleneck, ...]] = (
    *("store latency", "connection bandwidth", "memory budget", "max_concurrency"),
)
"""The names of one ceiling: that of the requests under way."""
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

_Group: TypeAlias = Literal["network", "loop", "decoding", "transform", "trainer", "wire"]
_GROUPS: Final[dict[str, _Group]] = {
    **dict.fromkeys(("first_byte", "body", "quarantine"), "network"),
    **dict.fromkeys(("scan", "order", "queue"), "loop"),
    **dict.fromkeys(("decompress", "decode", "pack", "cache"), "decoding"),
    **dict.fromkeys(("filter", "transform"), "transform"),
    "client": "trainer",
    "wire": "wire",
}
_RESOURCES: Final[dict[_Group, tuple[Bottleneck, ...]]] = {
    "network": NETWORK,
    "loop": ("event loop",),
    "decoding": ("decoding",),
    "transform": ("transform",),
    "trainer": ("trainer",),
    "wire": ("link",),
}
_ON_CORES: Final[tuple[_Group, ...]] = ("loop", "decoding", "transform")
_CAUSES: Final[dict[Limit, Bottleneck]] = {
    Limit.BUFFERS: "memory budget",
    Limit.MAXIMUM: "max_concurrency",
    Limit.THROTTLED: "throttling",
}
"""The resource of each cause for which the engine asks for no more, where it knows that cause."""
ENGINE: Final = (*_CAUSES.values(),)
"""The resources that the engine itself gives as its reason."""
_SAID: Final[dict[str, Bottleneck]] = {
    Limit.THROTTLED.text: "throttling",
    Limit.SATURATED.text: "link",
}
"""The resource of the last cause, where nothing else tells."""


@dataclass(frozen=True)
class Finding:
    """The bottleneck, and the ceilings as the job has corrected them."""

    bottleneck: Bottleneck | None
    """``None``: nothing that was measured explains the rate."""
    rate: float
    """Bytes a second of the job; where there was no job, the lowest ceiling."""
    ceilings: list[Ceiling]
    """The lowest first."""
    job: Job | None = None
    """The job whose rate it is."""
    busy: float | None = None
    """The part of the time for which other programs had the cores; ``None``: little."""

    @property
    def others(self) -> list[Ceiling]:
        """The ceilings of what does not hold the job back, the lowest first."""
        return [one for one in self.ceilings if one.resource != self.bottleneck]


def find(figures: Figures, known: Sequence[Ceiling], gain: float = 1.0) -> Finding | None:
    """Return the bottleneck; ``None``: nothing was measured that tells one.

    Args:
        figures: What was measured.
        known: The ceilings that follow from the parts, the lowest first.
        gain: Bytes that a job gets for each byte that the store sends.
    """
    listing = next((one for one in known if one.resource == "listing"), None)
    stream = [one for one in known if one.resource != "listing"]
    job = figures.job
    if job is not None and job.batches and job.bytes:  # none of a cache of batches counts
        finding = _of_job(figures, job, stream, gain)
    elif stream:
        finding = Finding(stream[0].resource, stream[0].bytes_per_second, stream)
    else:
        return None
    return finding if listing is None else _with_listing(finding, listing)


def _with_listing(stream: Finding, listing: Ceiling) -> Finding:
    """Add the listing, which comes before the stream and not beside it."""
    ceilings = _sorted([*stream.ceilings, listing])
    longest = _longest_part(stream.job, is_busy=stream.busy is not None) if stream.job else 1.0
    if longest * listing.bytes_per_second > stream.rate or not _is_long(stream.job):
        return replace(stream, ceilings=ceilings)
    rate = 1 / (1 / listing.bytes_per_second + 1 / stream.rate)
    return replace(stream, bottleneck="listing", rate=rate, ceilings=ceilings)


def _is_long(job: Job | None) -> bool:
    """Return whether a job's listing took a part of its time that matters."""
    return job is None or job.waits.get("list", 0.0) >= LEAST * job.seconds


def _longest_part(job: Job, *, is_busy: bool) -> float:
    """Return the part of the time behind the listing that went to the longest of all other things.

    One of them is what no resource accounts for. On a busy machine that is lateness, of which the
    verdict tells before all else.
    """
    behind = job.seconds - job.waits.get("list", 0.0)
    spent = [*_seconds(job, with_trainer=True).values()]
    longest = max([*spent, 0.0 if is_busy else behind - sum(spent)])
    return longest / behind if behind > 0 else 1.0


def _of_job(figures: Figures, job: Job, known: Sequence[Ceiling], gain: float) -> Finding:
    rate = steady_rate(job)
    busy = busy_part(job, figures.machine.cores)
    accused = _accused(figures, job, known, rate, gain)
    ceilings = [_named(_reached(one, rate), accused, job, rate) for one in known]
    if accused is not None and all(one.resource != accused for one in ceilings):
        why = "other programs used them" if accused == "cores" else "the job waits for it"
        ceilings.append(Ceiling(resource=accused, bytes_per_second=rate, why=why))
    ceilings = sorted(_sorted(ceilings), key=lambda one: one.resource != accused)
    return Finding(accused, rate, ceilings, job, busy)


def _reached(ceiling: Ceiling, rate: float) -> Ceiling:
    """Raise a ceiling to the rate that the job has reached."""
    if ceiling.bytes_per_second >= rate:
        return ceiling
    return ceiling.model_copy(
        update={"bytes_per_second": rate, "why": f"{ceiling.why}; the job has reached more"}
    )


def _named(ceiling: Ceiling, accused: Bottleneck | None, job: Job, rate: float) -> Ceiling:
    """Call the ceiling of the requests by the setting that bounds them, where that is to blame."""
    kept = kept_back_by(job.concurrency_seconds)
    if (
        accused not in ("memory budget", "max_concurrency")
        or ceiling.resource not in REQUESTS
        or kept is None
    ):
        return ceiling
    why = f"for {kept[1]:.0%} of its wait it sent no more requests because of it"
    if not _explains(ceiling, rate, CONTRADICTS):
        # What is measured is the ceiling then: the law leaves something out.
        why += f", and got less than such requests alone give ({_text(ceiling)})"
        update = {"resource": accused, "why": why, "bytes_per_second": rate}
        return ceiling.model_copy(update=update)
    return ceiling.model_copy(update={"resource": accused, "why": f"{why}; {ceiling.why}"})


def _text(ceiling: Ceiling) -> str:
    return rate_text(ceiling.bytes_per_second)


def _sorted(ceilings: list[Ceiling]) -> list[Ceiling]:
    return sorted(ceilings, key=lambda one: one.bytes_per_second)


def _accused(
    figures: Figures, job: Job, known: Sequence[Ceiling], rate: float, gain: float
) -> Bottleneck | None:
    """Return the resource to blame; ``None``: none explains the rate.

    Only the time and the ceilings near the rate decide: how high another ceiling is says nothing.
    """
    # What was read ahead and left in no batch took its part of the way.
    read = read_rate(job) * gain
    came = max(rate, read)
    # A job that gets more than the sweep found has another way than the sweep had.
    known = [one for one in known if one.resource != "link" or not _exceeds(read, one)]
    # The trainer's step is known: a rate that it does not explain has another cause.
    seconds = _seconds(job, with_trainer=_explains(_lowest("trainer", known), rate))
    total = sum(seconds.values())
    parts = {group: spent / total for group, spent in seconds.items() if total}
    order = sorted(parts, key=lambda group: -parts[group])
    if figures.target.kind == "feeder":
        return _of_feeder(job, order[0], parts) if order else "feeder"
    order = [group for group in order if seconds[group] >= LEAST * job.seconds]
    much = [group for group in order if parts[group] >= MUCH]
    is_busy = busy_part(job, figures.machine.cores) is not None
    on_cores = sum(parts.get(group, 0.0) for group in _ON_CORES)
    held_up = is_busy and on_cores >= MUCH
    resources = Resources(figures, None)
    # A busy machine takes from all connections alike, as a full link does, and makes requests late,
    # which keep their buffers and their places among max_concurrency.
    told = resources.is_capped or (resources.fills_link and on_cores < parts.get("network", 0.0))
    taken = held_up and not told
    is_late = held_up and (resources.lateness or LATE) >= LATE
    for group in much:
        lowest = _lowest(group, known)
        if group == "network" and not _is_full(known, came):
            own = _own_cause(job)
            if own and (own == "throttling" or not is_late):
                return own
        reached = came if group == "network" else rate
        if lowest and _explains(lowest, reached) and not (taken and lowest.resource == "link"):
            return lowest.resource
    if held_up:
        # More of the cores would bring no more than the link gives.
        if resources.is_capped and "network" in order and _is_full(known, came):
            return "link"
        return _slowed(much, known, job, rate, figures.machine.cores) or "cores"
    if (used_part(job, figures.machine.cores) or 0.0) >= FULL:
        # What takes the cores says more than that they are taken.
        longest = [group for group in much[:1] if group in _ON_CORES]
        return _likely(longest, known, rate) or "cores"
    return _likely(much, known, rate) or _unmeasured(order, parts, job, known)


def _slowed(
    much: Sequence[_Group], known: Sequence[Ceiling], job: Job, rate: float, cores: int
) -> Bottleneck | None:
    """Return the step that a job on a busy machine waited for, and that took its core time.

    Core time is what such a job lacks. A step that needs little of it is late like all others.
    """
    for group in much:
        lowest = _lowest(group, known) if group in _ON_CORES else None
        threads = 1 if group == "loop" else min(DECODING_THREADS, cores)
        got = min(1.0, (job.core_seconds or 0.0) / (job.seconds * threads))
        # A pause of the user's function needs no core, so the whole ceiling may be the right one.
        if lowest and _explains(lowest, rate, MUCH * got):
            return lowest.resource
    return None


def _own_cause(job: Job) -> Bottleneck | None:
    """Return what kept the engine from asking for more in most of the time that it waited.

    A request that is refused keeps its buffer until it is sent again. So where a store refuses most
    of them, full buffers are its doing.
    """
    if job.throttled and job.throttled >= MOST * job.requests:
        return "throttling"
    cause, part = kept_back_by(job.concurrency_seconds) or (None, 0.0)
    return _CAUSES.get(cause) if cause and part >= MOST else None


def _is_full(known: Sequence[Ceiling], rate: float) -> bool:
    """Return whether the link has no room for what more requests would bring."""
    return _explains(next((one for one in known if one.resource == "link"), None), rate)


def _explains(ceiling: Ceiling | None, rate: float, part: float = EXPLAINS) -> bool:
    """Return whether a job of that rate is held back by the ceiling."""
    return ceiling is not None and rate >= part * ceiling.bytes_per_second


def _exceeds(rate: float, ceiling: Ceiling) -> bool:
    return EXPLAINS * rate > ceiling.bytes_per_second


def _likely(much: Sequence[_Group], known: Sequence[Ceiling], rate: float) -> Bottleneck | None:
    """Return a resource that was waited for and whose ceiling at least does not contradict.

    A full link is not an estimate: a job that it holds back comes near it.
    """
    for group in much:
        lowest = _lowest(group, known)
        is_link = lowest is not None and lowest.resource == "link"
        if lowest and not is_link and _explains(lowest, rate, CONTRADICTS):
            return lowest.resource
    return None


def _unmeasured(
    order: Sequence[_Group], parts: Mapping[_Group, float], job: Job, known: Sequence[Ceiling]
) -> Bottleneck | None:
    """Return the resource of the longest wait, if it is most of it and there is no ceiling."""
    if not order:
        return None
    group = order[0]
    if parts[group] < MOST or _lowest(group, known) is not None:
        return None
    return _by_waits(group, job)


def _seconds(job: Job, *, with_trainer: bool) -> dict[_Group, float]:
    """Return the seconds of the wait by the kind of resource; the listing comes before it."""
    seconds: dict[_Group, float] = {}
    for stage, spent in job.waits.items():
        group = _GROUPS.get(stage)
        if group == "trainer":
            # Without a simulated trainer, the client is the measurement itself. With one, a busy
            # machine wakes it late, and that is not its step.
            steps = (job.step_seconds or 0.0) * job.batches
            spent = min(spent, steps) if with_trainer else 0.0
        if group is not None and spent:
            seconds[group] = seconds.get(group, 0.0) + spent
    return seconds


def _lowest(group: _Group, known: Sequence[Ceiling]) -> Ceiling | None:
    return next((one for one in known if one.resource in _RESOURCES[group]), None)


def _of_feeder(job: Job, group: _Group, parts: Mapping[_Group, float]) -> Bottleneck:
    """Return what a feeder's client waits for, of which ``group`` is the longest wait.

    While a full link is waited for, the feeder works ahead, and nothing is left to wait for of its
    work. Where much of it is waited for, the way was long because its ends had no core.
    """
    work = sum(parts.get(one, 0.0) for one in _ON_CORES)
    if group in _ON_CORES or (group == "wire" and work >= MUCH):
        return "feeder"
    return _by_waits(group, job)


def _by_waits(group: _Group, job: Job) -> Bottleneck:
    """Return the resource of a group whose parts were not measured."""
    if group != "network":
        return _RESOURCES[group][0]
    latency = job.waits.get("first_byte", 0.0) >= job.waits.get("body", 0.0)
    default: Bottleneck = "store latency" if latency else "connection bandwidth"
    return _own_cause(job) or _SAID.get(job.concurrency_reason or "", default)


# -- in words --------------------------------------------------------------------------------------

_WAITS: Final[Mapping[str, str]] = {
    "list": "the listing",
    "first_byte": "first bytes",
    "body": "bodies",
    "decompress": "decompressing",
    "scan": "scanning",
    "filter": "the filter",
    "order": "ordering and the event loop",
    "decode": "decoding",
    "transform": "map and transform",
    "wire": "the way from the feeder",
    "client": "the trainer's steps",
}
SHOWN = 0.02
"""The least part of a job's time that is named."""


def longest_wait(job: Job) -> str:
    """Return what a job waited longest for, and for how much of its time."""
    held = {stage: spent for stage, spent in job.waits.items() if stage != "client"}
    stage = max(held, key=lambda one: held[one], default=None)
    if stage is None or not job.seconds:
        return "nothing"
    return f"{_WAITS.get(stage, stage)} ({held[stage] / job.seconds:.0%} of its time)"


def evidence(figures: Figures) -> list[str]:
    """Return what speaks for a verdict, a sentence each."""
    return [*_of_waits(figures.job), *_of_sweep(figures), *_of_requests(figures.job)]


def _of_waits(job: Job | None) -> list[str]:
    if job is None or not job.seconds:
        return []
    largest = sorted(job.waits.items(), key=lambda wait: -wait[1])
    parts = [
        f"{_WAITS.get(stage, stage)} {seconds / job.seconds:.0%}"
        for stage, seconds in largest
        if seconds >= SHOWN * job.seconds
    ]
    said = [f"The job's time went to {', '.join(parts)}."] if parts else []
    if job.step_seconds:
        said.append(
            f"A trainer with steps of {job.step_seconds * 1e3:.0f} ms waits for {job.stalled:.0%} "
            "of its time."
        )
    if listed := job.waits.get("list", 0.0):
        said.append(
            f"The listing takes {listed:.2g} s of the {job.first_batch_seconds:.2g} s to the first"
            " batch."
        )
    return said


def _of_sweep(figures: Figures) -> list[str]:
    sweep = figures.sweep
    if sweep is None or not sweep.cells:
        return []
    best = max(sweep.cells, key=lambda cell: cell.bytes_per_second)
    if sweep.plateau is None:
        return [
            f"Without decoding, the store gave {rate_text(best.bytes_per_second)} with "
            f"{best.concurrency} requests at a time, and the rate still grew."
        ]
    plateau = sweep.cells[sweep.plateau]
    return [
        f"Without decoding, the store gives {rate_text(best.bytes_per_second)} at most, from "
        f"{plateau.concurrency} requests at a time on; the event loop's thread then uses "
        f"{best.loop_busy:.0%} of a core."
    ]


def _of_requests(job: Job | None) -> list[str]:
    if job is None:
        return []
    said = []
    if job.loop_busy is not None:
        said.append(f"In the job the event loop's thread used {job.loop_busy:.0%} of a core.")
    if job.core_seconds is not None:
        said.append(
            f"Its threads ran for {job.core_seconds:.2g} s, and waited for a core for "
            f"{job.core_wait_seconds or 0:.2g} s."
        )
    if job.throttled:
        said.append(f"{job.throttled} of {job.requests} requests were told to slow down.")
    if told := longest_reason(job):
        said.append(f"At most {job.concurrency} requests were under way at a time: {told}.")
    return said


def longest_reason(job: Job) -> str:
    """Return the cause for which a job had no more requests, for longest; empty: it is not told."""
    kept = kept_back_by(job.concurrency_seconds)
    if kept is None or job.concurrency is None:
        return job.concurrency_reason or ""
    return f"for {kept[1]:.0%} of the wait for the store, {kept[0].text}"
