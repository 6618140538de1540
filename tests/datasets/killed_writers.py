"""A program that kills writers of datasets at random calls, and runs them again.

Each writer is a fork. Python's profiler counts its calls, in all threads, and kills it at one.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import threading
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import streamrec as sr
from tests.datasets.datasets import contents

if TYPE_CHECKING:
    from collections.abc import Callable

RECORDS = 60
SETTINGS: list[dict[str, Any]] = [
    {"shards": 3},
    {"shards": 3, "source": "v1", "compression": "gzip"},
    {"shard_bytes": 300},
    {"shard_bytes": 300, "source": "v1"},
    {"shards": 4, "tasks": 2},
    {"shard_bytes": 300, "source": "v1", "tasks": 2},
]


def write(directory: Path, settings: dict[str, Any]) -> None:
    """Write a dataset as its user would: each task from its first record, then the last step."""
    settings = dict(settings)
    tasks = settings.pop("tasks", 1)
    for task in range(tasks):
        with sr.ShardedWriter(directory / "x", task=(task, tasks), **settings) as writer:
            first = writer.skip_written()
            writer.write_many({"id": [n * (task + 1)]} for n in range(first, RECORDS))
    if tasks > 1:
        sr.merge_index(directory / "x")


def child(work: Callable[[], object]) -> int:
    """Do work in a fork, and return the status of its end."""
    process = os.fork()
    if not process:
        code = 1
        try:
            work()
            code = 0
        except BaseException as error:  # noqa: BLE001 - the parent is told by the status
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(code)
    return os.waitpid(process, 0)[1]


def killed_at(call: int, work: Callable[[], object]) -> Callable[[], object]:
    """Return the work, which ends the process at a call; or notes how many calls it took."""
    calls = count()

    def profile(*_: Any) -> None:
        if next(calls) == call:
            os.kill(os.getpid(), signal.SIGKILL)

    def run() -> None:
        threading.setprofile(profile)
        sys.setprofile(profile)
        work()
        sys.setprofile(None)
        Path("calls").write_text(str(next(calls)))

    return run


def check(number: int, settings: dict[str, Any], calls: int, choice: random.Random) -> None:
    """Kill a writer, perhaps several times; it ends with the right bytes, and nothing else."""
    expected, here = contents(Path("expected")), Path(f"killed-{number}")
    shutil.rmtree(here, ignore_errors=True)
    here.mkdir()
    killed = True
    while killed:
        killed = bool(child(killed_at(choice.randrange(calls), lambda: write(here, settings))))
        for name, data in contents(here).items():
            is_whole = name.startswith(".") or data == expected[name]
            assert is_whole, f"{settings}: {name} is not whole: {data!r}"
        if choice.random() < 0.6:
            break
    is_complete = (here / "x.streamrec-manifest.json").exists()
    # Without a source it cannot be told whether another run has the same records.
    is_refused = is_complete and "source" not in settings
    assert bool(child(lambda: write(here, settings))) == is_refused
    found = contents(here)
    wrong = [name for name in found | expected if found.get(name) != expected.get(name)]
    assert not wrong, f"{settings}: {wrong} have other bytes, or are too many or missing"


def main(directory: str, kills: int, seed: int) -> None:
    os.chdir(directory)
    choice = random.Random(seed)
    for settings in SETTINGS:
        shutil.rmtree("expected", ignore_errors=True)
        Path("expected").mkdir()
        write(Path("expected"), settings)  # here too, so that no fork imports
        shutil.rmtree("expected")
        Path("expected").mkdir()
        never = killed_at(-1, partial(write, Path("expected"), settings))
        assert child(never) == 0
        calls = int(Path("calls").read_text())
        for number in range(kills):
            check(number, settings, calls, choice)
    print("done")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
