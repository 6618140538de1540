"""Runs the command line, in this process and in others."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from streamrec.cli.program import run

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"
SECONDS = 60.0
"""The longest that any command may take before a test gives up on it."""


class Outcome(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def objects(self) -> list[Any]:
        """Each line of standard output as JSON."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def object(self) -> Any:
        """Standard output as one JSON document."""
        return json.loads(self.out)


def streamrec(*arguments: object) -> Outcome:
    """Run a command in this process."""
    out = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
    err = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run([str(argument) for argument in arguments])
    return Outcome(code, out.buffer.getvalue().decode(), err.getvalue())


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "streamrec", *map(str, arguments)]


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}


def in_process(*arguments: object, **options: Any) -> Outcome:
    """Run a command in a process of its own, to its end."""
    settings: dict[str, Any] = {"env": environment(), **options}
    done = subprocess.run(
        command(*arguments), capture_output=True, timeout=SECONDS, check=False, **settings
    )
    return Outcome(done.returncode, done.stdout.decode(), done.stderr.decode())


@contextlib.contextmanager
def started(*arguments: object, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Start a command in a new process, and kill it after the ``with`` block if it still runs."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    settings: dict[str, Any] = {**pipes, "env": environment(), **options}
    with subprocess.Popen(command(*arguments), **settings) as process:
        try:
            yield process
        finally:
            process.kill()  # first: the end of its own block waits for the process


def storage_options(options: Mapping[str, object]) -> list[str]:
    """Options of a filesystem as arguments."""
    return [f"--storage-option={name}={value}" for name, value in options.items()]


def assert_one_sentence(outcome: Outcome, code: int, *words: str) -> None:
    """Check that the error is one line with these words on standard error, without a traceback."""
    assert outcome.code == code, outcome
    (line,) = outcome.err.splitlines()
    assert line.startswith("streamrec: error: ")
    assert "Traceback" not in line
    assert len(line) > 40
    for word in words:
        assert word in line


def verbs_of(group: click.Group) -> dict[str, click.Command]:
    """Return the verbs of a group, those that are imported late too."""
    context = click.Context(group)
    commands = ((name, group.get_command(context, name)) for name in group.list_commands(context))
    return {name: command for name, command in commands if command is not None}
