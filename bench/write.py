"""Writers of datasets side by side: to a local disk, to a store at 50 ms, and from other formats.

The same records are written in rounds: small Examples, sequences of tokens, and strings of the
size of pictures. What was written is read again and counted, of TFRecords with every CRC. MB are
bytes of the records' values, so that formats can be compared. Only streamrec's writers and the
plain files flush to the disk, which the rate by the clock contains; the rate by CPU time does not
depend on the disk. The store shares the machine.
With a larger ``--size``, round trips are a smaller part of the time; ``--only`` leaves out the
writers that would take an hour.

A folder of pictures and a table are converted beside what the conversion needs at least, text for
BERT beside the script of TensorFlow's models.
"""

from __future__ import annotations

import io
import json
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from bench import machine
from bench.cases import RATE, Case, Comparison, Failure, Judge, Result, ratios, say, times
from bench.harness import PEERS, Aim, Column, Report, Run, benchmark, spread, tables_of
from bench.readers.conversions import SCRIPT, make_csv, make_pictures, make_text
from bench.readers.writers import KINDS, Place
from bench.services import STORE_KEYS, store
from streamrec.datasets.verify import check
from streamrec.flow.bridge import Bridge
from streamrec.stores.fsspec.filesystem_writer import shared_filesystem

FILES, DOCUMENTS, ROWS = 1_000, 3_000, 200_000
"""The pictures, the documents of text and the rows of the table, where ``--size`` is 1."""
FEW = 10
LATENCY = 0.05
OURS = (
    "columns by block",
    "ShardedWriter, columns",
    "encode_example and write",
    "ShardedWriter, one by one",
)
WRITERS = {
    "TensorFlow": "tensorflow",
    "tfrecord package": "tfrecord",
    "WebDataset": "webdataset",
    "MosaicML MDS": "streaming",
    "plain upload, boto3": "boto3",
}
"""The modules that other writers need."""
MODULES = {**WRITERS, SCRIPT: "official"}
"""The modules that those and other converters need."""
LOCAL = (*OURS, *list(WRITERS)[:-1], "plain files")
REMOTE = (*OURS, "plain upload, boto3")
"""Other writers are measured on the disk alone."""
CONVERSIONS = {
    "folder of pictures, as they are": ("pictures", ("read and copied", "streamrec write")),
    "folder of pictures, encoded anew": (
        "pictures",
        ("read, decoded and encoded", "streamrec write --encode jpeg"),
    ),
    "text for BERT": ("text.txt", (SCRIPT, "streamrec write --kind bert")),
    "table of CSV": ("table.csv", ("streamrec write --workers 1", "streamrec write --workers 2")),
}
"""The source of each group, and its ways, the first of which the other is compared with."""
BY_CPU = "records_per_cpu_second"
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


@dataclass(frozen=True)
class Settings:
    """The options of the command line, and the versions that the peers' interpreter has."""

    size: float
    kinds: tuple[str, ...]
    peers_python: str
    versions: Mapping[str, str | None]


@benchmark("write", repeat=2, only=True, data=True)
@click.option("--size", default=0.3, show_default=True, help="Records; 1 is some 300 MB.")
@click.option("--quick", is_flag=True, help="Little data, one round: to see that all runs.")
@click.option(
    "--kinds", multiple=True, type=click.Choice(list(KINDS)), help="Kind of data; all by default."
)
@PEERS
def main(
    run: Run, *, size: float, quick: bool, kinds: tuple[str, ...], peers_python: str
) -> Report:
    if quick:
        size, run.repeat = 0.02, 1
    versions = machine.module_versions(peers_python, [*MODULES.values()])
    settings = Settings(size, kinds or tuple(KINDS), peers_python, versions)
    run.data.mkdir(parents=True, exist_ok=True)
    for measure in (_local, _remote, _convert):
        with tempfile.TemporaryDirectory(dir=run.data) as directory:
            measure(run, settings, Path(directory))
    facts = {
        "settings": {"size": size, "rounds": run.repeat, "latency": LATENCY},
        "libraries": versions,
    }
    return Report(as_markdown(run.results), facts, aims_of(run.results))


