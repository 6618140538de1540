"""Compressed shards from local files: ``python -m bench.compression``.

Each reader reads the same records, as raw bytes in batches of 64, in a process of its own; best of
three. MB/s and seconds of processor are of the decompressed bytes.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import os
import resource
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import streamrec as sr
from bench.datasets import images, tokens
from bench.machine import describe
from streamrec.formats.shards.tfrecord import FrameScanner

if TYPE_CHECKING:
    from collections.abc import Callable

BATCH = 64
KINDS = ("none", "gzip", "zlib", "zstd")
DATASETS = {"tokens": tokens, "images": images}
ROUNDS = 3


def read_with_streamrec(paths: list[str], kind: str) -> int:
    async def main() -> int:
        async with sr.open(paths, batch_size=BATCH, compression=kind) as stream:
            return sum([len(batch.records.values) async for batch in stream])

    return asyncio.run(main())


def read_with_python(paths: list[str], kind: str) -> int:
    """The standard library, one shard after the other; streamrec's scan finds the records."""
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    decompress: dict[str, Callable[[bytes], bytes]] = {
        "none": lambda data: data,
        "gzip": gzip.decompress,
        "zlib": zlib.decompress,
        "zstd": zstd.decompress,
    }
    total = 0
    for path in paths:
        data = np.frombuffer(decompress[kind](Path(path).read_bytes()), np.uint8)
        blocks, _ = FrameScanner(url=path).scan(data, more=False)
        total += sum(int(block.lengths.sum()) for block in blocks)
    return total


def read_with_tf_data(paths: list[str], kind: str) -> int:
    import tensorflow as tf

    kinds = {"none": "", "gzip": "GZIP", "zlib": "ZLIB"}
    files = tf.data.Dataset.from_tensor_slices(paths)
    dataset = files.interleave(
        lambda path: tf.data.TFRecordDataset(path, compression_type=kinds[kind]),
        cycle_length=len(paths),
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=False,
    )
    dataset = dataset.batch(BATCH).prefetch(tf.data.AUTOTUNE)
    return sum(sum(map(len, batch)) for batch in dataset.as_numpy_iterator())


READERS: dict[str, Callable[[list[str], str], int]] = {
    "streamrec": read_with_streamrec,
    "python": read_with_python,
    "tf.data": read_with_tf_data,
}


def one(reader: str, kind: str, directory: Path) -> None:
    """Read once for the imports, then once on the clock; prints one JSON line."""
    paths = sorted(str(path) for path in directory.iterdir())
    READERS[reader](paths[:1], kind)
    before, started = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    nbytes = READERS[reader](paths, kind)
    seconds = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(json.dumps({"nbytes": nbytes, "seconds": seconds, "cpu_seconds": cpu}))


def best(reader: str, kind: str, directory: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.compression", "--one", reader, kind, str(directory)]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    runs = [
        json.loads(subprocess.run(command, capture_output=True, check=True, env=environment).stdout)
        for _ in range(ROUNDS)
    ]
    run = min(runs, key=lambda run: run["seconds"])
    return {
        "reader": reader,
        "compression": kind,
        "megabytes": run["nbytes"] / 1e6,
        "megabytes_per_second": run["nbytes"] / 1e6 / run["seconds"],
        "megabytes_per_cpu_second": run["nbytes"] / 1e6 / run["cpu_seconds"],
    }


def write(kind: str, paths: list[Path], directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for path in paths:
        target = directory / path.name
        if not target.exists():
            with sr.TFRecordWriter(target, kind) as writer:
                writer.write_many(sr.read_records(str(path)))


def main(root: Path, megabytes: int, out: Path) -> None:
    rows: list[dict[str, Any]] = []
    for name, make in DATASETS.items():
        dataset = make(root, megabytes)
        for kind in KINDS:
            directory = root / f"{dataset.name}-{kind}"
            write(kind, dataset.paths, directory)
            stored = sum(path.stat().st_size for path in directory.iterdir())
            for reader in READERS:
                if (reader, kind) == ("tf.data", "zstd"):
                    continue
                row: dict[str, Any] = {"dataset": name, "ratio": dataset.nbytes / stored}
                rows.append(row | best(reader, kind, directory))
                print(
                    "{dataset:7} {compression:5} {ratio:5.2f}:1 {reader:10} "
                    "{megabytes_per_second:7.0f} MB/s {megabytes_per_cpu_second:7.0f} MB a "
                    "processor second".format(**rows[-1])
                )
    out.write_text(json.dumps({"machine": describe(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path("/tmp/streamrec-bench"))
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path("bench/results/compression.json"))
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        one(arguments.one[0], arguments.one[1], Path(arguments.one[2]))
    else:
        main(arguments.root, arguments.megabytes, arguments.out)
