"""Two benchmarks beside each other: what differs, what became faster, and what is noise. No I/O."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import numpy as np

from streamrec.masking import printable
from streamrec.measure.view import STEPS, VerdictText, advice_of, clean, place_of
from streamrec.report.charts import Grid, Square, arrange
from streamrec.report.verdict import on_path
from streamrec.report.words import money, rate, seconds, setting, size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from streamrec.flow.stages import Bottleneck
    from streamrec.measure.figures import Figures, Job, Limits, Sample


ONCE = 0.05
"""A figure that was measured once is taken to be true to this part of it."""
LEAST = 0.025
"""No figure is taken to be truer than this: two runs on one machine differ by as much."""
BLOCKS = 10
STUDENT = 2.262
"""Student's t of ``BLOCKS - 1`` degrees of freedom, 95 %, two-sided."""
NORMAL = 1.96


@dataclass(frozen=True)
class Estimate:
    """A figure, and the interval in which the true one is."""

    value: float
    low: float
    high: float

    def overlaps(self, other: Estimate) -> bool:
        """Return whether the difference of the two may be noise."""
        return self.low <= other.high and other.low <= self.high


def estimate_once(value: float) -> Estimate:
    """Return a figure without repetitions."""
    # Nothing tells how much it varies, so it counts as less exact.
    return _within(value, value, value, ONCE)


def job_rate(job: Job, name: str) -> Estimate:
    """Return a job's ``"bytes"`` or ``"records"`` a second.

    The interval follows from the rates of ten parts of the job's time: neighbouring samples depend
    on each other, parts of seconds hardly do.
    """
    value = getattr(job, name) / job.seconds if job.seconds > 0 else 0.0
    if len(job.samples) < BLOCKS:
        return estimate_once(value)
    # Blocks, since samples next to each other are not independent.
    places = np.array_split(np.arange(len(job.samples)), BLOCKS)
    rates = [_rate_of([job.samples[place] for place in part], name) for part in places]
    # Student's t, since ten parts are few to know the deviation by.
    margin = STUDENT * float(np.std(rates, ddof=1)) / math.sqrt(BLOCKS)
    return _within(value, value - margin, value + margin)


def _rate_of(samples: Sequence[Sample], name: str) -> float:
    whole = sum(sample.seconds for sample in samples)
    return float(sum(getattr(sample, name) for sample in samples) / whole) if whole > 0 else 0.0


def quantile(ordered: Sequence[float], part: float, value: float) -> Estimate:
    """Return a quantile of sorted times; its interval is that of the order statistics.

    Too few times say nothing about a high quantile: the interval has no end then.
    """
    count = len(ordered)
    middle, margin = count * part, NORMAL * math.sqrt(count * part * (1 - part))
    # The rank of a quantile is binomial: no distribution of the times is assumed.
    first, last = math.floor(middle - margin), math.ceil(middle + margin)
    low = ordered[first] if 0 <= first < count else 0.0
    high = ordered[last] if last < count else math.inf
    return _within(value, low, high)


def _within(value: float, low: float, high: float, least: float = LEAST) -> Estimate:
    return Estimate(value, min(low, value * (1 - least)), max(high, value * (1 + least)))


Judgement: TypeAlias = Literal["better", "worse", "noise"]
"""The change of a figure."""

SIGNS: Final[dict[Judgement, str]] = {"better": "▲", "worse": "▼", "noise": ""}

VERSION: Final = 1
"""The version of the JSON of a comparison: names may be added to it."""

NOISE: Final = (
    "A difference is noise where the intervals of the two figures overlap, so that the interval "
    "of their ratio holds 1. An interval holds the true figure with 95%: for a job it follows "
    "from ten parts of its time, for first bytes from the number of requests. A figure that was "
    "measured once counts as exact to 5%, and no figure as more exact than 2.5%. The rate of a "
    "job in the table is that of the whole job; the rate in a verdict leaves out the start of a "
    "long job. Runs at other hours differ by more: repeat both before you rely on a difference."
)


