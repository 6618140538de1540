"""The checks of what writers have written."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.measure import Failure
from streamrec.datasets.verify import check
from streamrec.flow.bridge import Bridge
from streamrec.stores.fsspec.filesystem_writer import shared_filesystem

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bench.measure import Case


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
    # Ray calls its shards .tar, though they are TFRecords.
    urls = [f"{scheme}{path}" for path in found if path.endswith((".tfrecord", ".tar"))]
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
    """Return the rates by the clock and by CPU time."""
    cpu = max(report["cpu_seconds"], 1e-3)
    return {
        "seconds": report["seconds"],
        "records_per_second": records / report["seconds"],
        "megabytes_per_second": nbytes / 1e6 / report["seconds"],
        "records_per_cpu_second": records / cpu,
        "cpu_seconds_per_gigabyte": cpu / (nbytes / 1e9),
    }
