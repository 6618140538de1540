"""Runs the tests nearest to a change, for a minute at most.

::

    python -m tests.fast                  # of what differs from the last commit, or is in it
    python -m tests.fast feeder/client    # of a room of the package

The nearest tests come first, and those for which the minute is too short are skipped.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

from tests.nearest_tests import ROOT, nearest_tests

if TYPE_CHECKING:
    from collections.abc import Iterable

SECONDS = 50.0
"""Beyond them no test begins; the last ones, and the end of the workers, take some seconds more."""
MOST_FILES = 24
"""Files of tests for a change: pytest imports each before the first test begins."""
UNTIL = "STREAMREC_TEST_UNTIL"


def changed_files() -> list[str]:
    """Return the files that differ from the last commit or, if none does, that are in it."""
    listed = _git("status", "--porcelain", "--no-renames", "--untracked-files=all").splitlines()
    names = [line[3:] for line in listed] or _git("diff", "--name-only", "HEAD~1").splitlines()
    return [name for name in names if (ROOT / name).is_file()]


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


def tests_of_changes(names: Iterable[str]) -> list[str]:
    """Return the files of tests for changed files: first themselves, then the nearest of each."""
    names = [name for name in names if name.endswith(".py")]
    themselves = [name for name in names if name.startswith("tests/") and "/test_" in name]
    near = [nearest_tests(ROOT / name) for name in names if name.startswith("streamrec/")]
    in_turn = itertools.chain.from_iterable(itertools.zip_longest(*near))
    return [*dict.fromkeys([*themselves, *filter(None, in_turn)])][:MOST_FILES]


def tests_of_room(room: str) -> list[str]:
    """Return the folder or file of tests that mirrors a room or a file of the package.

    Raises:
        click.BadParameter: There is none.
    """
    place = Path("tests", room.removeprefix("streamrec/").removeprefix("tests/"))
    for path in (place, place.with_name(f"test_{place.name}")):
        if (ROOT / path).exists():
            return [str(path)]
    rooms = sorted(path.parent.name for path in (ROOT / "streamrec").glob("*/__init__.py"))
    raise click.BadParameter(f"there are no tests of {room}; the rooms are {', '.join(rooms)}")


def pytest_runtest_setup() -> None:
    """Skip what begins after the minute: this module is a plugin of the run that it starts."""
    if time.time() > float(os.environ.get(UNTIL, "inf")):
        pytest.skip("the minute is over")


@click.command(help=__doc__.replace("::\n", "\b"))
@click.argument("rooms", nargs=-1)
def main(rooms: tuple[str, ...]) -> None:
    """Run the tests of some rooms, or of what changed."""
    files = [file for room in rooms for file in tests_of_room(room)]
    files = files or tests_of_changes(changed_files())
    if not files:
        click.echo("no file of the package or the tests has changed; name a room to test it")
        return
    command = ["-m", "pytest", "-q", "-n", "auto", "--dist", "loadgroup", "-p", "tests.fast"]
    environment = os.environ | {"CI": "true", UNTIL: str(time.time() + SECONDS)}
    done = subprocess.run(
        [sys.executable, *command, *files], cwd=ROOT, env=environment, check=False
    )
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
