"""A feeder beside the other ways to read a stream, and beside plain downloads.

::

    python -m bench.first --json bench/results/first.json

Behind the loopback store, with 50 ms to the first byte and 60 MB/s a connection: a downloader that
decodes nothing (one that has each range in memory, one that drops it), and streamrec with ``for``,
``async for`` and through a feeder. bench/results/README.md says how each number is made.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from bench import machine
from bench.cases import BATCH_SIZE, Scene, all_cases
from bench.console import complain, default_data, run, wanted
from bench.datasets import images
from bench.measure import quantities
from bench.services import store
from bench.table import as_table, write_json


@dataclass(frozen=True)
class Settings:
    """What the command line says."""

    megabytes: float
    repeat: int
    latency: float
    bandwidth: float
    only: tuple[str, ...]


@click.command()
@click.option("--json", "target", type=click.Path(path_type=Path), help="Write the results here.")
@click.option("--megabytes", default=1072.0, show_default=True, help="Size of the data.")
@click.option("--repeat", default=5, show_default=True, help="Rounds; each case once in each.")
@click.option("--data", type=click.Path(path_type=Path), default=default_data, help="For shards.")
@click.option("--latency", default=0.05, show_default=True, help="Seconds to the first byte.")
@click.option("--bandwidth", default=60e6, show_default=True, help="Bytes/s of a connection.")
@click.option("--only", multiple=True, help="Cases whose title holds this. [all]")
@click.option("--date", help="For the results. [now]")
def main(*, target: Path | None, data: Path, date: str | None, **options: Any) -> None:
    """Measure, print one table, and write JSON."""
    settings = Settings(**options)
    console = Console(width=160 if not sys.stdout.isatty() else None)
    dataset = images(data.absolute(), settings.megabytes)
    with store(dataset.root, latency=settings.latency, bandwidth=settings.bandwidth) as served:
        scene = Scene(dataset, *served)
        cases = [case for case in all_cases(scene) if wanted(case, settings.only)]
        results = run(cases, lambda _, report: quantities(report, dataset), settings.repeat)
    console.print(as_table(results, f"{dataset.name}, {settings.repeat} rounds, medians"))
    complain(results, console)
    if target is not None:
        write_json(target, results, describe(settings, scene, date))
    sys.exit(any(result.failures for result in results))


def describe(settings: Settings, scene: Scene, date: str | None) -> dict[str, Any]:
    """What else belongs to the results."""
    return {
        "benchmark": "first",
        "date": date or datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine.describe(),
        "dataset": scene.dataset.facts(),
        "settings": {
            "rounds": settings.repeat,
            "batch_size": BATCH_SIZE,
            "latency_seconds": settings.latency,
            "bytes_per_second_and_connection": settings.bandwidth,
        },
    }


if __name__ == "__main__":
    main()
