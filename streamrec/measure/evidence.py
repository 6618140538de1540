"""The evidence of a benchmark on a job, and the ceilings as the job corrects them. Pure.

:mod:`streamrec.report.verdict` judges it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from streamrec.flow.stages import TABLE, Bottleneck
from streamrec.measure.ceilings import Resources
from streamrec.measure.figures import Ceiling, busy_part, read_rate, steady_rate, used_part
from streamrec.plan.reading.concurrency import Limit, main_limit
from streamrec.report.verdict import (
    CONTRADICTS,
    LEAST,
    Evidence,
    Rates,
    explains,
    judge,
    longest_stage,
    waits_by_group,
)
from streamrec.report.words import rate as rate_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamrec.measure.figures import Figures, Job

REQUESTS: Final[tuple[Bottleneck, ...]] = (
    *("store latency", "connection bandwidth", "memory budget", "max_concurrency"),
)
"""The names of one ceiling: that of the requests under way."""


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


def find(figures: Figures, ceilings: Sequence[Ceiling], gain: float = 1.0) -> Finding | None:
    """Return the bottleneck; ``None``: nothing was measured that tells one.

    Args:
        figures: What was measured.
        ceilings: The ceilings that follow from the parts, the lowest first.
        gain: Bytes that a job gets for each byte that the store sends.
    """
    listing = next((one for one in ceilings if one.resource == "listing"), None)
    stream = [one for one in ceilings if one.resource != "listing"]
    job = figures.job
    if job is not None and job.batches and job.bytes:  # none of a cache of batches counts
        finding = _find_in_job(figures, job, stream, gain)
    elif stream:
        finding = Finding(stream[0].resource, stream[0].bytes_per_second, stream)
    else:
        return None
    return finding if listing is None else _add_listing(finding, listing)


def _add_listing(stream: Finding, listing: Ceiling) -> Finding:
    """Add the listing, which comes before the stream and not beside it."""
    ceilings = _sort([*stream.ceilings, listing])
    longest = _longest_part(stream.job, is_busy=stream.busy is not None) if stream.job else 1.0
    if longest * listing.bytes_per_second > stream.rate or not _is_long(stream.job):
        return replace(stream, ceilings=ceilings)
    # One after the other, times add up, so rates add up by their inverses.
    rate = 1 / (1 / listing.bytes_per_second + 1 / stream.rate)
    return replace(stream, bottleneck="listing", rate=rate, ceilings=ceilings)


def _is_long(job: Job | None) -> bool:
    """Return whether a job's listing took a part of its time that matters."""
    return job is None or job.waits.get("list", 0.0) >= LEAST * job.seconds


def _longest_part(job: Job, *, is_busy: bool) -> float:
    """Return the part of the time after the listing that went to the longest of all other things.

    One of them is what no resource accounts for. On a busy machine that is lateness, of which the
    verdict tells before all else.
    """
    behind = job.seconds - job.waits.get("list", 0.0)
    spent = [*waits_by_group(job.waits, _seconds_of_steps(job)).values()]
    longest = max([*spent, 0.0 if is_busy else behind - sum(spent)])
    return longest / behind if behind > 0 else 1.0


def _find_in_job(figures: Figures, job: Job, of_parts: Sequence[Ceiling], gain: float) -> Finding:
    rate = steady_rate(job)
    busy = busy_part(job, figures.machine.cores)
    accused = judge(evidence_of(figures, job, of_parts, gain)).resource
    ceilings = [_name_by_setting(_raise_to(one, rate), accused, job, rate) for one in of_parts]
    if accused is not None and all(one.resource != accused for one in ceilings):
        why = "other programs used them" if accused == "cores" else "the job waits for it"
        ceilings.append(Ceiling(resource=accused, bytes_per_second=rate, why=why))
    # A stable sort: the accused first, the others as they were, the lowest first.
    ceilings = sorted(_sort(ceilings), key=lambda one: one.resource != accused)
    return Finding(bottleneck=accused, rate=rate, ceilings=ceilings, job=job, busy=busy)


def _raise_to(ceiling: Ceiling, rate: float) -> Ceiling:
    """Raise a ceiling to the rate that the job has reached."""
    if ceiling.bytes_per_second >= rate:
        return ceiling
    why = f"{ceiling.why}; that is {_text(ceiling)}, but the job has reached {rate_text(rate)}"
    return ceiling.model_copy(update={"bytes_per_second": rate, "why": why})


def _name_by_setting(
    ceiling: Ceiling, accused: Bottleneck | None, job: Job, rate: float
) -> Ceiling:
    """Call the ceiling of the requests by the setting that bounds them, where that is to blame."""
    cause = main_limit(job.concurrency_seconds)
    if (
        accused not in ("memory budget", "max_concurrency")
        or ceiling.resource not in REQUESTS
        or cause is None
    ):
        return ceiling
    why = f"for {cause[1]:.0%} of its wait it sent no more requests because of it"
    if not explains(ceiling, rate, CONTRADICTS):
        # What is measured is the ceiling then: the law leaves something out.
        why += f", and got less than such requests alone give ({_text(ceiling)})"
        update = {"resource": accused, "why": why, "bytes_per_second": rate}
        return ceiling.model_copy(update=update)
    return ceiling.model_copy(update={"resource": accused, "why": f"{why}; {ceiling.why}"})


