"""The verdict: what holds a job back, why, what to change, and what comes then. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamrec.measure.advice import Advice, advise, paste_of
from streamrec.measure.ceilings import Resources, rate_text
from streamrec.measure.evidence import Finding, evidence, find
from streamrec.measure.figures import Verdict

if TYPE_CHECKING:
    from streamrec.config import DatasetSettings
    from streamrec.measure.figures import Bottleneck, Figures

__all__ = ["judge"]

NEAR = 0.05
"""The part by which two ceilings may differ and cannot be told apart."""
_IN_WORDS: dict[Bottleneck, str] = {
    "listing": "the listing of the shards",
    "store latency": "the latency of the store",
    "connection bandwidth": "the bandwidth of the connections to the store",
    "link": "the link, or what the store gives to this machine",
    "throttling": "the store's limit of requests",
    "event loop": "the event loop's core",
    "decoding": "decoding",
    "transform": "the functions filter, map and transform",
    "trainer": "the trainer",
    "feeder": "the feeder",
}


def judge(figures: Figures, settings: DatasetSettings | None) -> Verdict | None:
    """Name the bottleneck of a job and what to change.

    Args:
        figures: What was measured.
        settings: The dataset's settings; ``None``: they are not known, as those of a feeder.

    Returns:
        The verdict; ``None``: too little was measured for one.
    """
    finding = find(figures, Resources(figures, settings).ceilings())
    if finding is None:
        return None
    advice = advise(figures, settings, finding)
    return Verdict(
        bottleneck=finding.bottleneck,
        summary=_summary(finding, advice),
        evidence=evidence(figures),
        ceilings=finding.ceilings,
        changes=advice.changes,
        paste=paste_of(advice.changes),
        bytes_per_second=finding.rate,
        predicted_bytes_per_second=advice.rate,
        next_bottleneck=advice.next,
    )


def _summary(finding: Finding, advice: Advice) -> str:
    own = next(one for one in finding.ceilings if one.resource == finding.bottleneck)
    sentences = [
        f"The job reads {rate_text(finding.rate)}. What holds it back is "
        f"{_IN_WORDS[finding.bottleneck]}: {own.why}.",
        *_as_near(finding),
        *_to_do(advice),
        _then(finding, advice),
    ]
    return " ".join(sentences)


def _as_near(finding: Finding) -> list[str]:
    """Name the ceilings that cannot be told from the bottleneck's."""
    limit = finding.rate * (1 + NEAR)
    near = [_IN_WORDS[one.resource] for one in finding.others if one.bytes_per_second <= limit]
    verb = "is" if len(near) == 1 else "are"
    return [f"As near {verb} {' and '.join(near)}."] if near else []


def _to_do(advice: Advice) -> list[str]:
    set_ = [one for one in advice.changes if one.setting is not None]
    other = [one.why for one in advice.changes if one.setting is None]
    values = " and ".join(f"{one.setting} to {_shown(one.value)}" for one in set_)
    reasons = "; ".join(dict.fromkeys(one.why for one in set_))
    return [f"Set {values}: {reasons}.", *other] if set_ else other


def _shown(value: object) -> str:
    return (
        ", ".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else f"{value}"
    )


def _then(finding: Finding, advice: Advice) -> str:
    if advice.next is None:
        return "What comes next was not measured; measure again after the change."
    times = advice.rate / finding.rate
    if finding.bottleneck == "trainer":
        return (
            f"Without it the stream would give {rate_text(advice.rate)}, {times:.1f} times as "
            f"much; {_IN_WORDS[advice.next]} is the next limit."
        )
    return (
        f"Then {rate_text(advice.rate)} are to be expected, {times:.1f} times as much, and "
        f"{_IN_WORDS[advice.next]} is the next limit."
    )
