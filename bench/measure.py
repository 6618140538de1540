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

__all__ = [
    "Case",
    "Comparison",
    "Failure",
    "Judge",
    "Ledger",
    "Result",
    "measure",
    "no_service",
    "quantities",
    "ratio",
]

PATIENCE = 900.0
"""Seconds for one reading; the slowest case here takes a few minutes."""
TAIL = 1500
"""Characters of a reader's standard error that a failure shows."""


class Failure(Exception):
    """A reader ended badly, or did not read what there is."""


class Comparison(NamedTuple):
    """What a case's rate is held against: the best of some cases of the same run, by title."""

    label: str
    cases: tuple[str, ...]


class Ledger(Protocol):
    """What the other side has counted."""

    def clear(self) -> None:
        """Count from now on."""
        ...

    def statistics(self) -> Mapping[str, Any]:
        """Since then; plain."""
        ...


Judge = Callable[["Case", Mapping[str, Any]], dict[str, float]]

Help = tuple[Mapping[str, Any], Mapping[str, int]]
"""What a service adds to the order, and its processes by name."""


@contextlib.contextmanager
def no_service() -> Iterator[Help]:
    """The reader needs nobody else."""
    yield {}, {}


@dataclass(frozen=True)
class Case:
    """One row.

    Args:
        group: The heading that it stands under.
        name: Unique in its group.
        module: The reader: what runs as ``python -m``.
        order: What it is to do, plain.
        python: The interpreter that runs it.
        environment: What it has besides this process's.
        service: Started anew for each measurement, before the reader.
        companions: Processes that work for it, by name: their ids.
        ledger: Cleared before the measurement, and asked after it: ``store`` of the report.
        comparisons: In the table.
    """

    group: str
    name: str
    module: str
    order: Mapping[str, Any]
    python: str = sys.executable
    environment: Mapping[str, str] = field(default_factory=dict)
    service: Callable[[], AbstractContextManager[Help]] = no_service
    companions: Mapping[str, int] = field(default_factory=dict)
    ledger: Ledger | None = None
    comparisons: tuple[Comparison, ...] = ()

    @property
    def title(self) -> str:
        """Unique."""
        return f"{self.group}: {self.name}"


@dataclass
class Result:
    """What was measured of one case."""

    case: Case
    measurements: list[dict[str, float]] = field(default_factory=list)
    """One mapping from quantity to value for each round."""
    failures: list[str] = field(default_factory=list)

    def values(self, quantity: str) -> list[float]:
        """Of all rounds; empty where the case has no such quantity."""
        return [found[quantity] for found in self.measurements if quantity in found]

    def median(self, quantity: str) -> float | None:
        """Of all rounds."""
        values = self.values(quantity)
        return median(values) if values else None

    def summary(self) -> dict[str, dict[str, float]]:
        """Median, least and largest of each quantity."""
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
        cases: In the order of the table.
        judge: Makes quantities of a case's report, or raises :class:`Failure`.
        rounds: How often.
        progress: Called with a case's title before each measurement.
    """
    # As an installer does. Else, with PYTHONDONTWRITEBYTECODE, each process compiles it anew.
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
    """A reader's report as numbers that can be compared, once it is seen to have read everything.

    Args:
        report: As :class:`bench.stopwatch.Stopwatch` prints it.
        dataset: What there was to read.

    Raises:
        Failure: It did not read just that.
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
        order = {**case.order, **more, "companions": {**case.companions, **helpers}}
        command = [case.python, "-m", case.module, json.dumps(order)]
        environment = {
            **os.environ,
            **case.environment,
            "AWS_EC2_METADATA_DISABLED": "true",
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }
        if case.ledger is not None:
            case.ledger.clear()
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                env=environment,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise Failure(f"not done after {PATIENCE:g} s") from None
    if done.returncode:
        said = without_folders(done.stderr, ROOT)
        raise Failure(f"exit code {done.returncode}: {said[-TAIL:].strip()}")
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if case.ledger is not None:
        report["store"] = case.ledger.statistics()
    return report


def ratio(result: Result, comparison: Comparison, results: Sequence[Result]) -> float | None:
    """The case's rate to the best rate of those that it is held against, medians all."""
    rate = "megabytes_per_second"
    rates = [one.median(rate) for one in results if one.case.title in comparison.cases]
    best = max((found for found in rates if found is not None), default=None)
    own = result.median(rate)
    return own / best if own is not None and best is not None else None