@dataclass(frozen=True)
class Ratio:
    """A figure of both benchmarks."""

    name: str
    one: str
    other: str
    ratio: str
    """The other's divided by the first's."""
    bounds: tuple[float | None, float | None]
    """The interval in which the true ratio is; ``None``: it has no such end."""
    judgement: Judgement
    values: tuple[float, float]
    """The figures: bytes or records a second, seconds, or money."""
    is_rate: bool
    """True: more is faster; else less is."""

    @property
    def verdict(self) -> str:
        """The judgement with its sign."""
        return f"{SIGNS[self.judgement]} {self.judgement}".strip()

    @property
    def interval(self) -> str:
        """The interval of the ratio."""
        low, high = self.bounds
        if low is None:
            return ""
        return f"{low:.2f} or more" if high is None else f"{low:.2f} to {high:.2f}"

    @property
    def is_even(self) -> bool:
        """True if the two figures are the same, to what one measurement tells."""
        before, after = self.values
        return abs(after - before) <= ONCE * before


@dataclass(frozen=True)
class SweepChange:
    """A point of both sweeps, with both rates."""

    range_bytes: int
    concurrency: int
    before: float
    """Bytes a second."""
    after: float
    judgement: Judgement


@dataclass(frozen=True)
class ComparisonView:
    """All that is shown of two benchmarks. Nothing in it is escaped."""

    names: tuple[str, str]
    taken: tuple[str, str]
    headline: str
    judgement: Judgement
    verdicts: tuple[VerdictText, VerdictText]
    differences: list[tuple[str, str, str]]
    """The facts and settings that differ, with both values."""
    ratios: list[Ratio]
    sweep: list[SweepChange]
    """The points that both sweeps have."""
    waits: list[tuple[str, float, float]]
    """The parts of both jobs' time, by stage."""
    bottlenecks: tuple[Bottleneck | None, Bottleneck | None]

    @property
    def grid(self) -> Grid | None:
        """The ratios of the sweep's points as a table."""
        squares = {(one.range_bytes, one.concurrency): _square(one) for one in self.sweep}
        return arrange(squares) if squares else None


def compare(one: Figures, other: Figures, names: tuple[str, str] = ("A", "B")) -> ComparisonView:
    """Return what is different in the second of two benchmarks.

    Args:
        one: The first benchmark.
        other: The second one.
        names: What to call them.
    """
    # Files come from anywhere: control characters must not reach the terminal.
    one, other = clean(one), clean(other)
    names = printable(names[0]), printable(names[1])
    ratios = [_ratio(*pair) for pair in _pairs(one, other)]
    headline, judgement = _headline(ratios, names)
    return ComparisonView(
        names=names,
        taken=(one.taken, other.taken),
        headline=headline,
        judgement=judgement,
        verdicts=(advice_of(one.verdict), advice_of(other.verdict)),
        differences=list(_differences(_facts(one), _facts(other))),
        ratios=ratios,
        sweep=_sweep(one, other),
        waits=_compare_waits(one, other),
        bottlenecks=(_bottleneck(one), _bottleneck(other)),
    )


def plain(view: ComparisonView) -> dict[str, Any]:
    """Return a comparison as the JSON of ``streamrec bench compare --json``."""
    return {
        "version": VERSION,
        "names": view.names,
        "taken": view.taken,
        "headline": view.headline,
        "judgement": view.judgement,
        "bottlenecks": view.bottlenecks,
        "differences": [
            {"name": name, "before": before, "after": after}
            for name, before, after in view.differences
        ],
        "figures": [
            {
                "name": one.name,
                "before": one.values[0],
                "after": one.values[1],
                "ratio_low": one.bounds[0],
                "ratio_high": one.bounds[1],
                "more_is_faster": one.is_rate,
                "judgement": one.judgement,
            }
            for one in view.ratios
        ],
        "sweep": [asdict(one) for one in view.sweep],
        "waits": [
            {"stage": stage, "before": before, "after": after}
            for stage, before, after in view.waits
        ],
    }


