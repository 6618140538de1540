"""Writing shards anew: the rate beside a plain copy, and a shuffle of more than memory holds.

Records of 2 KB and of 110 KB, sorted by class, go from the local disk to the local disk, and from a
store with 20 ms to the first byte to itself: once as fast as both can, sharing the machine, and
once with a link of 40 MB/s from the store. Local writers flush each shard to the disk. The shuffle
has a tenth of the data's size as its memory; its *chi-square* is that of ``bench.shuffle``: 1 is
perfect. Peak memory is that of the whole process, with Python.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from bench.cases import RATE, Case, Failure, Result, say
from bench.harness import Column, Report, Run, benchmark, tables_of
from bench.services import STORE_KEYS, store
from streamrec.datasets.shard_source import ShardSource
from streamrec.datasets.sharded_writer import ShardedWriter
from streamrec.measure.shuffling import mixing_of
from streamrec.stores.fsspec.filesystem_writer import shared_filesystem
from streamrec.values.columns import BytesColumn, offsets_of

BATCH_SIZE = 256
KINDS = {"2 KB": 2_000, "110 KB": 110_000}
LOCAL = ("copy of files", "reshard --shard-size 50MB", "reshard --shards 8")
REMOTE = ("copy of objects", "reshard --shard-size 50MB", "reshard --shards 8")
OVER_LINK = "110 KB"
"""The kind of records that are resharded over the slow link, too."""
LATENCY = 0.02
LINK = 40_000_000
"""Bytes a second that the store sends over the slower link."""
SHARD_BYTES = 32_000_000
CLASSES = 100
BLOCK = 4 << 20


@dataclass(frozen=True)
class SortedShards:
    """Records of one size, whose first eight bytes are their numbers; the rest is random."""

    directory: Path
    record_bytes: int
    records: int

    @property
    def pattern(self) -> str:
        """Return the glob of the shards."""
        return f"{self.directory}/x-*.tfrecord"

    @property
    def nbytes(self) -> int:
        return self.records * self.record_bytes

    def write(self) -> None:
        self.directory.mkdir()
        each = max(1, BLOCK // self.record_bytes)
        random = np.random.default_rng(0)
        path = self.directory / "x.tfrecord"
        with ShardedWriter(path, shard_bytes=SHARD_BYTES) as writer:
            for first in range(0, self.records, each):
                count = min(each, self.records - first)
                values = random.integers(0, 256, (count, self.record_bytes), np.uint8)
                values[:, :8] = np.arange(first, first + count)[:, None].view(np.uint8)
                offsets = offsets_of(np.full(count, self.record_bytes, np.int64))
                writer.write_many(BytesColumn(values.reshape(-1), offsets))

    def order(
        self, source: str, storage_options: Mapping[str, Any] | None = None
    ) -> npt.NDArray[np.int64]:
        """Return the numbers of the records of other shards, in their order."""
        blocks = ShardSource.find(source, storage_options).blocks()
        heads = [
            block.values[block.offsets[:-1, None] + np.arange(8)].copy().view(np.int64)[:, 0]
            for block in blocks
        ]
        return np.concatenate(heads)

    def classes(self) -> npt.NDArray[np.int64]:
        """Return the class of each record number."""
        return np.arange(self.records) * CLASSES // self.records


@benchmark("reshard", repeat=3, only=True, data=True)
@click.option("--megabytes", default=500.0, show_default=True, help="Size of the data to reshard.")
@click.option(
    "--shuffle-megabytes", default=1000.0, show_default=True, help="Size of the data to shuffle."
)
def main(run: Run, *, megabytes: float, shuffle_megabytes: float) -> Report:
    run.data.mkdir(parents=True, exist_ok=True)
    for kind, record_bytes in KINDS.items():
        ways: list[tuple[Callable[[Run, str, SortedShards], None], float]] = [
            (_disk, megabytes),
            (_shuffle, shuffle_megabytes),
            (_store, megabytes),
        ]
        if kind == OVER_LINK:
            ways.append((partial(_store, link=LINK), megabytes))
        for measure, size in ways:
            with tempfile.TemporaryDirectory(dir=run.data) as directory:
                records = round(size * 1e6 / record_bytes)
                shards = SortedShards(Path(directory, "bucket"), record_bytes, records)
                measure(run, kind, shards)
    settings = {
        "megabytes": megabytes,
        "shuffle_megabytes": shuffle_megabytes,
        "shuffle_memory": round(shuffle_megabytes * 1e5),
        "batch_size": BATCH_SIZE,
        "rounds": run.repeat,
    }
    return Report(as_markdown(run.results), {"settings": settings})


def _disk(run: Run, kind: str, shards: SortedShards) -> None:
    _locally(run, f"disk to disk: {kind}", shards, LOCAL)


def _shuffle(run: Run, kind: str, shards: SortedShards) -> None:
    group, ways = f"shuffle, a tenth in memory: {kind}", ("copy of files", "reshard --shuffle")
    _locally(run, group, shards, ways, memory=shards.nbytes // 10)


def _locally(run: Run, group: str, shards: SortedShards, ways: Sequence[str], **more: Any) -> None:
    out = shards.directory.with_name("out")
    arguments = {"source": shards.pattern, "storage_options": {}, **more}
    cases = [_case(group, way, arguments, f"{out}/x.tfrecord") for way in ways]
    if not run.choose(cases):
        return
    say(f"writing {shards.nbytes / 1e6:,.0f} MB of records")
    shards.write()
    out.mkdir()

    def clear() -> None:
        shutil.rmtree(out)
        out.mkdir()

    check = partial(judge, shards, f"{out}/x-*.tfrecord", None, clear)
    run.measure(cases, check)


def _store(run: Run, kind: str, shards: SortedShards, link: int | None = None) -> None:
    """Reshard from a store to the same store, which may send only so many bytes a second."""
    over = "" if link is None else f", {link / 1e6:.0f} MB/s"
    group = f"store to store, {LATENCY * 1000:.0f} ms{over}: {kind}"
    arguments: dict[str, Any] = {"source": "s3://bucket/x-*.tfrecord"}
    if not run.choose([_case(group, way, arguments, "") for way in REMOTE]):
        return
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
        run.measure(cases, partial(judge, shards, "s3://out/x-*.tfrecord", options, clear))


def _case(group: str, way: str, arguments: Mapping[str, Any], dest: str) -> Case:
    return Case(group, way, "readers.resharding write", {**arguments, "way": way, "dest": dest})


def judge(
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
        "chi_square": mixing_of(shards.classes()[order], BATCH_SIZE).chi_square,
    }


def as_markdown(results: Sequence[Result]) -> str:
    """Return a table for each group, whose first way is a plain copy, if there is one."""
    copies = {one.case.group: one for one in reversed(results) if "copy" in one.case.name}

    def of_copy(result: Result) -> float | None:
        copy = copies.get(result.case.group)
        ours, theirs = result.median(RATE), copy and copy.median(RATE)
        return ours / theirs if ours and theirs else None

    columns = (
        Column("", lambda result: result.case.name, str),
        Column("MB/s", RATE),
        Column("of a copy", of_copy),
        Column("CPU s/GB", "cpu_seconds_per_gigabyte"),
        Column("idle, MB", "idle_megabytes"),
        Column("peak, MB", "peak_megabytes"),
        Column("chi-square", "chi_square"),
    )
    return tables_of(columns, results, "{}")


if __name__ == "__main__":
    main()
