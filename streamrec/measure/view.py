"""The view of a benchmark: the text and the plots that reports show of its figures. No I/O."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from streamrec.flow.stages import RESOURCES, TABLE
from streamrec.masking import printable
from streamrec.measure.evidence import longest_reason
from streamrec.report.charts import (
    BarRow,
    Grid,
    HistogramChart,
    Line,
    Square,
    arrange,
    histogram_of,
    size_of_range,
)
from streamrec.report.verdict import LEAST, longest_stage, on_path
from streamrec.report.words import memory, money, percent, quantity, rate, seconds, setting, size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from streamrec.measure.figures import (
        Cell,
        Costs,
        Figures,
        FirstByte,
        Job,
        Limits,
        Listing,
        Processing,
        Sample,
        Sweep,
        Target,
        Verdict,
    )
    from streamrec.report.charts import Place


MOST_URLS = 20
"""The most URLs that are shown; all are in the JSON."""

UNEXPLAINED: Final = "Nothing that was measured explains the rate."
TOO_SHORT: Final = "The job was too short to judge."
ENDS = {
    "seconds": "its time",
    "stream": "the end of the stream",
    "budget": "the budget",
    "interrupt": "an interrupt",
}
STEPS = ("decompress", "scan", "crc", "parse", "decode", "transform")
"""The steps of the processing, in the order in which bytes pass them."""
BEYOND = 2.5
"""Ceilings above so many times the predicted rate are cut: what is far away needs no length."""


@dataclass(frozen=True)
class VerdictText:
    """The verdict, as text."""

    headline: str
    is_good: bool
    summary: str = ""
    evidence: list[str] = field(default_factory=list)
    now: str = ""
    then: str = ""
    """The rate after the change; empty where nothing helps."""
    gain: str = ""
    next: str = ""
    """The bottleneck after the change."""
    changes: list[tuple[str, str]] = field(default_factory=list)
    """The changes to make, and the reasons."""
    paste: str = ""


@dataclass(frozen=True)
class FiguresView:
    """All that is shown of figures, as text. Nothing in it is escaped."""

    title: str
    taken: str
    urls: list[str]
    advice: VerdictText
    facts: list[tuple[str, str]]
    """The most important numbers, by name."""
    waits: list[BarRow]
    ceilings: list[BarRow]
    lines: list[tuple[str, float]]
    """Rates to draw across the ceilings: their names and places."""
    grid: Grid | None
    histogram: HistogramChart | None
    series: list[Line]
    job: list[tuple[str, str]]
    """The facts of the job that are not rates."""
    steps: list[BarRow]
    sample: str
    """The records with which the steps were measured."""
    costs: list[tuple[str, str]]
    prices: str
    spent: list[BarRow]
    settings: list[tuple[str, str]]
    machine: list[tuple[str, str]]
    unfinished: list[str]


def view_of(figures: Figures) -> FiguresView:
    """Return what is shown of figures."""
    # Also those just measured: names of shards come from a store.
    figures = clean(figures)
    urls, job, verdict = figures.target.urls, figures.job, figures.verdict
    more = [f"and {len(urls) - MOST_URLS:,} more"] if len(urls) > MOST_URLS else []
    return FiguresView(
        title=_title(figures),
        taken=figures.taken,
        urls=urls[:MOST_URLS] + more,
        advice=advice_of(verdict),
        facts=_numbers(figures),
        waits=_rows_of_waits(job) if job else [],
        ceilings=_ceilings(verdict) if verdict else [],
        lines=_lines(verdict) if verdict else [],
        grid=grid_of(figures.sweep) if figures.sweep and figures.sweep.cells else None,
        histogram=_histogram(figures.first_byte) if figures.first_byte else None,
        series=lines_of(job) if job else [],
        job=_job(job) if job else [],
        steps=_steps(figures.processing) if figures.processing else [],
        sample=_sample(figures.processing) if figures.processing else "",
        costs=_costs(figures.costs) if figures.costs else [],
        prices=figures.costs.prices if figures.costs else "",
        spent=spent_of(figures.spent, figures.limits),
        settings=_settings(figures.target, figures.listing),
        machine=_machine(figures),
        unfinished=figures.unfinished,
    )


def clean(figures: Figures) -> Figures:
    """Return figures whose texts hold no credentials and no control characters."""
    return type(figures).model_validate(_printable(figures.model_dump()))


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list | tuple):
        return [_printable(part) for part in value]
    if isinstance(value, dict):
        return {_printable(name): _printable(part) for name, part in value.items()}
    return value


def _title(figures: Figures) -> str:
    first, *others = figures.target.urls or [figures.target.kind]
    return f"{first} and {quantity(len(others), 'other', 'others')}" if others else first


def advice_of(verdict: Verdict | None) -> VerdictText:
    """Return a verdict as text."""
    if verdict is None:
        return VerdictText("No verdict: too little was measured.", is_good=False)
    now, then = verdict.bytes_per_second, verdict.predicted_bytes_per_second or 0.0
    gains = then > now > 0 and bool(verdict.changes)
    return VerdictText(
        _headline(verdict),
        is_good=verdict.bottleneck == "trainer",
        summary=verdict.summary,
        evidence=verdict.evidence,
        now=f"{rate(now)} now" if verdict.from_job else f"at most {rate(now)}",
        then=rate(then) if gains else "",
        gain=f"x {then / now:.1f}" if gains else "",
        next=verdict.next_bottleneck or "",
        changes=[(_change(one.setting, one.value), one.why) for one in verdict.changes],
        paste=verdict.paste,
    )


def _headline(verdict: Verdict) -> str:
    if verdict.is_short:
        headline = TOO_SHORT
    else:
        headline = RESOURCES[verdict.bottleneck].headline if verdict.bottleneck else UNEXPLAINED
    if verdict.busy is None:
        return headline
    busy = f"Other programs had this machine's cores for {percent(verdict.busy)} of the time."
    return busy if verdict.bottleneck == "cores" else f"{busy} {headline}"


def _change(setting: str | None, value: Any) -> str:
    if setting is None:
        return "outside streamrec"
    return setting if value is None else f"{setting} = {json.dumps(value, default=str)}"


def _numbers(figures: Figures) -> list[tuple[str, str]]:
    job, first, sweep = figures.job, figures.first_byte, figures.sweep
    numbers: list[tuple[str, str]] = []
    if job:
        whole = job.seconds or 1.0
        numbers += [
            ("Whole job", rate(job.bytes / whole)),
            ("Records", f"{job.records / whole:,.0f}/s"),
            ("Trainer stalled", percent(job.stalled)),
            ("First batch", seconds(job.first_batch_seconds)),
        ]
    if first:
        numbers.append(("First byte, p50", seconds(first.p50)))
    if sweep and sweep.connection_bytes_per_second is not None:
        numbers.append(("One connection", rate(sweep.connection_bytes_per_second)))
    if sweep and sweep.cells:
        numbers.append(("Best of the sweep", rate(max(c.bytes_per_second for c in sweep.cells))))
    if figures.listing:
        numbers.append(("Dataset", size(figures.listing.bytes)))
    return numbers


def _rows_of_waits(job: Job) -> list[BarRow]:
    whole, longest = sum(job.waits.values()) or 1.0, longest_stage(job.waits)
    return [
        BarRow(
            name=stage,
            text=percent(wait / whole),
            part=wait / whole,
            detail=f"{seconds(wait)}, {TABLE[stage].awaited if stage in TABLE else stage}",
            is_most=stage == longest != "client" and wait >= LEAST * whole,
        )
        for stage, wait in on_path(job.waits).items()
        if wait > 0
    ]


def _ceilings(verdict: Verdict) -> list[BarRow]:
    top = _top(verdict)
    return [
        BarRow(
            name=one.resource,
            text=rate(one.bytes_per_second),
            part=min(one.bytes_per_second / top, 1.0),
            detail=one.why,
            is_most=one.resource == verdict.bottleneck,
            is_cut=one.bytes_per_second > top,
        )
        for one in verdict.ceilings
    ]


def _lines(verdict: Verdict) -> list[tuple[str, float]]:
    advice, top = advice_of(verdict), _top(verdict)
    lines = [(advice.now, verdict.bytes_per_second / top)]
    if advice.then and (then := verdict.predicted_bytes_per_second):
        lines.append((f"predicted {advice.then}", then / top))
    return lines


def _top(verdict: Verdict) -> float:
    """Return the rate at the right end of the ceilings."""
    most = max((one.bytes_per_second for one in verdict.ceilings), default=0.0)
    near = max(verdict.bytes_per_second, verdict.predicted_bytes_per_second or 0.0)
    # A ceiling far beyond would press all others to the left end; it is shown as cut.
    return min(max(most, near), BEYOND * near) or 1.0


def _histogram(first: FirstByte) -> HistogramChart:
    return histogram_of(first.seconds, {"p50": first.p50, "p99": first.p99, "p99.9": first.p999})


def _job(job: Job) -> list[tuple[str, str]]:
    rows = [
        ("Batches", f"{job.batches:,} in {seconds(job.seconds)}"),
        ("Ended by", ENDS[job.ended]),
        ("Requests", f"{job.requests:,}"),
        ("Retried, hedged", f"{job.retries:,}, {job.hedges:,}"),
        ("Told to slow down", f"{job.throttled:,}"),
    ]
    if job.bytes:
        rows.append(("Bytes read over used", f"{job.bytes_read / job.bytes:.2f}"))
    if job.concurrency is not None:
        reason = longest_reason(job)
        reason = f" ({reason})" if reason else ""
        rows.append(("Limit of requests at a time", f"{job.concurrency:,}{reason}"))
    if job.loop_busy is not None:
        rows.append(("Event loop", f"{percent(job.loop_busy)} of a core"))
    if job.core_seconds is not None:
        waited = seconds(job.core_wait_seconds or 0.0)
        rows.append(("Cores", f"used for {seconds(job.core_seconds)}, waited for {waited}"))
    if job.step_seconds is not None:
        rows.append(("Simulated step", seconds(job.step_seconds)))
    return rows


def _settings(target: Target, listing: Listing | None) -> list[tuple[str, str]]:
    rows = [(name, setting(name, value)) for name, value in target.settings.items()]
    if target.simulation:
        rows.insert(0, ("simulation", target.simulation))
    if listing:
        rows.insert(0, ("shards", f"{listing.shards:,}, listed in {seconds(listing.seconds)}"))
    return rows


def _steps(processing: Processing) -> list[BarRow]:
    stages = {name: getattr(processing, name) for name in STEPS}
    there = {name: stage for name, stage in stages.items() if stage}
    top = max(stage.bytes_per_second for stage in there.values()) or 1.0
    slowest = min(there, key=lambda name: there[name].bytes_per_second)
    return [
        BarRow(
            name=name,
            text=rate(stage.bytes_per_second),
            part=stage.bytes_per_second / top,
            detail=f"{stage.records_per_second:,.0f} records/s",
            is_most=name == slowest,
        )
        for name, stage in there.items()
    ]


def _sample(processing: Processing) -> str:
    frames = f"{processing.records:,} records, {size(processing.bytes)} of frames"
    if processing.stored_bytes == processing.bytes:
        return frames
    return f"{frames}, {size(processing.stored_bytes)} as they are stored"


def _costs(costs: Costs) -> list[tuple[str, str]]:
    rows = [("This benchmark", money(costs.spent, costs.currency))]
    if costs.epoch is not None:
        rows.append(("One epoch", money(costs.epoch, costs.currency)))
    if costs.epoch_requests is not None:
        rows.append(("of that, requests", money(costs.epoch_requests, costs.currency)))
    return rows


def spent_of(spent: Limits, limits: Limits) -> list[BarRow]:
    """Return the parts of a budget that were spent."""
    return [
        _row_of_budget("seconds", spent.seconds, limits.seconds, lambda count: f"{count:,.0f}"),
        _row_of_budget("bytes", spent.bytes, limits.bytes, size),
        _row_of_budget("requests", spent.requests, limits.requests, lambda count: f"{count:,}"),
    ]


def _row_of_budget(name: str, some: float, limit: float, text: Callable[[float], str]) -> BarRow:
    # The time may end a bit after its limit.
    part = min(max(some / limit, 0.0), 1.0) if limit > 0 else 0.0
    return BarRow(name, percent(part), part, f"{text(some)} of {text(limit)}")


def _machine(figures: Figures) -> list[tuple[str, str]]:
    machine = figures.machine
    slow = "" if machine.kernel == "native" else " (slow: build the one in C)"
    return [
        ("CPU", f"{machine.cpu}, {quantity(machine.cores, 'core', 'cores')}"),
        ("Memory", memory(machine.memory_bytes)),
        ("System", machine.system),
        ("Python", machine.python),
        ("streamrec", f"{machine.streamrec}, kernel {machine.kernel}{slow}"),
    ]


MOST = 120
"""The most intervals that are shown."""
LEVELS = 9
"""The shades of a heat map."""

# -- the sweep -------------------------------------------------------------------------------------


def grid_of(sweep: Sweep) -> Grid:
    """Return the table of a sweep."""
    best = max((cell.bytes_per_second for cell in sweep.cells), default=0.0)
    squares = {
        place_of(cell): Square(
            text=_megabytes(cell.bytes_per_second),
            shade=_shade(cell.bytes_per_second, best),
            detail=_detail(cell),
            is_plateau=index == sweep.plateau,
        )
        for index, cell in enumerate(sweep.cells)
    }
    return arrange(squares)


def place_of(cell: Cell) -> Place:
    """Return where a cell stands."""
    return cell.range_bytes, cell.concurrency


def _megabytes(bytes_per_second: float) -> str:
    amount = bytes_per_second / 1e6
    return f"{amount:,.0f}" if amount >= 10 else f"{amount:.1f}"


def _shade(bytes_per_second: float, best: float) -> str:
    return f"h{min(int(LEVELS * bytes_per_second / best), LEVELS - 1) if best > 0 else 0}"


def _detail(cell: Cell) -> str:
    at_a_time = quantity(cell.concurrency, "request", "requests")
    parts = [
        f"{at_a_time} of {size_of_range(cell.range_bytes)} at a time",
        rate(cell.bytes_per_second),
        f"{quantity(cell.requests, 'request', 'requests')} in {cell.seconds:.1f} s",
        f"event loop {percent(cell.loop_busy)} of a core",
    ]
    throttled = [f"{cell.throttled:,} told to slow down"] if cell.throttled else []
    return ", ".join(parts + throttled)


# -- the job over its time -------------------------------------------------------------------------


def lines_of(job: Job) -> list[Line]:
    """Return the lines of a job that was sampled."""
    if not job.samples or job.seconds <= 0:
        return []
    groups = _groups(job.samples, job.seconds)
    lines = [
        _line("Bytes", groups, job, [_per_second(g, "bytes") for g in groups], rate, job.bytes),
        _line(
            "Records",
            groups,
            job,
            [_per_second(g, "records") for g in groups],
            _records,
            job.records,
        ),
    ]
    under_way = [_under_way(group) for group in groups]
    if any(value is not None for value in under_way):
        some = [value for value in under_way if value is not None]
        mean = sum(some) / len(some)
        lines.append(
            _line("Requests under way", groups, job, under_way, _requests, mean * job.seconds)
        )
    return lines


def _line(
    title: str,
    groups: Sequence[Sequence[Sample]],
    job: Job,
    values: list[float | None],
    text: Callable[[float], str],
    total: float,
) -> Line:
    width = job.seconds / len(groups)
    texts = [
        f"{'nothing' if value is None else text(value)}, until {seconds(width * (index + 1))}"
        for index, value in enumerate(values)
    ]
    return Line(
        title=title,
        values=values,
        texts=texts,
        summary=text(total / job.seconds),
        text=text,
        end=seconds(job.seconds),
    )


def _groups(samples: Sequence[Sample], whole: float) -> list[list[Sample]]:
    """Return the samples by equal intervals of the whole time."""
    # Samples come at uneven times, and a chart has even ones.
    groups: list[list[Sample]] = [[] for _ in range(min(len(samples), MOST))]
    for sample in samples:
        # By its middle, because a sample may lie across two intervals.
        middle = (sample.at - sample.seconds / 2) / whole
        groups[min(max(int(len(groups) * middle), 0), len(groups) - 1)].append(sample)
    return groups


def _per_second(group: Sequence[Sample], name: str) -> float | None:
    whole = sum(sample.seconds for sample in group)
    return sum(getattr(sample, name) for sample in group) / whole if whole > 0 else None


def _under_way(group: Sequence[Sample]) -> float | None:
    some = [sample.in_flight for sample in group if sample.in_flight is not None]
    return sum(some) / len(some) if some else None


def _records(count: float) -> str:
    return f"{count:,.0f} records/s"


def _requests(count: float) -> str:
    return f"{count:,.0f} requests"
