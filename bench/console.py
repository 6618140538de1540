"""What the benchmarks' commands have in common."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from bench.measure import Case, Judge, Result, measure

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["complain", "default_data", "run", "wanted"]


def default_data() -> Path:
    """Where datasets are kept between runs."""
    return Path(tempfile.gettempdir(), f"streamrec-bench-{os.getuid()}")


def wanted(case: Case, only: Sequence[str]) -> bool:
    """Whether the command line asks for the case."""
    return not only or any(part in case.title for part in only)


def run(cases: Sequence[Case], judge: Judge, repeat: int) -> list[Result]:
    """Measure, and say on a terminal how far it is."""
    console = Console(stderr=True)
    with console.status("") as status:
        done = 0

        def progress(name: str) -> None:
            nonlocal done
            done += 1
            status.update(f"{done} of {len(cases) * repeat}: {name}")

        return measure(cases, judge, repeat, progress)


def complain(results: Sequence[Result], console: Console) -> None:
    """Print what went wrong: of a traceback its last line. The JSON has the rest."""
    for result in results:
        for failure in result.failures:
            first, *more = failure.splitlines()
            line = f"{first.partition(':')[0]}: {more[-1]}" if more else first
            console.print(f"{result.case.title}: {line}", markup=False)
