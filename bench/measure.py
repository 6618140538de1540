"""Measures cases side by side: each in a fresh process, in rounds, so that drift hits all alike."""

from __future__ import annotations

import compileall
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from random import Random
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from bench.machine import ROOT
from bench.traceback_paths import without_folders

if TYPE_CHECKING:
    from bench.datasets import Dataset

READING_TIMEOUT = 900.0
"""Seconds that one reading may take; the slowest case takes a few minutes."""
TAIL = 1500
"""Number of characters of a reader's standard error that a failure shows."""


class Failure(Exception):
    """A reader failed, or did not read exactly the dataset."""


class Comparison(NamedTuple):
    """The cases, by title, whose best rate in the same run a case's rate is compared with."""

    label: str
    cases: tuple[str, ...]


class Counters(Protocol):
    """The counters of a store."""

    def clear(self) -> None:
        """Set the counters to zero."""
        ...

    def statistics(self) -> Mapping[str, Any]:
        """Return the counters as plain values."""
        ...


Judge = Callable[["Case", Mapping[str, Any]], dict[str, float]]

ServiceInfo = tuple[Mapping[str, Any], Mapping[str, int]]
"""Arguments that a service adds to the reader's, and the ids of its processes by name."""


@contextlib.contextmanager
def no_service() -> Iterator[ServiceInfo]:
    """Start nothing: the reader needs no service."""
    yield {}, {}


@dataclass(frozen=True)
class Case:
    """A row of a table: a reader and its arguments.

    Args:
        group: Heading of the table.
        name: Name of the row, unique in its group.
        module: Module of the reader, run with ``python -m``.
        arguments: Arguments of the reader, plain values.
        python: Interpreter that runs the reader.
        environment: Variables that the reader has besides those of this process.
        service: Service that starts before each measurement, and ends after it.
        companions: Ids of the other processes that work for the reader, by name.
        counters: Counters of one measurement, which become ``store`` of the report.
        comparisons: Comparisons that the table shows.
    """

    group: str
    name: str
    module: str
    arguments: Mapping[str, Any]
    python: str = sys.executable
    environment: Mapping[str, str] = field(default_factory=dict)
    service: Callable[[], AbstractContextManager[ServiceInfo]] = no_service
    companions: Mapping[str, int] = field(default_factory=dict)
    counters: Counters | None = None
    comparisons: tuple[Comparison, ...] = ()

    @property
    def title(self) -> str:
        """Return the group and the name, which no other case has."""
        return f"{self.group}: {self.name}"


@dataclass
class Result:
    """The measurements and failures of one case."""

    case: Case
    measurements: list[dict[str, float]] = field(default_factory=list)
    """A mapping from quantity to value for each round."""
    failures: list[str] = field(default_factory=list)

    def values(self, quantity: str) -> list[float]:
        """Return the values of all rounds, none where the case has no such quantity."""
        return [found[quantity] for found in self.measurements if quantity in found]

    def median(self, quantity: str) -> float | None:
        """Return the median of all rounds, ``None`` where the case has no such quantity."""
        values = self.values(quantity)
        return median(values) if values else None

    def summary(self) -> dict[str, dict[str, float]]:
        """Return the median, the least and the largest value of each quantity."""
        quantities = self.measurements[0] if self.measurements else {}
        summaries = {}
        for name in quantities:
            values = self.values(name)
            summaries[name] = {"median": median(values), "min": min(values), "max": max(values)}
        return summaries


def measure(
    cases: Sequence[Case],
    judge: Judge,
    rounds: int,
    progress: Callable[[str], None],
) -> list[Result]:
    """Measure every case once a round, in another order each time.

    Args:
        cases: Cases in the order of the table.
        judge: Makes quantities from a case's report, or raises :class:`Failure`.
        rounds: Number of rounds.
        progress: Function called with a case's title before each measurement.
    """
    # An installer does this, too. With PYTHONDONTWRITEBYTECODE each process would compile it anew.
    compileall.compile_dir(ROOT / "streamrec", quiet=2)
    results = [Result(case) for case in cases]
    for number in range(rounds):
        for result in Random(number).sample(results, len(results)):
            progress(result.case.title)
            try:
                result.measurements.append(judge(result.case, _run(result.case)))
            except Failure as failure:
                result.failures.append(str(failure))
    return results


def quantities(report: Mapping[str, Any], dataset: Dataset) -> dict[str, float]:
    """Check that the reader has read exactly the dataset, and return its report as quantities.

    Args:
        report: Report that :class:`bench.stopwatch.Stopwatch` prints.
        dataset: Dataset that the reader was given.

    Raises:
        Failure: It has read something else.
    """
    _check(report, dataset)
    seconds, first = report["seconds"], report["first_batch_seconds"]
    found = {
        "seconds": seconds,
        "megabytes_per_second": dataset.nbytes / 1e6 / seconds,
        "client_idle_megabytes": report["idle_megabytes"],
    }
    if first is not None:
        found["first_batch_seconds"] = first
        found["longest_wait_seconds"] = report["longest_wait_seconds"]
        found["megabytes_per_second_after_first_batch"] = (
            dataset.nbytes / 1e6 * (1 - report["first_batch_share"]) / (seconds - first)
        )
    if report["nbytes"] is None:
        found["records_per_second"] = dataset.records / seconds
    for name, cpu in report["cpu_seconds"].items():
        found[f"{name}_cpu_seconds_per_gigabyte"] = cpu / (dataset.nbytes / 1e9)
    for name, peak in report["peak_megabytes"].items():
        found[f"{name}_peak_megabytes"] = peak
    return found


def _check(report: Mapping[str, Any], dataset: Dataset) -> None:
    names = ["records", "label_sum"] if report["nbytes"] is None else ["nbytes"]
    came, there = ({name: facts[name] for name in names} for facts in (report, dataset.facts()))
    if came != there:
        raise Failure(f"read {came}, where there is {there}")


def _run(case: Case) -> dict[str, Any]:
    with case.service() as (more, helpers):
        arguments = {**case.arguments, **more, "companions": {**case.companions, **helpers}}
        command = [case.python, "-m", case.module, json.dumps(arguments)]
        environment = {
            **os.environ,
            **case.environment,
            "AWS_EC2_METADATA_DISABLED": "true",
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }
        if case.counters is not None:
            case.counters.clear()
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                env=environment,
                capture_output=True,
                text=True,
                timeout=READING_TIMEOUT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise Failure(f"not done after {READING_TIMEOUT:g} s") from None
    if done.returncode:
        said = without_folders(done.stderr, ROOT)
        raise Failure(f"exit code {done.returncode}: {said[-TAIL:].strip()}")
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if case.counters is not None:
        report["store"] = case.counters.statistics()
    return report


def ratio(
    result: Result,
    comparison: Comparison,
    results: Sequence[Result],
    rate: str = "megabytes_per_second",
) -> float | None:
    """Return the case's median rate over the best median rate of the compared cases.

    Args:
        result: What was measured of the case.
        comparison: The compared cases.
        results: What was measured of all cases.
        rate: The quantity that is the rate.
    """
    rates = [one.median(rate) for one in results if one.case.title in comparison.cases]
    best = max((found for found in rates if found is not None), default=None)
    own = result.median(rate)
    return own / best if own is not None and best is not None else None
