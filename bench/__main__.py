"""Makes all tables of the results, or some, or a quick look at them.

::

    python -m bench --list
    python -m bench --only kernel --quick
    python -m bench --output bench/results

Each table is made by a command of its own; bench/README.md says how they measure.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import click

from bench.harness import PATH, say
from bench.machine import ROOT
from bench.suite import TABLES, Table

NAMES = [table.name for table in TABLES]


@click.command()
@click.option("--list", "lists", is_flag=True, help="List the tables and their commands, and end.")
@click.option(
    "--only",
    multiple=True,
    type=click.Choice(NAMES),
    metavar="NAME",
    help="Table to make; all by default.",
)
@click.option("--quick", is_flag=True, help="Measure little: to see that all runs.")
@click.option("--output", type=PATH, help="Directory that the results are written to.")
@click.option(
    "--peers-python", help="Interpreter that has 'streamrec[bench]'; this one by default."
)
@click.option("--dlio-python", help="Interpreter that has bench/dlio/requirements.txt.")
def main(
    *,
    lists: bool,
    only: tuple[str, ...],
    quick: bool,
    output: Path | None,
    peers_python: str | None,
    dlio_python: str | None,
) -> None:
    """Make tables one after the other; the exit code is 1 if one of them failed."""
    chosen = [table for table in TABLES if not only or table.name in only]
    named = {"peers": peers_python, "dlio": dlio_python}
    interpreters = {name: python for name, python in named.items() if python is not None}
    failed = []
    for number, table in enumerate(chosen, 1):
        command = table.command(output and output.absolute(), interpreters, quick=quick)
        if lists:
            click.echo(f"{table.name:20}{table.about}\n{'':20}python {shlex.join(command)}")
            continue
        say(f"table {number} of {len(chosen)}: {table.name}: {table.about}")
        if not make(table, command):
            failed.append(table.name)
    if failed:
        click.echo(f"Failed: {', '.join(failed)}. What each printed says why.", err=True)
    sys.exit(bool(failed))


def make(table: Table, command: list[str]) -> bool:
    """Run a table's command, and return whether it succeeded."""
    click.echo(f"\n## {table.name}\n")
    sys.stdout.flush()
    return subprocess.run([sys.executable, *command], cwd=ROOT, check=False).returncode == 0


if __name__ == "__main__":
    main()
