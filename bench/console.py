"""Options and output that the benchmarks' commands share."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from bench.measure import Case, Judge, Result, measure
from bench.progress import say

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

F = TypeVar("F", bound="Callable[..., Any]")


def default_data() -> Path:
    """Return the directory that keeps the datasets from run to run."""
    return Path(tempfile.gettempdir(), f"streamrec-bench-{os.getuid()}")


data_option = click.option(
    "--data",
    type=click.Path(path_type=Path),
    default=default_data,
    help="Directory where the datasets are kept.",
)
output_option = click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="Directory that the results are written to.",
)
only_option = click.option(
    "--only",
    multiple=True,
    help="Text in the titles of the cases to measure; all cases by default.",
)


def repeat_option(
    default: int, text: str = "Number of rounds; each case runs once a round."
) -> Callable[[F], F]:
    """Return the option for the number of rounds, with a help text."""
    return click.option("--repeat", default=default, show_default=True, help=text)


def case_options(rounds: int) -> Callable[[F], F]:
    """Return the options for measuring cases: the output, the rounds, the data and the cases."""

    def add(command: F) -> F:
        for option in (only_option, data_option, repeat_option(rounds), output_option):
            command = option(command)
        return command

    return add


def selected(case: Case, only: Sequence[str]) -> bool:
    """Return whether ``--only`` selects the case; without the option all cases are selected."""
    return not only or any(part in case.title for part in only)


def run(cases: Sequence[Case], judge: Judge, repeat: int) -> list[Result]:
    """Measure the cases, and say which one is measured."""
    done = 0

    def progress(name: str) -> None:
        nonlocal done
        done += 1
        say(f"{done} of {len(cases) * repeat}: {name}")

    return measure(cases, judge, repeat, progress)


def print_failures(results: Sequence[Result]) -> None:
    """Print each failure on a line, of a traceback its last line; the JSON has the whole text."""
    for result in results:
        for failure in result.failures:
            first, *more = failure.splitlines()
            line = f"{first.partition(':')[0]}: {more[-1]}" if more else first
            click.echo(f"{result.case.title}: {line}")
