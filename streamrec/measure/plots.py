"""The sweep of a benchmark as a table, and its job as lines over time. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamrec.report.charts import Line
from streamrec.report.tables import Square, arrange, size_of_range
from streamrec.report.words import count_of, percent, rate, seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from streamrec.measure.figures import Cell, Job, Sample, Sweep
    from streamrec.report.tables import Grid, Place

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
    at_a_time = count_of(cell.concurrency, "request", "requests")
    parts = [
        f"{at_a_time} of {size_of_range(cell.range_bytes)} at a time",
        rate(cell.bytes_per_second),
        f"{count_of(cell.requests, 'request', 'requests')} in {cell.seconds:.1f} s",
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
