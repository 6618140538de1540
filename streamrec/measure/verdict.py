"""The verdict: what holds a job back, why, what to change, and what comes then. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from streamrec.flow.stages import RESOURCES
from streamrec.measure.advice import Advice, advise, paste_of
from streamrec.measure.ceilings import Resources
from streamrec.measure.evidence import find, longest_wait, sentences_of
from streamrec.measure.figures import Change, Verdict, has_ramp, is_steady, mean_rate
from streamrec.report.verdict import CAUSES
from streamrec.report.words import rate as rate_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streamrec.config import DatasetSettings
    from streamrec.measure.evidence import Finding
    from streamrec.measure.figures import Figures, Job

SHORTEST = 1.0
"""Seconds of a job below which its start is most of it, and no rate can be told."""
FEWEST = 3
"""Batches below which a job tells no rate."""
LONG = 10.0
"""Seconds of a job that is long enough."""
NEAR = 0.05
"""The part by which two ceilings may differ and cannot be told apart."""


def judge(figures: Figures, settings: DatasetSettings | None) -> Verdict | None:
    """Name the bottleneck of a job and what to change.

    Args:
        figures: What was measured.
        settings: The dataset's settings; ``None``: they are not known, as those of a feeder.

    Returns:
        The verdict; ``None``: too little was measured for one.
    """
    job = figures.job
    resources = Resources(figures, settings)
    finding = find(figures, resources.ceilings(), resources.gain)
    if job is not None and _is_short(figures, job, finding):
        return _refuse_to_judge(figures, settings, job)
    if finding is None:
        return None
    advice = advise(figures, settings, finding)
    return Verdict(
        bottleneck=finding.bottleneck,
        summary=" ".join(_summarize(figures, settings, finding, advice)),
        evidence=sentences_of(figures),
        ceilings=finding.ceilings,
        changes=advice.changes,
        paste=paste_of(advice.changes),
        bytes_per_second=finding.rate,
        predicted_bytes_per_second=advice.rate,
        next_bottleneck=advice.next,
        from_job=finding.job is not None,
        busy=finding.busy,
    )


def _is_short(figures: Figures, job: Job, finding: Finding | None) -> bool:
    """Return whether a job tells neither its rate nor what it waits for."""
    # A bottleneck that the engine names itself needs fewer batches than one that is inferred from a
    # rate.
    named = finding.bottleneck if finding else None
    # The engine's own reason, and what a feeder says of its stages, need no rate.
    is_told = named in CAUSES.values() or figures.target.kind == "feeder"
    fewest = 1 if is_told and job.seconds >= LONG else FEWEST
    return job.seconds < SHORTEST or job.batches < fewest


def _refuse_to_judge(figures: Figures, settings: DatasetSettings | None, job: Job) -> Verdict:
    """Return a verdict that names nothing, and says what makes the job longer."""
    parts = figures.model_copy(update={"job": None})
    rate = job.bytes / job.seconds if job.seconds else 0.0
    longer = Change(setting=None, why=_say_how_longer(figures, settings, job))
    batches = "batch" if job.batches == 1 else "batches"
    return Verdict(
        bottleneck=None,
        summary=f"The job got {job.batches:,} {batches} in {job.seconds:.2g} s: too short to judge."
        f" {longer.why}",
        evidence=sentences_of(figures),
        ceilings=Resources(parts, settings).ceilings(),
        changes=[longer],
        bytes_per_second=rate,
        predicted_bytes_per_second=None,
        next_bottleneck=None,
        is_short=True,
    )


def _say_how_longer(figures: Figures, settings: DatasetSettings | None, job: Job) -> str:
    """Return what makes a job longer, by what ended it."""
    if job.ended == "stream" and settings is None:
        return "Let the feeder's dataset have more epochs, and measure again."
    if job.ended == "stream" and settings is not None:
        times = math.ceil(max(LONG / job.seconds if job.seconds else 1.0, FEWEST))
        return f"Read it several times: --set epochs={(settings.epochs or 1) * times}."
    if job.ended == "budget":
        return "Let it read more: raise --max-bytes and --max-requests."
    if job.ended == "seconds":
        seconds = 2 * max(figures.limits.seconds, LONG)
        return f"Give the benchmark more time: --seconds {seconds:.0f}."
    return "Let it run for longer."


def _summarize(
    figures: Figures, settings: DatasetSettings | None, finding: Finding, advice: Advice
) -> Iterator[str]:
    if finding.busy is not None:
        yield _say_busy(figures, finding.busy)
    yield _say_cause(finding)
    yield from _say_which_rate(finding)
    if finding.job is not None and not is_steady(finding.job):
        yield (
            f"Its rate was not steady ({rate_text(mean_rate(finding.job))} in the mean): measure "
            "for longer."
        )
    yield from _say_as_near(finding)
    yield from _say_what_to_do(advice)
    # Where the listing stays as it is, there is no change to measure.
    stays = finding.bottleneck == "listing" and advice.changes[0].setting is None
    if finding.bottleneck is not None and not (stays and advice.next is None):
        yield _say_what_then(figures, settings, finding, advice)
    if finding.job is not None and finding.job.seconds < LONG:
        yield (
            f"The job took only {finding.job.seconds:.2g} s, so what is done once, such as the "
            "listing, weighs more than in a training. "
            f"{_say_how_longer(figures, settings, finding.job)}"
        )


def _say_which_rate(finding: Finding) -> Iterator[str]:
    """Say of which part of a job its rate is, where that of the whole job differs from it."""
    job = finding.job
    if job is None or not job.seconds or not is_steady(job):
        return
    whole = job.bytes / job.seconds
    if abs(finding.rate - whole) <= NEAR * whole:
        return
    if finding.bottleneck == "listing":
        part = "of a whole run, its listing included"
    elif has_ramp(job):
        part = "of its last two thirds, after the engine has found its number of requests"
    else:
        part = "of the time after its first batch"
    yield f"This rate is that {part}; the measured job as a whole had {rate_text(whole)}."


def _say_busy(figures: Figures, part: float) -> str:
    store = ", the simulated store among them" if figures.target.kind == "simulation" else ""
    return (
        f"This machine was busy with other programs{store}: they had its cores for {part:.0%} of "
        "the time in which the job could have used them, so trust no rate that depends on the CPU."
    )


def _say_cause(finding: Finding) -> str:
    rate = rate_text(finding.rate)
    ceiling = next((one for one in finding.ceilings if one.resource == finding.bottleneck), None)
    if finding.bottleneck is None or ceiling is None:
        return f"The job reads {rate}. {_say_unexplained(finding, finding.job)}"
    named = f"{RESOURCES[finding.bottleneck].words}: {ceiling.why}."
    if finding.job is None:
        return f"No job was measured. By its parts, {rate} is the most; the limit is {named}"
    return f"The job reads {rate}. What holds it back is {named}"


def _say_unexplained(finding: Finding, job: Job | None) -> str:
    waited = f" It waited longest for {longest_wait(job)}." if job else ""
    lowest = finding.ceilings[0] if finding.ceilings else None
    least = f"; the lowest ceiling is {rate_text(lowest.bytes_per_second)}" if lowest else ""
    return f"Nothing that was measured explains this rate{least}.{waited}"


def _say_as_near(finding: Finding) -> list[str]:
    """Name the ceilings that cannot be told from the bottleneck's."""
    if finding.bottleneck is None:
        return []
    limit = finding.rate * (1 + NEAR)
    # Measurements vary by more than NEAR, so the order of such ceilings is chance.
    near = [
        RESOURCES[one.resource].words for one in finding.others if one.bytes_per_second <= limit
    ]
    verb = "is" if len(near) == 1 else "are"
    return [f"As near {verb} {' and '.join(near)}."] if near else []


