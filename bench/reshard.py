"""Writing shards anew: the rate beside a plain copy, and a shuffle of more than memory holds.

::

    python -m bench.reshard --output bench/results

Records of 2 KB and of 110 KB, sorted by class, go from the local disk to the local disk, and from a
store with 20 ms to the first byte to itself: once as fast as both can, sharing the machine, and
once with a link of 40 MB/s from the store. Local writers flush each shard to the disk. The shuffle
has a tenth of the data's size as its memory; its *chi-square* is that of ``bench.shuffle``: 1 is
perfect. Peak memory is that of the whole process, with Python.

``--large-gigabytes 20`` shuffles 20 GB with a GiB of memory, too. Its records are zeros behind
their numbers, and its shards are compressed, so that only the temporary file takes so much of the
disk. It runs once.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from bench.console import case_options, print_failures, run, selected
from bench.markdown import number, table
from bench.measure import Case, Failure
from bench.progress import say
from bench.resharding.sorted_shards import SortedShards
from bench.results import facts, rows, write
from bench.services import STORE_KEYS, store
from bench.shuffling.quality import quality
from streamrec.stores.fsspec.filesystem_writer import shared_filesystem

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from bench.measure import Judge, Result

BATCH_SIZE = 256
KINDS = {"2 KB": 2_000, "110 KB": 110_000}
LOCAL = ("copy of files", "reshard --shard-size 50MB", "reshard --shards 8")
REMOTE = ("copy of objects", "reshard --shard-size 50MB", "reshard --shards 8")
LATENCY = 0.02
LINK = 40_000_000
"""Bytes a second that the store sends over the slower link."""
LARGE_RECORD_BYTES, LARGE_MEMORY = 2_000, 1 << 30
HEAD = ["", "MB/s", "of a copy", "CPU s/GB", "idle, MB", "peak, MB", "chi-square"]


@click.command()
@case_options(3)
@click.option("--megabytes", default=500.0, show_default=True, help="Size of the data to reshard.")
@click.option(
    "--shuffle-megabytes", default=1000.0, show_default=True, help="Size of the data to shuffle."
)
@click.option(
    "--large-gigabytes", default=0.0, show_default=True, help="Size to shuffle in a GiB of memory."
)
def main(
    *,
    output: Path | None,
    data: Path,
    repeat: int,
    only: tuple[str, ...],
    megabytes: float,
    shuffle_megabytes: float,
    large_gigabytes: float,
) -> None:
    """Measure, print tables, and write JSON and Markdown."""
    data.mkdir(parents=True, exist_ok=True)
    results = _large(data, large_gigabytes, only) if large_gigabytes else []
    for kind, record_bytes in KINDS.items():
        for measure, size in (
            (_disk, megabytes),
            (_shuffle, shuffle_megabytes),
            (_store, megabytes),
            (partial(_store, link=LINK), megabytes),
        ):
            with tempfile.TemporaryDirectory(dir=data) as directory:
                records = round(size * 1e6 / record_bytes)
                shards = SortedShards(Path(directory, "bucket"), record_bytes, records)
                results += measure(kind, shards, repeat, only)
    report = as_markdown(results)
    click.echo(report)
    print_failures(results)
    if output is not None:
        settings = {
            "megabytes": megabytes,
            "shuffle_megabytes": shuffle_megabytes,
            "shuffle_memory": round(shuffle_megabytes * 1e5),
            "large_gigabytes": large_gigabytes,
            "batch_size": BATCH_SIZE,
            "rounds": repeat,
        }
        write(output, "reshard", facts("reshard", settings=settings, rows=rows(results)), report)
    sys.exit(any(result.failures for result in results))


def _measured(
    cases: Sequence[Case], judge: Judge, repeat: int, only: Sequence[str]
) -> list[Result]:
    wanted = [case for case in cases if selected(case, only)]
    return run(wanted, judge, repeat) if wanted else []


def _disk(kind: str, shards: SortedShards, repeat: int, only: Sequence[str]) -> list[Result]:
    """Reshard from the local disk to the local disk."""
    return _locally(kind, shards, repeat, only, "disk to disk", LOCAL)


def _shuffle(kind: str, shards: SortedShards, repeat: int, only: Sequence[str]) -> list[Result]:
    """Shuffle with a tenth of the data's size as memory."""
    group, ways = "shuffle, a tenth in memory", ("copy of files", "reshard --shuffle")
    return _locally(kind, shards, repeat, only, group, ways, memory=shards.nbytes // 10)


def _large(data: Path, gigabytes: float, only: Sequence[str]) -> list[Result]:
    """Shuffle compressed shards of more than memory holds."""
    group, ways = f"shuffle of {gigabytes:g} GB, 1 GiB of memory", ("reshard --shuffle",)
    with tempfile.TemporaryDirectory(dir=data) as directory:
        records = round(gigabytes * 1e9 / LARGE_RECORD_BYTES)
        shards = SortedShards(Path(directory, "bucket"), LARGE_RECORD_BYTES, records, ".zst")
        return _locally("2 KB", shards, 1, only, group, ways, memory=LARGE_MEMORY)


def _locally(
    kind: str,
    shards: SortedShards,
    repeat: int,
    only: Sequence[str],
    group: str,
    ways: Sequence[str],
    **more: Any,
) -> list[Result]:
    out = shards.directory.with_name("out")
    arguments = {"source": shards.pattern, "storage_options": {}, **more}
    cases = [
        _case(f"{group}: {kind}", way, arguments, f"{out}/x.tfrecord{shards.suffix}")
        for way in ways
    ]
    if not any(selected(case, only) for case in cases):
        return []
    say(f"writing {shards.nbytes / 1e6:,.0f} MB of records of {kind}")
    shards.write()
    out.mkdir()

    def clear() -> None:
        shutil.rmtree(out)
        out.mkdir()

    judge = partial(judged, shards, f"{out}/x-*.tfrecord{shards.suffix}", None, clear)
    return _measured(cases, judge, repeat, only)


def _store(
    kind: str, shards: SortedShards, repeat: int, only: Sequence[str], link: int | None = None
) -> list[Result]:
    """Reshard from a store to the same store, which may send only so many bytes a second."""
    over = "" if link is None else f", {link / 1e6:.0f} MB/s"
    group = f"store to store, {LATENCY * 1000:.0f} ms{over}: {kind}"
    arguments: dict[str, Any] = {"source": "s3://bucket/x-*.tfrecord"}
    if not any(selected(_case(group, way, arguments, ""), only) for way in REMOTE):
        return []
    shards.write()
    caps = {} if link is None else {"link": link}
    with store(latency=LATENCY, bandwidth=None, caps=caps) as served:
        arguments["storage_options"] = options = {"endpoint_url": served.endpoint, **STORE_KEYS}
        files, _ = shared_filesystem("s3://out", options)
        for bucket in ("bucket", "out"):
            files.mkdir(bucket)
        for path in shards.directory.glob("x-*.tfrecord"):
            files.pipe_file(f"bucket/{path.name}", path.read_bytes())

        def clear() -> None:
            files.invalidate_cache()
            for path in files.ls("out"):
                files.rm_file(path)

        cases = [_case(group, way, arguments, "s3://out/x.tfrecord") for way in REMOTE]
        judge = partial(judged, shards, "s3://out/x-*.tfrecord", options, clear)
        return _measured(cases, judge, repeat, only)


def _case(group: str, way: str, arguments: Mapping[str, Any], dest: str) -> Case:
    return Case(group, way, "bench.resharding.ways", {**arguments, "way": way, "dest": dest})


def judged(
    shards: SortedShards,
    written: str,
    storage_options: Mapping[str, Any] | None,
    clear: Callable[[], None],
    _: Case,
    report: Mapping[str, float],
) -> dict[str, float]:
    """Check what was written, remove it, and return the rates.

    Raises:
        Failure: Other records were written, or damaged ones.
    """
    order = shards.order(written, storage_options)
    clear()
    if not np.array_equal(np.sort(order), np.arange(shards.records)):
        raise Failure(f"wrote {len(order)} records that are not the {shards.records} of the source")
    gigabytes = shards.nbytes / 1e9
    return {
        "seconds": report["seconds"],
        "megabytes_per_second": gigabytes * 1000 / report["seconds"],
        "cpu_seconds_per_gigabyte": report["cpu_seconds"] / gigabytes,
        "idle_megabytes": report["idle_megabytes"],
        "peak_megabytes": report["peak_megabytes"],
        "chi_square": quality(order, shards.classes(), BATCH_SIZE)["chi_square"],
    }


def as_markdown(results: Sequence[Result]) -> str:
    """Return a table for each group."""
    parts = []
    for group in dict.fromkeys(result.case.group for result in results):
        own = [result for result in results if result.case.group == group]
        copy = own[0].median("megabytes_per_second") if "copy" in own[0].case.name else None
        parts.append(f"{group}\n\n{table(HEAD, [_row(result, copy) for result in own])}")
    return "\n\n".join(parts)


def _row(result: Result, copy: float | None) -> list[str]:
    rate = result.median("megabytes_per_second")
    share = None if rate is None or copy is None else rate / copy
    rest = ("cpu_seconds_per_gigabyte", "idle_megabytes", "peak_megabytes", "chi_square")
    return [result.case.name, *map(number, (rate, share, *map(result.median, rest)))]


if __name__ == "__main__":
    main()
