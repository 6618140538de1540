"""The printing of the verbs: JSON objects, and progress on a terminal."""

from __future__ import annotations

import gc
import json
import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


def print_json(value: Any) -> None:
    """Print one object on standard output."""
    # Bytes: JSON is UTF-8, whatever the terminal's encoding is.
    click.echo(json.dumps(value, indent=2, ensure_ascii=False).encode())


def dataset_line(dataset: Mapping[str, Any]) -> str:
    """Return the line for people about a dataset that was written."""
    before = "; it was complete already" if dataset["was_complete"] else ""
    return f"{dataset['template']}: {dataset['records']:,} records{before}"


def next_line(templates: Sequence[str], task: tuple[int, int]) -> list[str]:
    """Return the line that says what is to be run when all tasks have ended; none for one task."""
    if task[1] == 1:
        return []
    return [
        f"when all {task[1]} tasks have ended, run: streamrec merge-index {' '.join(templates)}"
    ]


def no_progress(what: str, done: int, total: int | None) -> None:
    """Show nothing."""


@contextmanager
def progress_bar(unit: str) -> Iterator[Callable[[str, int, int | None], None]]:
    """Show a progress bar on standard error if that is a terminal.

    Args:
        unit: ``"bytes"``, or the name of what is counted.

    Yields:
        A function to call, from any thread, with a word for the work, the amount that is done,
        and the whole amount where it is known.
    """
    # The log of a job would hold each state of the bar.
    if not sys.stderr.isatty():
        yield no_progress
        return
    with _rich_bar(unit) as bar:
        task = bar.add_task("", total=None)
        yield lambda what, done, total: bar.update(
            task, description=what, completed=done, total=total
        )


def _rich_bar(unit: str) -> Any:
    # Imported late: rich takes longer to import than many a command takes to run.
    from rich import progress
    from rich.console import Console

    text, counts = progress.TextColumn, unit == "bytes"
    return progress.Progress(
        text("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn() if counts else progress.MofNCompleteColumn(),
        progress.TransferSpeedColumn() if counts else text(unit),
        progress.TimeElapsedColumn(),
        text("left:"),
        progress.TimeRemainingColumn(),
        # What is printed meanwhile stands above the bar if it goes to the terminal, too.
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=sys.stdout.isatty(),
    )


@contextmanager
def ending_with(code: int) -> Iterator[None]:
    """End the running command with a code once its report is printed, or has no reader any more.

    Args:
        code: 0: it goes on.
    """
    try:
        yield
    except BrokenPipeError:
        if not code:
            raise
    if code:
        click.get_current_context().exit(code)


def discard_output() -> None:
    """Let standard output be the null device: else the interpreter complains when it flushes it."""
    with open(os.devnull, "wb") as null:  # noqa: PTH123
        os.dup2(null.fileno(), sys.stdout.fileno())


@contextmanager
def no_collection() -> Iterator[None]:
    """Have the garbage collector wait: it would look through a million names again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