def _say_what_to_do(advice: Advice) -> list[str]:
    set_ = [one for one in advice.changes if one.value is not None]
    other = [one.why for one in advice.changes if one.value is None]
    values = " and ".join(f"{one.setting} to {_show(one.value)}" for one in set_)
    # Two settings may have one reason, which is said once.
    reasons = "; ".join(dict.fromkeys(one.why for one in set_))
    return [f"Set {values}: {reasons}.", *other] if set_ else other


def _show(value: object) -> str:
    return (
        ", ".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else f"{value}"
    )


def _say_what_then(
    figures: Figures, settings: DatasetSettings | None, finding: Finding, advice: Advice
) -> str:
    if finding.bottleneck == "trainer":
        return _say_without_trainer(finding, Resources(figures, settings).best_seen)
    if advice.rate is None:
        return "What comes next was not measured; measure again after the change."
    if advice.next is None:
        return (
            f"Then {rate_text(advice.rate)} are to be expected, which is the best rate that the "
            "store gave; what limits it then was not measured."
        )
    times = advice.rate / finding.rate if finding.rate else 1.0
    return (
        f"Then {rate_text(advice.rate)} are to be expected, {times:.1f} times as much, and the "
        f"next limit is {RESOURCES[advice.next].words}."
    )


def _say_without_trainer(finding: Finding, seen: float) -> str:
    stream = [one for one in finding.others if one.resource != "listing"]
    if not stream:
        return "What the stream would give without it was not measured."
    could = stream[0].bytes_per_second
    told = (
        f"The stream could give {rate_text(could)} (computed, not measured); its limit is "
        f"{RESOURCES[stream[0].resource].words}."
    )
    if could <= seen:
        return told
    return f"{told} The sweep measured {rate_text(seen)} at most: more --seconds may show more."
