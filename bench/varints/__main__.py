"""Which way to decode packed int64 varints is fastest here.

::

    python -m bench.varints --json bench/results/varints.json

Compiles varints.c with the system's compiler, holds every decoder against the plain one on random
lists between guard pages, and then measures them on some kinds of lists, in rounds.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from bench import machine
from bench.markdown import table
from bench.varints.library import Decoder, Wrong, check, compiled, default_compiler
from bench.varints.lists import all_lists

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PASSES = 5
"""Of one decoder over one kind of list in a round: the best counts."""


@click.command()
@click.option("--json", "target", type=click.Path(path_type=Path), help="Write the results here.")
@click.option("--repeat", default=20, show_default=True, help="Rounds.")
@click.option("--lists", default=4000, show_default=True, help="Random lists to check with.")
@click.option("--compiler", default=default_compiler, help="For varints.c.  [CC or cc]")
def main(*, target: Path | None, repeat: int, lists: int, compiler: str) -> None:
    """Check, measure, print a table, and write JSON."""
    with tempfile.TemporaryDirectory() as directory:
        decoders, unable = compiled(Path(directory), compiler)
        values = check(decoders, lists)
        click.echo(f"All agree on {lists:,} random lists, {values:,} values in the valid ones.\n")
        found = measure(decoders, repeat)
    click.echo(as_table(found))
    for name in unable:
        click.echo(f"{name}: skipped, this processor has no such instructions")
    if target is not None:
        write(target, found, compiler, repeat)


def measure(decoders: Sequence[Decoder], repeat: int) -> dict[str, dict[str, float]]:
    """Nanoseconds a value, by decoder and kind of list: the best of all rounds."""
    best: dict[str, dict[str, float]] = {decoder.name: {} for decoder in decoders}
    kinds = all_lists()
    for _ in range(repeat):
        for kind, (lists, values) in kinds.items():
            for decoder in decoders:
                out = np.zeros(len(values), np.int64)
                nanoseconds = decoder.seconds(lists, out, PASSES) / len(values) * 1e9
                if not np.array_equal(out, values):
                    raise Wrong(f"{decoder.name} decodes {kind!r} wrongly")
                best[decoder.name][kind] = min(
                    nanoseconds, best[decoder.name].get(kind, nanoseconds)
                )
    return best


def as_table(found: Mapping[str, Mapping[str, float]]) -> str:
    """A row for each decoder, in Markdown."""
    kinds = list(next(iter(found.values())))
    rows = [[name, *(f"{of[kind]:.2f}" for kind in kinds)] for name, of in found.items()]
    return table(["ns a value", *kinds], rows)


def write(target: Path, found: Mapping[str, Any], compiler: str, repeat: int) -> None:
    """Everything as JSON."""
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True)
    facts = {
        "benchmark": "varints",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {**machine.describe(), "compiler": version.stdout.partition("\n")[0]},
        "settings": {"rounds": repeat, "passes": PASSES},
        "nanoseconds_per_value": {
            name: {kind: round(value, 4) for kind, value in of.items()}
            for name, of in found.items()
        },
    }
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
