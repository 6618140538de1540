"""Makes all tables of the results, or some, or a quick look at them.

::

    python -m bench all
    python -m bench --list
    python -m bench --only kernel --quick

Each table is made by a command of its own; bench/README.md says how they measure.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from bench.cases import say
from bench.harness import PATH, now, seal, table, write_json
from bench.machine import ROOT, describe
from bench.suite import RESULTS, TABLES, Table

NAMES = [table.name for table in TABLES]
PATIENCE = 900.0
"""Seconds after which a table has failed, and what it runs is killed: three times the longest."""


@click.command()
@click.argument("what", type=click.Choice(["all"]), required=False)
@click.option("--list", "lists", is_flag=True, help="List the tables and their commands, and end.")
@click.option(
    "--only", multiple=True, type=click.Choice(NAMES), metavar="NAME", help="Table to make."
)
@click.option("--quick", is_flag=True, help="Measure little: to see that all runs.")
@click.option("--output", type=PATH, help="Directory of the results; 'all' has bench/results.")
@click.option(
    "--peers-python", help="Interpreter that has 'streamrec[bench]'; this one by default."
)
@click.option("--dlio-python", help="Interpreter that has bench/dlio/requirements.txt.")
def main(
    *,
    what: str | None,
    lists: bool,
    only: tuple[str, ...],
    quick: bool,
    output: Path | None,
    peers_python: str | None,
    dlio_python: str | None,
) -> None:
    """Make all tables one after the other, or those of --only.

    First it says how long that takes, from the times of the last run. A table that fails ends no
    other; the last line names those that did, and the exit code is 1. all.json beside the results
    has the seconds of each table, the commit and the machine.
    """
    if what is None and not only and not lists:
        click.echo(f"{click.get_current_context().get_help()}\n\nTables: {', '.join(NAMES)}.")
        return
    if what is not None and output is None and not quick:
        output = ROOT / RESULTS
    chosen = [table for table in TABLES if not only or table.name in only]
    named = {"peers": peers_python, "dlio": dlio_python}
    interpreters = {name: python for name, python in named.items() if python is not None}
    made: dict[str, dict[str, Any]] = {}
    if not lists and not quick:
        click.echo(how_long([one.name for one in chosen], last_times()), err=True)
    for number, one in enumerate(chosen, 1):
        command = one.command(output and output.absolute(), interpreters, quick=quick)
        if lists:
            click.echo(f"{one.name:20}{one.about}\n{'':20}python {shlex.join(command)}")
            continue
        say(f"table {number} of {len(chosen)}: {one.name}: {one.about}")
        made[one.name] = make(one, command)
        say(f"{one.name}: {made[one.name]['seconds']:.0f} s")
        if output is not None:
            note(output / "all.json", made)
    if made:
        click.echo(f"{sum(one['seconds'] for one in made.values()):.0f} s in all.", err=True)
    failed = [name for name, one in made.items() if one["failed"]]
    if failed:
        click.echo(f"Failed: {', '.join(failed)}. What each printed says why.", err=True)
    sys.exit(bool(failed))


def last_times() -> dict[str, float]:
    """Return the seconds that each table took when it was last made."""
    path = ROOT / RESULTS / "all.json"
    tables = json.loads(path.read_text())["tables"] if path.exists() else {}
    return {name: one["seconds"] for name, one in tables.items()}


def how_long(names: Sequence[str], times: dict[str, float]) -> str:
    """Return a table of the seconds that tables took last, and what all of them take."""
    rows = [(name, f"{times[name]:.0f}" if name in times else "not known") for name in names]
    minutes = sum(times.get(name, 0.0) for name in names) / 60
    unknown = [name for name in names if name not in times]
    more = f", and what {', '.join(unknown)} take" if unknown else ""
    lines = table(("table", "seconds of the last run"), rows)
    return f"{lines}\n\nIt takes about {minutes:.0f} minutes{more}."


def make(one: Table, command: list[str]) -> dict[str, Any]:
    """Run a table's command, and return when, on which commit and how it ended."""
    click.echo(f"\n## {one.name}\n")
    sys.stdout.flush()
    machine, date, began = describe(), now(), time.monotonic()
    failed = not run(command)
    return {
        "seconds": time.monotonic() - began,
        "failed": failed,
        "date": date,
        "commit": machine["streamrec"]["revision"],
        "machine": {name: machine[name] for name in ("cpu", "cores", "memory_gigabytes", "python")},
    }


def run(command: list[str], patience: float = PATIENCE) -> bool:
    """Run Python with these arguments; return whether all went well.

    Whatever it has started and left is killed, so that the next table has the machine for itself.
    """
    process = subprocess.Popen([sys.executable, *command], cwd=ROOT, start_new_session=True)
    try:
        return process.wait(patience) == 0
    except subprocess.TimeoutExpired:
        say(f"not done after {patience:g} s")
        return False
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def note(path: Path, made: dict[str, dict[str, Any]]) -> None:
    """Write how tables were made, and keep what the file says of the others."""
    before = json.loads(path.read_text())["tables"] if path.exists() else {}
    tables = {name: {**before, **made}[name] for name in NAMES if name in {**before, **made}}
    write_json(path, {"benchmark": "all", "tables": tables})
    seal(path)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the table ends, too
    main()