def _text(ceiling: Ceiling) -> str:
    return rate_text(ceiling.bytes_per_second)


def _sort(ceilings: list[Ceiling]) -> list[Ceiling]:
    return sorted(ceilings, key=lambda one: one.bytes_per_second)


def evidence_of(
    figures: Figures, job: Job, ceilings: Sequence[Ceiling], gain: float = 1.0
) -> Evidence:
    """Return what the judge is told of a job.

    Args:
        figures: What was measured.
        job: The job.
        ceilings: The ceilings that follow from the parts, without the listing; the lowest first.
        gain: Bytes that a job gets for each byte that the store sends.
    """
    # Without settings: what is taken of them here follows from the figures alone.
    resources, cores = Resources(figures, None), figures.machine.cores
    return Evidence(
        waits=job.waits,
        seconds=job.seconds,
        kept_back=job.concurrency_seconds,
        last_cause=next((one for one in Limit if one.text == job.concurrency_reason), None),
        requests=job.requests,
        throttled=job.throttled,
        rates=Rates(
            rate=steady_rate(job),
            came=read_rate(job) * gain,
            ceilings=ceilings,
            step_seconds=_seconds_of_steps(job),
            is_of_feeder=figures.target.kind == "feeder",
            cores=cores,
            core_seconds=job.core_seconds or 0.0,
            used=used_part(job, cores) or 0.0,
            is_busy=busy_part(job, cores) is not None,
            lateness=resources.lateness,
            is_capped=resources.is_capped,
            fills_link=resources.fills_link,
        ),
    )


def _seconds_of_steps(job: Job) -> float:
    """Return the seconds that the steps of a simulated trainer were asked to take."""
    return (job.step_seconds or 0.0) * job.batches


# -- in words --------------------------------------------------------------------------------------

SHOWN = 0.02
"""The least part of a job's time that is named."""


def longest_wait(job: Job) -> str:
    """Return what a job waited longest for, and for how much of its time."""
    waits = {stage: spent for stage, spent in job.waits.items() if stage != "client"}
    stage = longest_stage(waits)
    if stage is None or not job.seconds:
        return "nothing"
    return f"{_noun_of(stage)} ({waits[stage] / job.seconds:.0%} of its time)"


def _noun_of(stage: str) -> str:
    return TABLE[stage].noun if stage in TABLE else stage


def sentences_of(figures: Figures) -> list[str]:
    """Return what speaks for a verdict, a sentence each."""
    return [*_tell_waits(figures.job), *_tell_sweep(figures), *_tell_requests(figures.job)]


def _tell_waits(job: Job | None) -> list[str]:
    if job is None or not job.seconds:
        return []
    largest = sorted(job.waits.items(), key=lambda wait: -wait[1])
    parts = [
        f"{_noun_of(stage)} {seconds / job.seconds:.0%}"
        for stage, seconds in largest
        if seconds >= SHOWN * job.seconds
    ]
    sentences = [f"The job's time went to {', '.join(parts)}."] if parts else []
    if job.step_seconds:
        sentences.append(
            f"A trainer with steps of {job.step_seconds * 1e3:.0f} ms waits for {job.stalled:.0%} "
            "of its time."
        )
    if listed := job.waits.get("list", 0.0):
        sentences.append(
            f"The listing takes {listed:.2g} s of the {job.first_batch_seconds:.2g} s to the first"
            " batch."
        )
    return sentences


def _tell_sweep(figures: Figures) -> list[str]:
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


def _tell_requests(job: Job | None) -> list[str]:
    if job is None:
        return []
    sentences = []
    if job.loop_busy is not None:
        sentences.append(f"In the job the event loop's thread used {job.loop_busy:.0%} of a core.")
    if job.core_seconds is not None:
        sentences.append(
            f"Its threads ran for {job.core_seconds:.2g} s, and waited for a core for "
            f"{job.core_wait_seconds or 0:.2g} s."
        )
    if job.throttled:
        sentences.append(f"{job.throttled} of {job.requests} requests were told to slow down.")
    if reason := longest_reason(job):
        sentences.append(f"The limit of requests at a time was {job.concurrency}: {reason}.")
    return sentences


def longest_reason(job: Job) -> str:
    """Return the cause for which a job had no more requests, for longest; empty: it is not told."""
    cause = main_limit(job.concurrency_seconds)
    if cause is None or job.concurrency is None:
        return job.concurrency_reason or ""
    return f"for {cause[1]:.0%} of the wait for the store, {cause[0].text}"
