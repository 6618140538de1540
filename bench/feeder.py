"""The feeder beside other ways to bring batches from one process to another, on loopback.

::

    python -m bench.feeder --peers-python PATH --output bench/results

Systems: streamrec's feeder over TCP, over a Unix socket with shared memory, and over TLS;
streamrec's engine process; tf.data service; pyarrow Flight; torch's DataLoader with workers; and
the same bytes by bare ``sendall`` and ``recv_into``. Clients and servers are processes apart.

*ready*: a few batches are sent again and again, so that only the way counts. *shards*: local shards
are read, checked, and parsed or not. The systems of a group take turns in each round, and no other
is connected meanwhile. bench/results/README.md says how each number is made.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

import streamrec as sr
from bench import datasets
from bench.console import data_option, output_option, repeat_option
from bench.feeding.columns import nbytes
from bench.feeding.measuring import Cell, measure
from bench.feeding.setup import Load, Setup
from bench.feeding.systems import SYSTEMS
from bench.feeding.tables import as_markdown, targets
from bench.machine import module_versions
from bench.progress import say
from bench.readers.specs import specs
from bench.results import facts, write
from bench.services import self_signed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from bench.datasets import Dataset
    from bench.feeding.systems import System

SIZES: dict[str, tuple[Callable[[Path, float], Dataset], float, int]] = {
    "images": (datasets.images, 321.6, 64),
    "tokens": (datasets.tokens, 81.6, 256),
    "recsys": (datasets.recsys, 136.0, 4096),
}
"""Function that makes each dataset, its size in 10^6 bytes with ``--size 1``, and its batches."""
PARTS = ("ready", "shards")
CLIENTS = (1, 4, 16, 64)
SCALED = ("images", "recsys")
"""Kinds of which parsed batches go to several clients."""
MOST_READING = 4
"""Most clients that read shards: each of them reads all."""


@click.command()
@data_option
@output_option
@repeat_option(3, "Number of rounds; each system has a turn in each.")
@click.option("--seconds", default=0.3, show_default=True, help="Seconds of a turn.")
@click.option("--size", default=1.0, show_default=True, help="Size of the data; 1 is 0.5 GB.")
@click.option("--only", multiple=True, help="Text in the names of the systems to measure.")
@click.option("--part", "parts", multiple=True, type=click.Choice(PARTS), help="Part to measure.")
@click.option("--kinds", multiple=True, type=click.Choice(list(SIZES)), help="Kind of data.")
@click.option("--clients", multiple=True, type=int, default=CLIENTS, help="Number of clients.")
@click.option("--raw/--no-raw", default=True, help="Measure records that are not parsed, too.")
@click.option("--peers-python", default=sys.executable, help="Interpreter with the other systems.")
def main(
    *,
    output: Path | None,
    data: Path,
    repeat: int,
    seconds: float,
    peers_python: str,
    clients: tuple[int, ...],
    **chosen: Any,
) -> None:
    """Measure, print tables, and write JSON and Markdown."""
    loads = list(loads_of(data.absolute(), chosen["kinds"] or tuple(SIZES), chosen["size"]))
    needed = sorted({module for system in SYSTEMS for module in system.needs})
    versions = module_versions(peers_python, needed)
    cells: list[Cell] = []
    with self_signed() as certificate, Setup(loads, peers_python, certificate) as setup:
        systems = []
        for system in (one for one in SYSTEMS if _selected(one, chosen["only"])):
            reason = system.missing(setup, versions)
            if reason is None:
                systems.append(system)
            else:
                click.echo(f"Skipped: {system.name}: {reason}")
        shown = [load for load in loads if load.is_parsed or chosen["raw"]]
        for group in groups(shown, systems, chosen["parts"] or PARTS, clients):
            measure(setup, group, seconds, repeat, say)
            cells += group
    aims = targets(cells)
    text = as_markdown(cells, aims)
    click.echo(text)
    failed = [cell for cell in cells if cell.failure]
    for cell in failed:
        click.echo(f"{cell.title}: {cell.failure}")
    if output is not None:
        content = facts(
            "feeder",
            peers=versions,
            settings={"rounds": repeat, "seconds": seconds},
            loads={one.name: {"batch_size": one.batch_size, "bytes": one.nbytes} for one in loads},
            aims=[aim.facts() for aim in aims],
            rows=[cell.facts() for cell in cells],
        )
        write(output, "feeder", content, f"{_where(content)}\n\n{text}")
    sys.exit(bool(failed))


def loads_of(data: Path, kinds: Sequence[str], size: float) -> Iterator[Load]:
    """Make the shards, and yield their records as batches, raw and parsed."""
    for kind in kinds:
        make, megabytes, batch_size = SIZES[kind]
        dataset = make(data, megabytes * size)
        for path in dataset.paths:
            path.read_bytes()  # into the page cache
        for is_parsed in (False, True):
            features = specs(dataset.features) if is_parsed else None
            with sr.open(
                dataset.pattern, features, batch_size=batch_size, engine="thread", epochs=None
            ) as stream:
                yield Load(dataset, batch_size, nbytes(next(iter(stream))), is_parsed)


def groups(
    loads: Sequence[Load],
    systems: Sequence[System],
    parts: Sequence[str],
    counts: Sequence[int],
) -> Iterator[list[Cell]]:
    """Yield the cells that are measured by turns."""
    for part in parts:
        for load in loads:
            for clients in counts:
                scaled = load.is_parsed and load.dataset.kind in SCALED
                most = MOST_READING if part == "shards" else max(CLIENTS)
                if clients == 1 or (scaled and clients <= most):
                    found = [
                        Cell(part, system, load, clients)
                        for system in systems
                        if part in system.parts
                        and system.fewest_clients <= clients <= system.most_clients
                    ]
                    if found:
                        yield found


def _selected(system: System, only: Sequence[str]) -> bool:
    return not only or any(text in system.name for text in only)


def _where(content: dict[str, Any]) -> str:
    """Return where and when it was measured."""
    on = content["machine"]
    peers = ", ".join(f"{name} {version}" for name, version in content["peers"].items() if version)
    return (
        f"{content['date']}: {on['cpu']}, {on['cores']} cores, {on['memory_gigabytes']:g} GB, "
        f"{on['kernel']}, {on['python']}, streamrec {on['streamrec']['revision']}; {peers}."
    )


if __name__ == "__main__":
    main()
