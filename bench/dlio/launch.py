"""Runs DLIO once, in an interpreter that has it, and prints what it measured as one JSON line."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import struct
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.stopwatch import helpers_usage, usage


def write_index(command: Sequence[str]) -> int:
    """Write the index of a shard that DALI reads: offset and size of each frame on a line.

    It takes the place of DALI's program ``tfrecord2idx``, which DLIO starts for each shard and
    which takes seconds to start.

    Args:
        command: The program's name, the shard, and the index.
    """
    _, shard, index = command
    lines = [f"{offset} {size}\n" for offset, size in frames(Path(shard).read_bytes())]
    Path(index).write_text("".join(lines))
    return 0


def frames(shard: bytes) -> Iterator[tuple[int, int]]:
    """Yield offset and size of each frame: a length of 8 bytes, 4, the record, and 4."""
    offset = 0
    while offset < len(shard):
        size = 8 + 4 + struct.unpack_from("<Q", shard, offset)[0] + 4
        yield offset, size
        offset += size


def report(folder: Path) -> dict[str, Any]:
    """Return what a run has measured, from the files that it wrote.

    Args:
        folder: DLIO's folder of output.
    """
    metric = json.loads((folder / "summary.json").read_text())["metric"]
    output = json.loads((folder / "0_output.json").read_text())
    loads = [output[str(epoch + 1)]["load"]["block1"] for epoch in range(len(_epochs(metric)))]
    return {
        "utilisation": _epochs(metric),
        "samples_per_second": metric["train_throughput_samples_per_second"],
        "steps": [len(load) for load in loads],
        "first_batch_seconds": [load[0] for load in loads],
    }


def _epochs(metric: dict[str, Any]) -> list[float]:
    found: list[float] = metric["train_au_percentage"]
    return found


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of those that it started."""
    return usage(os.getpid()).cpu_seconds + helpers_usage(os.getpid()).cpu_seconds


def main() -> None:
    """Run DLIO as the arguments say, and print the report."""
    arguments = json.loads(sys.argv[-1])
    with contextlib.redirect_stdout(sys.stderr), tempfile.TemporaryDirectory() as directory:
        for name in arguments["imports"]:
            importlib.import_module(name)
        benchmark = importlib.import_module("dlio_benchmark.main")
        importlib.import_module("dlio_benchmark.data_generator.tf_generator").call = write_index  # type: ignore[attr-defined]
        sys.argv = ["dlio_benchmark", *arguments["overrides"], f"hydra.run.dir={directory}"]
        used, began = cpu_seconds(), time.perf_counter()
        benchmark.main()
        found = {"cpu_seconds": cpu_seconds() - used, "seconds": time.perf_counter() - began}
        if arguments["trains"]:
            found |= report(Path(directory))
    print(json.dumps(found), flush=True)
    os._exit(0)  # tensorflow-io aborts where it is taken down in the usual way


if __name__ == "__main__":
    main()
