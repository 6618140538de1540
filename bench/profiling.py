"""Profiles a client: counts samples of its Python stacks by what the innermost frames do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bench.harness import Case, number, say, table
from bench.machine import ROOT

RATE = 200
"""Samples a second."""
START, WAIT = "starting", "waiting"
KINDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (START, ("(<frozen importlib", "import_all (", "touch (bench/stopwatch.py")),
    (WAIT, ("_worker (concurrent/", "wait (threading.py", "select (selectors.py", "(queue.py")),
    ("scan: frames and CRC", ("(streamrec/kernel/native/frames.py", "scan_frames", "crc32c")),
    (
        "parse, and gather into batches",
        ("(streamrec/kernel/native/", "(streamrec/kernel/reference"),
    ),
    ("copy into ranges", ("readinto (", "_read_nowait (", "_read_nowait_chunk (")),
    ("feed: the engine's socket", ("(streamrec/feeder/", "(streamrec/wire/", "batch/payload.py)")),
    ("HTTP", ("(aiohttp/", "(streamrec/stores/", "(yarl/", "(multidict/")),
    ("event loop, sockets, TLS", ("(asyncio/", "(ssl.py", "(uvloop/")),
    ("Python: planning, lanes, batches", ("(streamrec/",)),
)
"""Kinds of work, and parts of the frames that do it; the first kind that matches a frame counts.
Under uvloop sockets and TLS have no frames of their own: their samples are the loop's."""
OTHER = "other Python"


def py_spy() -> str | None:
    """Return the path of py-spy, beside this interpreter or on the path, or ``None``."""
    own = Path(sys.executable).with_name("py-spy")
    return str(own) if own.exists() else shutil.which("py-spy")


def profile_cases(rows: Sequence[Case], gigabytes: float) -> tuple[str, list[dict[str, Any]]]:
    """Run each case once under the profiler; return a table, and the same as plain data.

    Args:
        rows: Cases of one group that read streams.
        gigabytes: Gigabytes that each case reads.
    """
    found = [_profile(case, gigabytes) for case in rows]
    kinds = [name for name, _ in KINDS if name not in (START, WAIT)] + [OTHER]
    cells = [
        [kind, *(_cell(one, kind) for one in found)]
        for kind in kinds
        if any(one["seconds_per_gigabyte"][kind] for one in found)
    ]
    total = ["together", *(number(one["cpu_seconds_per_gigabyte"]) for one in found)]
    names = [str(one["case"]) for one in found]
    head = f"### where the client's time goes, {rows[0].group}: CPU s/GB, and share\n\n"
    return f"{head}{table(['', *names], [*cells, total])}\n", found


def _cell(one: dict[str, Any], kind: str) -> str:
    seconds = one["seconds_per_gigabyte"][kind]
    share = seconds / one["cpu_seconds_per_gigabyte"]
    return f"{number(seconds)} ({share:.0%})"


def _profile(case: Case, gigabytes: float) -> dict[str, Any]:
    say(f"profiling {case.title}")
    with tempfile.TemporaryDirectory() as directory:
        samples = Path(directory, "samples")
        program = py_spy()
        assert program is not None
        command = [program, "record", "--subprocesses", "--rate", str(RATE), "--format", "raw"]
        command += ["--output", str(samples), "--", *case.command(companions={})]
        environment = {**os.environ, **case.environment, "AWS_EC2_METADATA_DISABLED": "true"}
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
        )
        counts = _by_work(samples.read_text().splitlines())
    line = next(line for line in done.stdout.splitlines() if line.startswith("{"))
    report = json.loads(line)
    cpu = sum(report["cpu_seconds"].values()) / gigabytes
    counted = sum(counts.values())
    return {
        "group": case.group,
        "case": case.name,
        "samples": counted,
        "cpu_seconds_per_gigabyte": cpu,
        "seconds_per_gigabyte": {
            kind: cpu * counts[kind] / counted for kind in [*(name for name, _ in KINDS), OTHER]
        },
    }


def _by_work(lines: Iterable[str]) -> Counter[str]:
    """Count the samples of each kind of work, in running threads and after the start."""
    counts: Counter[str] = Counter()
    for line in lines:
        stack, _, samples = line.rpartition(" ")
        counts[work_of(stack.split(";"))] += int(samples)
    del counts[START], counts[WAIT]
    return counts


def work_of(frames: Sequence[str]) -> str:
    """Return the kind of work that a stack does.

    Args:
        frames: Frames as py-spy names them, the innermost last.
    """
    if any(_matches(frame, KINDS[0][1]) for frame in frames):
        return START
    for frame in reversed(frames):
        for kind, parts in KINDS:
            if _matches(frame, parts):
                return kind
    return OTHER


def _matches(frame: str, parts: Sequence[str]) -> bool:
    return any(part in frame for part in parts)
