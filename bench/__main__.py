"""Makes all tables of the results, or some, or a quick look at them.

::

    python -m bench all
    python -m bench --list
    python -m bench --only kernel --quick

Each table is made by a command of its own; bench/README.md says how they measure.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click

from bench.harness import PATH, now, say, seal, write_json
from bench.machine import ROOT, describe
from bench.suite import RESULTS, TABLES, Table

NAMES = [table.name for table in TABLES]


@click.command()
@click.argument("what", type=click.Choice(["all"]), required=False)
@click.option("--list", "lists", is_flag=True, help="List the tables and their commands, and end.")
@click.option(
    "--only",
    multiple=True,
    type=click.Choice(NAMES),
    metavar="NAME",
    help="Table to make.",
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

    All take about 40 minutes of a quiet machine with two cores. all.json beside the results has
    the seconds of each table, the commit and the machine. The exit code is 1 if a table failed.
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
    for number, table in enumerate(chosen, 1):
        command = table.command(output and output.absolute(), interpreters, quick=quick)
        if lists:
            click.echo(f"{table.name:20}{table.about}\n{'':20}python {shlex.join(command)}")
            continue
        say(f"table {number} of {len(chosen)}: {table.name}: {table.about}")
        made[table.name] = make(table, command)
        say(f"{table.name}: {made[table.name]['seconds']:.0f} s")
        if output is not None:
            note(output / "all.json", made)
    if made:
        click.echo(f"{sum(one['seconds'] for one in made.values()):.0f} s in all.", err=True)
    failed = [name for name, one in made.items() if one["failed"]]
    if failed:
        click.echo(f"Failed: {', '.join(failed)}. What each printed says why.", err=True)
    sys.exit(bool(failed))


def make(table: Table, command: list[str]) -> dict[str, Any]:
    """Run a table's command, and return when, on which commit and how it ended."""
    click.echo(f"\n## {table.name}\n")
    sys.stdout.flush()
    machine, date, began = describe(), now(), time.monotonic()
    done = subprocess.run([sys.executable, *command], cwd=ROOT, check=False)
    return {
        "seconds": time.monotonic() - began,
        "failed": done.returncode != 0,
        "date": date,
        "commit": machine["streamrec"]["revision"],
        "machine": {name: machine[name] for name in ("cpu", "cores", "memory_gigabytes", "python")},
    }


def note(path: Path, made: dict[str, dict[str, Any]]) -> None:
    """Write how tables were made, and keep what the file says of the others."""
    before = json.loads(path.read_text())["tables"] if path.exists() else {}
    tables = {name: {**before, **made}[name] for name in NAMES if name in {**before, **made}}
    write_json(path, {"benchmark": "all", "tables": tables})
    seal(path)


if __name__ == "__main__":
    main()
