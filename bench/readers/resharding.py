"""A process that writes shards anew in one way, and reports the time, CPU time and memory."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.stopwatch import Arguments, main, resident_megabytes, usage
from streamrec.datasets.reshard import Resharding, reshard
from streamrec.datasets.shard_source import ShardSource
from streamrec.stores.fsspec.filesystem_writer import shared_filesystem

COPIES = 8
"""Shards that a plain copier of a store's objects copies at once."""
MEMORY = 1 << 30
SHARD_BYTES = 50_000_000


def copy_files(arguments: dict[str, Any]) -> None:
    """Copy files, and flush each to the disk as a writer of shards does."""
    for path in sorted(Path(arguments["source"]).parent.glob(Path(arguments["source"]).name)):
        copy = Path(arguments["dest"]).parent / path.name
        shutil.copyfile(path, copy)
        with copy.open("rb") as file:
            os.fsync(file.fileno())


def copy_objects(arguments: dict[str, Any]) -> None:
    """Copy a store's objects with its filesystem of fsspec, through this machine."""
    files, pattern = shared_filesystem(arguments["source"], arguments["storage_options"])
    bucket = arguments["dest"].removeprefix("s3://").partition("/")[0]

    def copy(path: str) -> None:
        files.pipe_file(f"{bucket}/x-copy-{path.rpartition('/')[2]}", files.cat_file(path))

    with ThreadPoolExecutor(COPIES) as threads:
        list(threads.map(copy, files.glob(pattern)))


def reshard_with(**how: Any) -> Callable[[dict[str, Any]], None]:
    def write(arguments: dict[str, Any]) -> None:
        options = arguments["storage_options"]
        memory = arguments.get("memory", MEMORY)
        plan = Resharding(arguments["dest"], memory=memory, storage_options=options, **how)
        reshard(ShardSource.find(arguments["source"], options), plan)

    return write


WAYS: dict[str, Callable[[dict[str, Any]], None]] = {
    "copy of files": copy_files,
    "copy of objects": copy_objects,
    "reshard --shard-size 50MB": reshard_with(shard_bytes=SHARD_BYTES),
    "reshard --shards 8": reshard_with(shards=8),
    "reshard --shuffle": reshard_with(shard_bytes=SHARD_BYTES, shuffle=0),
}


def write(arguments: Arguments) -> dict[str, Any]:
    """Write as the arguments say, and return the report."""
    way = WAYS[arguments["way"]]
    idle = resident_megabytes(os.getpid())
    began, cpu = time.perf_counter(), time.process_time()
    way(arguments)
    return {
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - cpu,
        "idle_megabytes": idle,
        "peak_megabytes": usage(os.getpid()).peak_megabytes,
    }


if __name__ == "__main__":
    main({"write": write})
