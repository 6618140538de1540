"""The cases of benchmarks: programs that are measured in rounds, each time in a fresh process."""

from __future__ import annotations

import compileall
import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, NamedTuple, Protocol

import click

from bench.machine import ROOT

BEGAN = time.monotonic()
READING_TIMEOUT = 900.0
"""Seconds that one reading may take; the slowest case takes a few minutes."""
TAIL = 1500
"""Number of characters of a reader's standard error that a failure shows."""
MISSING = "-"
RATE = "megabytes_per_second"


def say(text: str) -> None:
    """Print a line on standard error, with the seconds since the benchmark began."""
    click.echo(f"{time.monotonic() - BEGAN:7.1f} s  {text}", err=True)


class Failure(Exception):
    """A reader failed, or did not read exactly the dataset."""


class Comparison(NamedTuple):
    """The cases, by title, whose best rate in the same run a case's rate is compared with."""

    label: str
    cases: tuple[str, ...]


class Counters(Protocol):
    """The counters of a store."""

    def clear(self) -> None: ...

    def statistics(self) -> Mapping[str, Any]: ...


Judge = Callable[["Case", Mapping[str, Any]], dict[str, float]]
"""Makes figures of a case's report, or raises :class:`Failure`."""
ServiceInfo = tuple[Mapping[str, Any], Mapping[str, int]]
"""Arguments that a service adds to the reader's, and the ids of its processes by name."""


@contextlib.contextmanager
def no_service() -> Iterator[ServiceInfo]:
    yield {}, {}


@dataclass(frozen=True)
class Case:
    """A row of a table: a program and its arguments.

    Args:
        group: Heading of the table.
        name: Name of the row, unique in its group.
        program: Module below ``bench``, and the name of a program in it.
        arguments: Arguments of the program, plain values.
        python: Interpreter that runs it.
        environment: Variables that it has besides those of this process.
        service: Service that starts before each measurement, and ends after it.
        companions: Ids of the other processes that work for the program, by name.
        counters: Counters of one measurement, which become ``store`` of the report.
        comparisons: Comparisons that the table shows.
    """

    group: str
    name: str
    program: str
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

    def command(self, **more: Any) -> list[str]:
        """Return the command line; ``more`` are arguments besides those of the case."""
        program = f"bench.{self.program}".split()
        return [self.python, "-m", *program, json.dumps({**self.arguments, **more})]


@dataclass
class Result:
    """The measurements, a mapping of figures for each round, and the failures of one case."""

    case: Case
    measurements: list[dict[str, float]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def values(self, figure: str) -> list[float]:
        """Return the values of all rounds, none where the case has no such figure."""
        return [found[figure] for found in self.measurements if figure in found]

    def median(self, figure: str) -> float | None:
        values = self.values(figure)
        return median(values) if values else None

    def summary(self) -> dict[str, dict[str, float]]:
        """Return the median, the least and the largest value of each figure."""
        summaries = {}
        for name in self.measurements[0] if self.measurements else {}:
            values = self.values(name)
            summaries[name] = {"median": median(values), "min": min(values), "max": max(values)}
        return summaries


def measure(
    cases: Sequence[Case], judge: Judge, rounds: int, progress: Callable[[str], None] = say
) -> list[Result]:
    """Measure every case once a round, in another order each time."""
    # An installer does this, too. With PYTHONDONTWRITEBYTECODE each process would compile it anew.
    compileall.compile_dir(ROOT / "streamrec", quiet=2)
    results = [Result(case) for case in cases]
    for number in range(rounds):
        for place, result in enumerate(Random(number).sample(results, len(results)), 1):
            done = number * len(cases) + place
            progress(f"{done} of {len(cases) * rounds}: {result.case.title}")
            try:
                result.measurements.append(judge(result.case, run_case(result.case)))
            except Failure as failure:
                result.failures.append(str(failure))
    return results


def run_case(case: Case) -> dict[str, Any]:
    """Run a case's program, and return what it reports."""
    with case.service() as (more, helpers):
        command = case.command(**more, companions={**case.companions, **helpers})
        quiet = {"AWS_EC2_METADATA_DISABLED": "true", "TF_CPP_MIN_LOG_LEVEL": "3"}
        environment = {**os.environ, **case.environment, **quiet}
        how: dict[str, Any] = {"cwd": ROOT, "env": environment, "timeout": READING_TIMEOUT}
        if case.counters is not None:
            case.counters.clear()
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, **how)
        except subprocess.TimeoutExpired:
            raise Failure(f"not done after {READING_TIMEOUT:g} s") from None
    if done.returncode:
        said = without_folders(done.stderr, ROOT)
        raise Failure(f"exit code {done.returncode}: {said[-TAIL:].strip()}")
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if case.counters is not None:
        report["store"] = case.counters.statistics()
    return report


_LIBRARIES = r"(?:(?:site|dist)-packages|lib(?:64)?/python[23][\d.]*t?|bin)/"
_FOLDER = re.compile(rf'(?:(?<=")/(?:[^"\n]*/)?|/(?:[^\s"\':]*/)?){_LIBRARIES}')
"""The folders before the files of a package, of the standard library, or of a program. Paths in the
quotes of a traceback may hold spaces."""


def without_folders(text: str, checkout: Path) -> str:
    """Return a reader's standard error with paths as they would be on any machine.

    Args:
        text: Text such as a traceback, of any interpreter.
        checkout: Directory of the repository. Paths in it become relative to it, those of packages
            and of the standard library relative to their folder; of programs the name remains.
    """
    text = _FOLDER.sub("", text)
    for folder in {checkout, checkout.resolve()}:
        text = text.replace(f"{folder}/", "")
    return text


def ratio(
    result: Result, comparison: Comparison, results: Sequence[Result], rate: str = RATE
) -> float | None:
    """Return the case's median rate over the best median rate of the compared cases."""
    rates = [one.median(rate) for one in results if one.case.title in comparison.cases]
    best = max((found for found in rates if found is not None), default=None)
    own = result.median(rate)
    return own / best if own is not None and best is not None else None


def times(results: Sequence[Result], ours: str, theirs: str, rate: str = RATE) -> float | None:
    """Return the ratio of two cases of these titles, if both were measured."""
    found = next((one for one in results if one.case.title == ours and one.measurements), None)
    return None if found is None else ratio(found, Comparison("", (theirs,)), results, rate)


def ratios(result: Result, results: Sequence[Result]) -> str:
    """Return a cell with the case's ratio to each of the cases that it is compared with."""
    found = {one.label: ratio(result, one, results) for one in result.case.comparisons}
    shown = [f"{value:.2f} {label}" for label, value in found.items() if value]
    return ", ".join(shown) or MISSING