@dataclass(frozen=True)
class _Figure:
    """A figure of one benchmark that may be compared."""

    estimate: Estimate
    text: str
    is_rate: bool
    """True: more is faster; else less is."""


def _pairs(one: Figures, other: Figures) -> Iterator[tuple[str, _Figure, _Figure]]:
    first, second = dict(_figures(one)), dict(_figures(other))
    yield from ((name, first[name], second[name]) for name in first if name in second)


def _figures(figures: Figures) -> Iterator[tuple[str, _Figure]]:
    """Yield the rates and times of a benchmark, the most important first."""
    yield from _job(figures)
    yield from _store(figures)
    for name in STEPS:
        if figures.processing and (step := getattr(figures.processing, name)):
            yield f"{name}, on one core", _rate(estimate_once(step.bytes_per_second))
    if figures.costs and figures.costs.epoch is not None:
        epoch, currency = figures.costs.epoch, figures.costs.currency
        yield f"one epoch, in {currency}", _time(estimate_once(epoch), money(epoch, currency))


def _job(figures: Figures) -> Iterator[tuple[str, _Figure]]:
    if not (job := figures.job):
        return
    yield "job", _rate(job_rate(job, "bytes"))
    records = job_rate(job, "records")
    yield "job, records", _Figure(records, f"{records.value:,.0f}/s", is_rate=True)
    yield "first batch", _time(estimate_once(job.first_batch_seconds))


def _store(figures: Figures) -> Iterator[tuple[str, _Figure]]:
    if first := figures.first_byte:
        for name, part in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999)):
            estimate = quantile(first.seconds, part, getattr(first, name))
            yield f"first byte, {name.replace('999', '99.9')}", _time(estimate)
    if sweep := figures.sweep:
        if sweep.connection_bytes_per_second is not None:
            yield "one connection", _rate(estimate_once(sweep.connection_bytes_per_second))
        best = max((cell.bytes_per_second for cell in sweep.cells), default=0.0)
        yield "best of the sweep", _rate(estimate_once(best))
    if figures.listing:
        yield "listing", _time(estimate_once(figures.listing.seconds))


def _rate(estimate: Estimate) -> _Figure:
    return _Figure(estimate, rate(estimate.value), is_rate=True)


def _time(estimate: Estimate, text: str | None = None) -> _Figure:
    return _Figure(estimate, text or seconds(estimate.value), is_rate=False)


def _ratio(name: str, one: _Figure, other: _Figure) -> Ratio:
    before, after = one.estimate, other.estimate
    return Ratio(
        name=name,
        one=one.text,
        other=other.text,
        ratio=f"x {after.value / before.value:.2f}" if before.value > 0 else "",
        bounds=bounds_of(before, after),
        judgement=_judgement(before, after, is_rate=one.is_rate),
        values=(before.value, after.value),
        is_rate=one.is_rate,
    )


def bounds_of(one: Estimate, other: Estimate) -> tuple[float | None, float | None]:
    """Return the interval of a ratio; it holds 1 where the intervals of the figures overlap."""
    low = other.low / one.high if one.value > 0 else None
    has_end = one.value > 0 and one.low > 0 and not math.isinf(other.high)
    return low, other.high / one.low if has_end else None


def _judgement(one: Estimate, other: Estimate, *, is_rate: bool) -> Judgement:
    if one.overlaps(other):
        return "noise"
    return "better" if (other.value > one.value) == is_rate else "worse"


