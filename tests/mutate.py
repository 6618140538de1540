"""Changes the source a little, many times, and counts how often a test notices.

::

    python -m tests.mutate --count 300 --seed 1

Each mutant is one change of one expression: ``<`` for ``<=``, ``and`` for ``or``, another number,
a call left out; ``tests/mutants.py`` makes them. The tests that are nearest to its file run first,
and the first that fails ends them. A mutant that none of them notices within its time is printed:
either a test is missing, or the change means nothing. It takes some seconds a mutant on one core,
and works on a copy of the tree. A run of hours writes what it found to ``--results``, a line a
mutant; with the same file it goes on where it was ended.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

# What the tests import, once for all mutants.
import aiohttp  # noqa: F401
import click
import google.protobuf.message  # noqa: F401
import hypothesis.extra.numpy  # noqa: F401
import pydantic  # noqa: F401
import pytest

from tests.mutants import ROOT, judged, sample
from tests.nearest_tests import nearest_tests

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.mutants import Mutant

WHOLE = ["tests/streams/test_stream.py", "tests/streams/test_stream_state.py"]
"""What notices much that no test of its room does."""
AT_ONCE = 8
"""Files of tests that one process collects."""
HANG = 20
"""Seconds after which a test that does not end has noticed the change."""

SUITE = 3
"""The part of a mutant's time that one process may take: the nearest tests may finish."""
LONGEST = 600
"""Seconds after which tests are ended that wait for ever."""
PASSED = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
QUIETLY = ("-W", "ignore::pytest.PytestAssertRewriteWarning")
"""Libraries are imported before pytest could rewrite their assertions."""
FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/[^\s\[]+)", re.MULTILINE)


class Tree:
    """A copy of the tree, in which mutants are tried one after the other.

    Args:
        place: An empty directory.
        patience: Seconds of processor time after which a mutant counts as not noticed.
    """

    def __init__(self, place: str, patience: float) -> None:
        self.root = copy_of_tree(place)
        self.patience = patience
        self.broken: set[str] = set()
        """Tests that fail without any change, too, or not each time."""
        self._sound: set[str] = set()
        self._output = Path(place, "output")

    def notices(self, mutant: Mutant) -> str:
        """Return the test that fails under a mutant; empty if none does before its time is up."""
        place = self.root / mutant.path.relative_to(ROOT)
        begun = _seconds_used()
        try:
            for tests in suites_of(mutant.path):
                _replace(place, mutant.source())
                while (failed := self._failing(tests)) and failed not in self.broken:
                    _replace(place, mutant.path.read_bytes())
                    passes = self._passes_without(failed)
                    _replace(place, mutant.source())
                    if passes and self._fails_again(failed):
                        return failed
                if _seconds_used() - begun > self.patience:
                    break
        finally:
            _replace(place, mutant.path.read_bytes())
        return ""

    def _passes_without(self, test: str) -> bool:
        """Return whether a test passes without any change; else leave it out from now on."""
        if test not in self._sound:
            (self._sound if self._passes(test) else self.broken).add(test)
        return test in self._sound

    def _fails_again(self, test: str) -> bool:
        """Return whether a test fails a second time; one that a busy machine ended is left out."""
        if self._passes(test):
            self.broken.add(test)
        return test not in self.broken

    def _passes(self, test: str) -> bool:
        return self._run("-q", f"--timeout={HANG}", "--timeout-method=thread", test) in PASSED

    def _failing(self, tests: list[str]) -> str:
        """Return the first test that fails or hangs."""
        options = ["-v", "-x", f"--timeout={HANG}", "--timeout-method=thread"]
        options += [f"--deselect={test}" for test in self.broken]
        most = max(2 * HANG, math.ceil(SUITE * self.patience))  # a test that hangs is told as such
        code = self._run(*options, *tests, most=most)
        if code in (*PASSED, -signal.SIGKILL):  # or its time is up
            return ""
        return failed_test(self._output.read_text(errors="replace"), tests)

    def _run(self, *arguments: str, most: int = resource.RLIM_INFINITY) -> int:
        """Run pytest in a process that has the libraries already, and return its exit code."""
        self._output.write_bytes(b"")
        process = os.fork()
        if not process:
            try:
                self._run_here(arguments, most)
            finally:  # also of what a test forks
                os._exit(pytest.ExitCode.INTERNAL_ERROR)
        ended = os.pidfd_open(process)
        try:
            select.select([ended], [], [], LONGEST)
        finally:
            os.close(ended)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process, signal.SIGKILL)  # with the processes that tests have left
            status = os.waitpid(process, 0)[1]
        return os.waitstatus_to_exitcode(status)

    def _run_here(self, arguments: tuple[str, ...], most: int) -> NoReturn:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (most, most))
        output = os.open(self._output, os.O_WRONLY)
        for descriptor in (1, 2):
            os.dup2(output, descriptor)
        os.chdir(self.root)
        os.environ.update(PYTHONPATH=str(self.root), CI="true")
        sys.path.insert(0, str(self.root))
        for name in [*sys.modules]:
            if name.partition(".")[0] in ("streamrec", "tests"):
                del sys.modules[name]
        code = pytest.main(["--tb=no", "-p", "no:cacheprovider", *QUIETLY, *arguments])
        sys.stdout.flush()
        os._exit(code)