def _local(run: Run, settings: Settings, directory: Path) -> None:
    """Write to the local disk."""
    place = Place(str(directory / "out"))
    _measure(run, settings, cases_of(place, str(directory / "warm"), settings), judge)


def _remote(run: Run, settings: Settings, _directory: Path) -> None:
    """Write to a store at a distance."""
    with store(latency=LATENCY, bandwidth=None) as served:
        options = {"endpoint_url": served.endpoint, **STORE_KEYS}
        files, _ = shared_filesystem("s3://out", options)
        for bucket in ("out", "warm"):
            files.mkdir(bucket)
        _measure(run, settings, cases_of(Place("s3://out", options), "s3://warm", settings), judge)


def _convert(run: Run, settings: Settings, directory: Path) -> None:
    """Convert a folder of pictures, text, and a table."""
    cases = run.choose(list(conversions_of(directory, settings.peers_python)))
    if not cases:
        return
    say("making the pictures, the text and the table")
    for name, scale in (("all", settings.size), ("few", 0.0)):
        make_pictures(directory / name / "pictures", max(FEW, round(FILES * scale)))
        make_text(directory / name / "text.txt", max(FEW, round(DOCUMENTS * scale)))
        make_csv(directory / name / "table.csv", max(FEW, round(ROWS * scale)))
    _measure(run, settings, cases, judge_conversion)


def _measure(run: Run, settings: Settings, cases: Sequence[Case], judge: Judge) -> None:
    """Measure the cases that are selected; those of peers that are not installed have no values."""
    earlier, wanted = run.results, run.choose(cases)
    run.results = []
    run.measure([case for case in wanted if is_there(case, settings.versions)], judge)
    found = {one.case.title: one for one in run.results}
    run.results = [*earlier, *(found.get(case.title, Result(case)) for case in wanted)]


# -- cases -----------------------------------------------------------------------------------------


def cases_of(place: Place, warm_up: str, settings: Settings) -> list[Case]:
    """Return the cases of all writers to a place, those that are not installed included."""
    where, ways = ("store", REMOTE) if place.bucket else ("local disk", LOCAL)
    plain = "plain upload, boto3" if place.bucket else "plain files"
    return [
        Case(
            f"{kind}, {where}",
            way,
            "readers.writers write",
            {
                "kind": kind,
                "way": way,
                "records": max(100, round(KINDS[kind].records * settings.size)),
                "directory": place.directory,
                "warm_up": warm_up,
                "storage_options": dict(place.storage_options),
            },
            settings.peers_python if way in WRITERS else sys.executable,
            place.variables(),
            comparisons=(Comparison("of plain", (f"{kind}, {where}: {plain}",)),)
            * (not way.startswith("plain")),
        )
        for kind in settings.kinds
        for way in ways
    ]


def is_there(case: Case, versions: Mapping[str, str | None]) -> bool:
    return case.name not in MODULES or versions[MODULES[case.name]] is not None


def conversions_of(directory: Path, peers_python: str) -> Iterator[Case]:
    for group, (source, ways) in CONVERSIONS.items():
        compared = Comparison(f"of {ways[0]}", (f"{group}: {ways[0]}",))
        for way in ways:
            arguments = {
                "way": way,
                "source": str(directory / "all" / source),
                "few": str(directory / "few" / source),
                "dest": str(directory / "out"),
                "warm_up": str(directory / "warm"),
            }
            python = peers_python if way == SCRIPT else sys.executable
            comparisons = () if way == ways[0] else (compared,)
            program = "readers.conversions convert"
            yield Case(group, way, program, arguments, python, comparisons=comparisons)


# -- checks of what was written --------------------------------------------------------------------


def judge(case: Case, report: Mapping[str, Any]) -> dict[str, float]:
    """Check what was written, remove it, and return the rates.

    Raises:
        Failure: Other records were written, or damaged ones.
    """
    arguments = case.arguments
    files, directory = shared_filesystem(arguments["directory"], arguments["storage_options"])
    files.invalidate_cache()
    try:
        records = _records(case.name, files, files.find(directory), arguments)
    finally:
        for where in (directory, shared_filesystem(arguments["warm_up"], {})[1]):
            _clear(files, where)
    if records not in (None, arguments["records"]):
        raise Failure(f"wrote {records} intact records, where there are {arguments['records']}")
    return rates(report, arguments["records"], report["nbytes"])


