"""Writers of TFRecord shards side by side, to a local disk.

::

    python -m bench.write --tensorflow-python PATH --output bench/results

streamrec, TensorFlow's writer in a Python loop, and the ``tfrecord`` package write the same
records in rounds: small Examples, sequences of tokens, and strings of the size of pictures. What
was written is read again and counted, with every CRC. Only streamrec's writers flush to the disk
before a shard appears, which the rate by the clock contains; the rate by CPU time does not depend
on the disk.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bench import machine
from bench.aims import Target, targets_as_markdown
from bench.console import case_options, print_failures, run, selected
from bench.markdown import number, table
from bench.measure import Case, Failure
from bench.results import facts, rows, write
from bench.writing.kinds import KINDS
from streamrec.flow.bridge import Bridge
from streamrec.shard_tools.verify import check

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench.measure import Result

OURS = ("columns by block", "encode_example and write", "ShardedWriter, one by one")
THEIRS = ("TensorFlow", "tfrecord package")
RATE = "records_per_cpu_second"
AIMS = {"columns by block": 20.0, "encode_example and write": 3.0}
"""Times the rate of TensorFlow's writer, for small Examples on one core."""


@dataclass(frozen=True)
class Settings:
    """The options of the command line."""

    size: float
    repeat: int
    kinds: tuple[str, ...]
    only: tuple[str, ...]
    tensorflow_python: str


@click.command()
@case_options(3)
@click.option("--size", default=0.3, show_default=True, help="Records; 1 is some 300 MB.")
@click.option(
    "--kinds", multiple=True, type=click.Choice(list(KINDS)), help="Kind of data; all by default."
)
@click.option(
    "--tensorflow-python",
    default=sys.executable,
    help="Python interpreter that has TensorFlow; this one by default.",
)
def main(*, output: Path | None, data: Path, **options: Any) -> None:
    """Measure, print tables, and write JSON and Markdown."""
    settings = Settings(**options)
    version = machine.tensorflow_version(settings.tensorflow_python)
    data.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=data) as directory:
        found = cases(settings, Path(directory), has_tensorflow=version is not None)
        results = run(found, judged, settings.repeat)
    aims = targets(results)
    report = f"{as_markdown(results)}\n### aims\n\n{targets_as_markdown(aims)}"
    click.echo(report)
    print_failures(results)
    if output is not None:
        told = {"size": settings.size, "rounds": settings.repeat}
        content = facts("write", settings=told, rows=rows(results))
        content["targets"] = [aim.facts() for aim in aims]
        content["machine"]["libraries"]["tensorflow"] = version
        write(output, "write", content, report)
    sys.exit(any(result.failures for result in results))


def cases(settings: Settings, directory: Path, *, has_tensorflow: bool) -> list[Case]:
    """Return the cases that can be measured here, in the order of the tables."""
    absent = set() if has_tensorflow else {"TensorFlow"}
    absent |= set() if find_spec("tfrecord") else {"tfrecord package"}
    found = [
        case_of(kind, way, settings, directory)
        for kind in settings.kinds or tuple(KINDS)
        for way in (*OURS, *THEIRS)
        if way not in absent
    ]
    return [case for case in found if selected(case, settings.only)]


def case_of(kind: str, way: str, settings: Settings, directory: Path) -> Case:
    """Return the case of one writer and one kind of records."""
    records = max(100, round(KINDS[kind][1] * settings.size))
    path = directory / f"{kind}-{way.replace(' ', '-').replace(',', '')}" / "x.tfrecord"
    path.parent.mkdir()
    python = settings.tensorflow_python if way == "TensorFlow" else sys.executable
    arguments = {"kind": kind, "way": way, "records": records, "path": str(path)}
    return Case(kind, way, "bench.writing.writers", arguments, python=python)


def judged(case: Case, report: Mapping[str, Any]) -> dict[str, float]:
    """Check what was written, remove it, and return the rates.

    Raises:
        Failure: Other records were written, or damaged ones.
    """
    directory, records = Path(case.arguments["path"]).parent, case.arguments["records"]
    with Bridge() as loop:
        shards = loop.call(check(f"{directory}/x*.tfrecord"))
    shutil.rmtree(directory)
    directory.mkdir()
    written = sum(shard.records for shard in shards)
    if written != records or any(shard.faults for shard in shards):
        raise Failure(f"wrote {written} intact records, where there are {records}")
    nbytes = sum(shard.size for shard in shards)
    return {
        "seconds": report["seconds"],
        "records_per_second": records / report["seconds"],
        "megabytes_per_second": nbytes / 1e6 / report["seconds"],
        RATE: records / report["cpu_seconds"],
    }


def as_markdown(results: Sequence[Result]) -> str:
    """Return a table for each kind of records."""
    head = ["", "records/s", "MB/s", "records/s of CPU", "TensorFlow's"]
    parts = []
    for kind in dict.fromkeys(result.case.group for result in results):
        lines = [
            [
                result.case.name,
                *map(number, map(result.median, ("records_per_second", "megabytes_per_second"))),
                number(result.median(RATE)),
                number(times_tensorflow(result, results)),
            ]
            for result in results
            if result.case.group == kind
        ]
        parts.append(f"### {kind}\n\n{table(head, lines)}\n")
    return "\n".join(parts)


def times_tensorflow(result: Result, results: Sequence[Result]) -> float | None:
    """Return the rate by CPU time over that of TensorFlow's writer, where it was measured."""
    wanted = f"{result.case.group}: TensorFlow"
    theirs = next((one.median(RATE) for one in results if one.case.title == wanted), None)
    ours = result.median(RATE)
    return None if theirs is None or ours is None else ours / theirs


def targets(results: Sequence[Result]) -> list[Target]:
    """Return the aims that could be measured."""
    small = [result for result in results if result.case.group == "small"]
    found = ((one.case.name, times_tensorflow(one, results)) for one in small)
    name = partial("small Examples, {}".format)
    return [
        Target(name(way), "times TensorFlow's writer", AIMS[way], times)
        for way, times in found
        if way in AIMS and times is not None
    ]


if __name__ == "__main__":
    main()