def copy_of_tree(place: str) -> Path:
    ignored = shutil.ignore_patterns(".git", "*_cache", "__pycache__", "build", "*.egg-info")
    return Path(shutil.copytree(ROOT, Path(place, "tree"), ignore=ignored))


def suites_of(path: Path) -> Iterator[list[str]]:
    """Yield the nearest file of tests, a few more, those of whole streams, and then the rest."""
    tests = nearest_tests(path)
    rest = (tests[begin : begin + AT_ONCE] for begin in range(AT_ONCE, len(tests), AT_ONCE))
    yield from filter(None, (tests[:1], tests[1:AT_ONCE], WHOLE, *rest))


def failed_test(output: str, tests: list[str]) -> str:
    """Return the test whose failure ended pytest, without its parameters.

    A test that hung has no line in the summary; it is the last that began.
    """
    failed = FAILED.findall(output)
    begun = re.findall(r"^(tests/[^\s\[]+::[^\s\[]+)", output, re.MULTILINE)
    return failed[0] if failed else begun[-1] if begun else tests[0]


def _replace(place: Path, source: bytes) -> None:
    """Write a file, and forget what was compiled of it, which may be as old and as long."""
    place.write_bytes(source)
    for compiled in (place.parent / "__pycache__").glob(f"{place.stem}.*.pyc"):
        compiled.unlink()


def _seconds_used() -> float:
    """Return the processor time of all tests so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@click.command()
@click.option("--count", default=300, show_default=True, help="Mutants to try.")
@click.option("--seed", default=1, show_default=True)
@click.option("--room", default=None, help="Only files of this room.")
@click.option("--patience", default=10.0, show_default=True, help="Processor seconds for a mutant.")
@click.option(
    "--only",
    type=click.Path(path_type=Path),
    default=None,
    help="Only mutants that this file names.",
)
@click.option(
    "--results",
    type=click.Path(path_type=Path),
    default=None,
    help="Write a line for each mutant to this file; those that it names are not tried again.",
)
@click.option("--least", default=0.95, show_default=True, help="The part that must be noticed.")
def main(
    count: int,
    seed: int,
    room: str | None,
    patience: float,
    only: Path | None,
    results: Path | None,
    least: float,
) -> None:
    """Try mutants, print those that nobody noticed, and a table by room."""
    mutants = sample(count, seed, room)
    if only:
        named = {name_in(line) for line in only.read_text().splitlines() if " | " in line}
        mutants = [each for each in sample(sys.maxsize, 0, room) if each.name in named]
        gone = len(named - {each.name for each in mutants})
        click.echo(f"{gone} of {len(named)} lines are not in the source any more")
    known = judged()
    nothing = Counter(each.room for each in mutants if each.name in known)
    mutants = [each for each in mutants if each.name not in known]
    if not mutants:
        raise SystemExit("there is nothing to try")
    with tempfile.TemporaryDirectory() as place:
        noticed_by = attempt(mutants, Tree(place, patience), results)
    tried = Counter(each.room for each in noticed_by)
    noticed = Counter(each.room for each, test in noticed_by.items() if test)
    click.echo(table(tried, noticed, nothing))
    if noticed.total() < least * tried.total():
        raise SystemExit(f"fewer than {least:.0%} were noticed")


def name_in(line: str) -> str:
    """Return the name of the mutant in a line of a file, or of what this script prints."""
    path, bar, change = line.partition(" | ")
    return path.rpartition(": ")[2] + bar + change


def attempt(
    mutants: Iterable[Mutant], tree: Tree, results: Path | None = None
) -> dict[Mutant, str]:
    """Return the test that noticed each mutant; empty for none."""
    noticed_by = {}
    former = results_of(results) if results else {}
    for mutant in mutants:
        if tests := former.get(mutant.name):
            noticed_by[mutant] = tests.pop(0)
            continue
        begun = time.monotonic()
        noticed_by[mutant] = test = tree.notices(mutant)
        verdict = f"noticed by {test}" if test else "not noticed"
        click.echo(f"{verdict} ({time.monotonic() - begun:.0f} s): {mutant.name}")
        if results:
            with results.open("a") as file:
                file.write(json.dumps({"name": mutant.name, "test": test}) + "\n")
    return noticed_by


def results_of(path: Path) -> dict[str, list[str]]:
    """Return the tests by the names of the mutants of a former run; a line may hold two alike."""
    found = defaultdict[str, list[str]](list)
    for line in path.read_text().splitlines() if path.exists() else ():
        verdict = json.loads(line)
        found[verdict["name"]].append(verdict["test"])
    return found


def table(tried: Counter[str], noticed: Counter[str], nothing: Counter[str]) -> str:
    """Return what was tried and noticed in each room, and what was judged to mean nothing."""
    lines = ["\n| room | tried | noticed | means nothing |", "|---|---|---|---|"]
    lines += [
        f"| {name} | {tried[name]} | {noticed[name]} | {nothing[name]} |"
        for name in sorted(tried | nothing)
    ]
    share = noticed.total() / max(1, tried.total())
    noticed_of_all = f"{noticed.total()} ({share:.0%})"
    return "\n".join([*lines, f"| all | {tried.total()} | {noticed_of_all} | {nothing.total()} |"])


if __name__ == "__main__":
    main()
