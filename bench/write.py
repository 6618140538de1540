"""Writers of datasets side by side: to a local disk, to a store at 50 ms, and from other formats.

::

    python -m bench.write --peers-python PATH --output bench/results

The same records are written in rounds: small Examples, sequences of tokens, and strings of the
size of pictures. What was written is read again and counted, of TFRecords with every CRC. MB are
bytes of the records' values, so that formats can be compared. Only streamrec's writers and the
plain files flush to the disk, which the rate by the clock contains; the rate by CPU time does not
depend on the disk. Ray's processes start before the clock does. The store shares the machine.
``--size`` and ``--name`` write more, of which round trips are a smaller part, to files of another
name; ``--only`` leaves out the writers that would take an hour.

A folder of pictures and a table are converted beside what the conversion needs at least, text for
BERT beside the script of TensorFlow's models.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bench import machine
from bench.aims import Target, targets_as_markdown
from bench.console import case_options, print_failures, run, selected
from bench.measure import Result
from bench.progress import say
from bench.results import facts, rows, write
from bench.services import STORE_KEYS, store
from bench.writing.bert import make_text
from bench.writing.cases import LATENCY, MODULES, cases_of, conversions_of, is_there
from bench.writing.conversions import make_csv, make_pictures
from bench.writing.judging import judge, judge_conversion
from bench.writing.kinds import KINDS
from bench.writing.place import Place
from bench.writing.tables import as_markdown, times
from streamrec.stores.fsspec.filesystem_writer import shared_filesystem

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench.measure import Case

FILES, DOCUMENTS, ROWS = 1_000, 3_000, 200_000
"""The pictures, the documents of text and the rows of the table, where ``--size`` is 1."""
FEW = 10
QUICK = {"size": 0.02, "repeat": 1}


@dataclass(frozen=True)
class Settings:
    """The options of the command line."""

    size: float
    repeat: int
    kinds: tuple[str, ...]
    only: tuple[str, ...]
    peers_python: str
    quick: bool

    @property
    def scale(self) -> float:
        """The size, as ``--quick`` has it."""
        return QUICK["size"] if self.quick else self.size

    @property
    def rounds(self) -> int:
        """The number of rounds, as ``--quick`` has it."""
        return int(QUICK["repeat"]) if self.quick else self.repeat


@click.command()
@case_options(2)
@click.option("--size", default=0.3, show_default=True, help="Records; 1 is some 300 MB.")
@click.option("--name", default="write", show_default=True, help="Name of the files of results.")
@click.option("--quick", is_flag=True, help="Little data, one round: to see that all runs.")
@click.option(
    "--kinds", multiple=True, type=click.Choice(list(KINDS)), help="Kind of data; all by default."
)
@click.option(
    "--peers-python",
    default=sys.executable,
    help="Python interpreter that has the other writers; this one by default.",
)
def main(*, output: Path | None, data: Path, name: str, **options: Any) -> None:
    """Measure, print tables, and write JSON and Markdown."""
    settings = Settings(**options)
    versions = machine.module_versions(settings.peers_python, [*MODULES.values()])
    data.mkdir(parents=True, exist_ok=True)
    results: list[Result] = []
    for measure in (_local, _remote, _convert):
        with tempfile.TemporaryDirectory(dir=data) as directory:
            results += measure(settings, Path(directory).absolute(), versions)
    aims = targets(results)
    report = f"{as_markdown(results)}\n\n### aims\n\n{targets_as_markdown(aims)}"
    click.echo(report)
    print_failures(results)
    if output is not None:
        told = {"size": settings.scale, "rounds": settings.rounds, "latency": LATENCY}
        content = facts(name, settings=told, rows=rows(results))
        content["targets"] = [aim.facts() for aim in aims]
        content["machine"]["libraries"] |= versions
        write(output, name, content, report)
    sys.exit(any(result.failures for result in results))


def _local(settings: Settings, directory: Path, versions: Mapping[str, str | None]) -> list[Result]:
    """Write to the local disk."""
    return _measured(settings, Place(str(directory / "out")), str(directory / "warm"), versions)


def _remote(
    settings: Settings, _directory: Path, versions: Mapping[str, str | None]
) -> list[Result]:
    """Write to a store at a distance."""
    with store(latency=LATENCY, bandwidth=None) as served:
        options = {"endpoint_url": served.endpoint, **STORE_KEYS}
        files, _ = shared_filesystem("s3://out", options)
        for bucket in ("out", "warm"):
            files.mkdir(bucket)
        return _measured(settings, Place("s3://out", options), "s3://warm", versions)


def _measured(
    settings: Settings, place: Place, warm_up: str, versions: Mapping[str, str | None]
) -> list[Result]:
    kinds = settings.kinds or tuple(KINDS)
    cases = cases_of(place, warm_up, kinds, settings.scale, settings.peers_python)
    return _run(settings, cases, versions, judge)


def _convert(
    settings: Settings, directory: Path, versions: Mapping[str, str | None]
) -> list[Result]:
    """Convert a folder of pictures, text, and a table."""
    cases = [
        case
        for case in conversions_of(directory, settings.peers_python)
        if selected(case, settings.only)
    ]
    if not cases:
        return []
    say("making the pictures, the text and the table")
    for name, scale in (("all", settings.scale), ("few", 0.0)):
        make_pictures(directory / name / "pictures", max(FEW, round(FILES * scale)))
        make_text(directory / name / "text.txt", max(FEW, round(DOCUMENTS * scale)))
        make_csv(directory / name / "table.csv", max(FEW, round(ROWS * scale)))
    return _run(settings, cases, versions, judge_conversion)


def _run(
    settings: Settings, cases: Sequence[Case], versions: Mapping[str, str | None], judge: Any
) -> list[Result]:
    """Measure the cases that are selected; those of peers that are not installed have no values."""
    wanted = [case for case in cases if selected(case, settings.only)]
    there = [case for case in wanted if is_there(case, versions)]
    found = {one.case.title: one for one in run(there, judge, settings.rounds)}
    return [found.get(case.title, Result(case)) for case in wanted]


AIMS = (
    ("small, local disk", "columns by block", "TensorFlow", "records_per_cpu_second", 20.0),
    ("small, local disk", "encode_example and write", "TensorFlow", "records_per_cpu_second", 3.0),
    ("pictures, local disk", "ShardedWriter, columns", "plain files", "megabytes_per_second", 0.9),
    *(
        (f"{kind}, store", "columns by block", "plain upload, boto3", "megabytes_per_second", 0.9)
        for kind in KINDS
    ),
    (
        *("folder of pictures, encoded anew", "streamrec write --encode jpeg"),
        *("read, decoded and encoded", "megabytes_per_second", 0.9),
    ),
)
"""The group, the way, the way that it is compared with, the quantity, and the least ratio."""


def targets(results: Sequence[Result]) -> list[Target]:
    """Return the aims that could be measured."""
    found = []
    for group, way, other, quantity, aim in AIMS:
        measured = times(results, group, way, other, quantity)
        if measured is not None:
            found.append(Target(f"{group}: {way}", f"times {other}", aim, measured))
    return found


if __name__ == "__main__":
    main()