def _clear(files: Any, directory: str) -> None:
    files.invalidate_cache()
    for path in files.find(directory):
        files.rm_file(path)
    for path in Path(directory).glob("*/"):
        shutil.rmtree(path, ignore_errors=True)


def _records(way: str, files: Any, found: list[str], arguments: Mapping[str, Any]) -> int | None:
    """Return the number of records in objects; of plain bytes, nothing."""
    if way.startswith("plain"):
        return None
    if way == "WebDataset":
        return sum(_tar_records(files.cat_file(path)) for path in found)
    if way == "MosaicML MDS":
        [index] = [path for path in found if path.endswith("index.json")]
        return sum(int(shard["samples"]) for shard in json.loads(files.cat_file(index))["shards"])
    scheme = "s3://" if arguments["storage_options"] else ""
    urls = [f"{scheme}{path}" for path in found if path.endswith(".tfrecord")]
    with Bridge() as loop:
        shards = loop.call(check(urls, arguments["storage_options"]))
    if any(shard.faults for shard in shards):
        raise Failure("wrote damaged records")
    return sum(shard.records for shard in shards)


def _tar_records(data: bytes) -> int:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return len({name.partition(".")[0] for name in tar.getnames()})


def judge_conversion(case: Case, report: Mapping[str, Any]) -> dict[str, float]:
    """Check the shards that a conversion has written, remove them, and return the rates.

    Raises:
        Failure: Other records were written, or damaged ones.
    """
    source, out = Path(case.arguments["source"]), Path(case.arguments["dest"])
    paths = [path for path in source.rglob("*") if path.is_file()] or [source]
    records, nbytes = len(paths), sum(path.stat().st_size for path in paths)
    if source.suffix == ".csv":
        records = source.read_bytes().count(b"\n") - 1
    is_text = source.suffix == ".txt"  # how many records it gives is drawn
    if "streamrec" in case.name or is_text:
        with Bridge() as loop:
            shards = loop.call(check(f"{out}/x-*.tfrecord"))
        written = sum(shard.records for shard in shards)
        records = written if is_text and written else records
        if written != records or any(shard.faults for shard in shards):
            raise Failure(f"wrote {written} intact records, where there are {records}")
    for place in (out, Path(case.arguments["warm_up"])):
        shutil.rmtree(place, ignore_errors=True)
    return rates(report, records, nbytes)


def rates(report: Mapping[str, Any], records: int, nbytes: int) -> dict[str, float]:
    cpu = max(report["cpu_seconds"], 1e-3)
    return {
        "seconds": report["seconds"],
        "records_per_second": records / report["seconds"],
        "megabytes_per_second": nbytes / 1e6 / report["seconds"],
        "records_per_cpu_second": records / cpu,
        "cpu_seconds_per_gigabyte": cpu / (nbytes / 1e9),
    }


# -- the table -------------------------------------------------------------------------------------


def as_markdown(results: Sequence[Result]) -> str:
    """Return a table for each group."""

    def name(result: Result) -> str:
        why = "failed" if result.failures else "not installed"
        return result.case.name + ("" if result.measurements else f": {why}")

    def by_cpu(result: Result) -> float | None:
        group = result.case.group
        return times(results, result.case.title, f"{group}: TensorFlow", BY_CPU)

    columns = (
        Column("", name, str),
        Column("records/s", "records_per_second"),
        Column("MB/s", RATE),
        Column("min-max", spread(RATE), str),
        Column("CPU s/GB", "cpu_seconds_per_gigabyte"),
        Column("TensorFlow's, by CPU", by_cpu),
        Column("ratio, by MB/s", lambda result: ratios(result, results), str),
    )
    return tables_of(columns, results)


def aims_of(results: Sequence[Result]) -> list[Aim]:
    """Return the aims, ratios of one run."""
    return [
        Aim(f"{group}: {way}", f"times {other}", aim, times(results, ours, theirs, quantity))
        for group, way, other, quantity, aim in AIMS
        for ours, theirs in [(f"{group}: {way}", f"{group}: {other}")]
    ]


if __name__ == "__main__":
    main()
