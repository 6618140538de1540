"""The amounts that a job got over its time, in equal intervals. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from streamrec.report.words import rate, seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from streamrec.measure.figures import Job, Sample

MOST = 120
"""The most intervals that are shown."""


@dataclass(frozen=True)
class Series:
    """A line over a job's time."""

    title: str
    mean: str
    """Empty where nothing was measured."""
    values: list[float | None]
    texts: list[str]
    """The values as text, and when they were."""
    end: str
    """The end of the time."""
    text: Callable[[float], str]
    """Gives a value as text."""


def series_of(job: Job) -> list[Series]:
    """Return the lines of a job that was sampled."""
    if not job.samples or job.seconds <= 0:
        return []
    groups = _groups(job.samples, job.seconds)
    lines = [
        _series("Bytes", groups, job, [_per_second(g, "bytes") for g in groups], rate, job.bytes),
        _series(
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
            _series("Requests under way", groups, job, under_way, _requests, mean * job.seconds)
        )
    return lines


def _series(
    title: str,
    groups: Sequence[Sequence[Sample]],
    job: Job,
    values: list[float | None],
    text: Callable[[float], str],
    total: float,
) -> Series:
    width = job.seconds / len(groups)
    texts = [
        f"{'nothing' if value is None else text(value)}, until {seconds(width * (index + 1))}"
        for index, value in enumerate(values)
    ]
    return Series(title, text(total / job.seconds), values, texts, seconds(job.seconds), text)


def _groups(samples: Sequence[Sample], whole: float) -> list[list[Sample]]:
    """Return the samples by equal intervals of the whole time."""
    groups: list[list[Sample]] = [[] for _ in range(min(len(samples), MOST))]
    for sample in samples:
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