def _headline(ratios: list[Ratio], names: tuple[str, str]) -> tuple[str, Judgement]:
    # The job if there is one: it is what a user feels.
    main = next((r for r in ratios if r.name in ("job", "best of the sweep")), None)
    if main is None:
        return "The two have no rate in common.", "noise"
    what = "The job" if main.name == "job" else "The best of the sweep"
    if main.judgement == "noise":
        return _say_noise(what, main, names), "noise"
    word = {"better": "faster", "worse": "slower"}[main.judgement]
    return f"{what} is {word} in {names[1]}: {main.one} became {main.other}.", main.judgement


def _say_noise(what: str, main: Ratio, names: tuple[str, str]) -> str:
    if main.is_even or not main.ratio:
        return f"{what} is as fast in {names[1]} as in {names[0]}, but for noise."
    remedy = "measure both again with more --seconds"
    if main.name == "job":
        remedy += ", and with --set epochs=3 if the data ends before"
    return (
        f"{what} is {main.ratio.removeprefix('x ')} times as fast in {names[1]} ({main.one} became "
        f"{main.other}), but too little was measured to be sure (the interval of the ratio is "
        f"{main.interval}): {remedy}."
    )


def _facts(figures: Figures) -> dict[str, str]:
    """Return what a benchmark depends on, as text."""
    target, job = figures.target, figures.job
    facts: dict[str, Any] = {
        "measured": target.kind,
        "urls": ", ".join(target.urls),
        "simulation": target.simulation,
        **{name: setting(name, value) for name, value in target.settings.items()},
        "step time": seconds(job.step_seconds) if job and job.step_seconds is not None else None,
        **{
            name.replace("_bytes", "").replace("_", " "): setting(name, value)
            for name, value in figures.machine.model_dump().items()
        },
        **dict(_limits(figures.limits)),
    }
    return {name: str(value) for name, value in facts.items() if value is not None}


def _limits(limits: Limits) -> Iterator[tuple[str, str]]:
    yield "limit of seconds", f"{limits.seconds:,.0f}"
    yield "limit of bytes", size(limits.bytes)
    yield "limit of requests", f"{limits.requests:,}"


def _differences(one: dict[str, str], other: dict[str, str]) -> Iterator[tuple[str, str, str]]:
    for name in one | other:
        before, after = one.get(name, "not given"), other.get(name, "not given")
        if before != after:
            yield name, before, after


def _compare_waits(one: Figures, other: Figures) -> list[tuple[str, float, float]]:
    if not (one.job and other.job):
        return []
    first, second = _parts_of(one.job.waits), _parts_of(other.job.waits)
    stages = on_path(first | second)
    rows = ((name, first.get(name, 0.0), second.get(name, 0.0)) for name in stages)
    return [row for row in rows if max(row[1:]) > 0]


def _parts_of(waits: dict[str, float]) -> dict[str, float]:
    whole = sum(waits.values()) or 1.0
    return {name: wait / whole for name, wait in waits.items()}


def _bottleneck(figures: Figures) -> Bottleneck | None:
    return figures.verdict.bottleneck if figures.verdict else None


def _sweep(one: Figures, other: Figures) -> list[SweepChange]:
    if not (one.sweep and other.sweep):
        return []
    # Without bytes there is no ratio.
    before = {place_of(cell): cell.bytes_per_second for cell in one.sweep.cells if cell.bytes}
    after = {place_of(cell): cell.bytes_per_second for cell in other.sweep.cells}
    common = [(place, first, after[place]) for place, first in before.items() if place in after]
    return [
        SweepChange(
            range_bytes=range_bytes,
            concurrency=concurrency,
            before=first,
            after=second,
            judgement=_judgement(estimate_once(first), estimate_once(second), is_rate=True),
        )
        for (range_bytes, concurrency), first, second in common
    ]


def _square(change: SweepChange) -> Square:
    text = f"{SIGNS[change.judgement]} {change.after / change.before:.2f}".strip()
    became = f"{rate(change.before)} became {rate(change.after)}"
    return Square(text, change.judgement, became)
