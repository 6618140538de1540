"""A program that kills ``streamrec write`` at random moments, and runs it again.

``python -m tests.cli.killed_commands DIRECTORY KILLS SEED``: so many times for each of the ways to
write, on a disk and in a store. Each command is a fork, so that it has imported all it needs.
"""

from __future__ import annotations

import importlib
import os
import random
import select
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamrec.cli.program import run
from streamrec.devstore import DevStore
from streamrec.stores.base import new_object
from tests.by_day import each_once, is_day
from tests.datasets.datasets import comparable, contents
from tests.sources.folders import picture_folder
from tests.sources.tables import TABLE

if TYPE_CHECKING:
    from collections.abc import Iterator

PART = 1 << 15
"""The bytes of a part of an upload, so that small shards have several."""
RECORDS = 3000
SPLIT = ["--split", "train=0.6,test=0.4"]
TABLE_SIZE, PICTURE_SIZE = ["--shard-size", "12kB"], ["--shard-size", "200kB"]
FUNCTION = ["tests.cli.killed_commands:records", "--source-version", "1"]
SETTINGS: list[list[str]] = [
    ["pictures", "--shards", "3", *SPLIT],
    ["pictures", "--shuffle", *PICTURE_SIZE],
    [*FUNCTION, "--shards", "4", "--shuffle", *SPLIT],
    [*FUNCTION, "--shard-size", "90kB", *SPLIT],
    [str(TABLE), *TABLE_SIZE, *SPLIT],
]
"""The last one is read by processes, which take long to start."""


def records() -> Iterator[dict[str, Any]]:
    for number in range(RECORDS):
        yield {"id": number, "text": f"record {number} " * 10}


class Disk:
    """A directory for a dataset."""

    options: tuple[str, ...] = ()

    def __init__(self, number: int) -> None:
        self._path = Path(f"disk-{number}")
        shutil.rmtree(self._path, ignore_errors=True)
        self._path.mkdir()
        self.url = f"{self._path}/"

    def contents(self) -> dict[str, Any]:
        return contents(self._path)

    def uploads(self) -> list[str]:
        return []


class Bucket:
    """A prefix in the store for a dataset."""

    def __init__(self, number: int, store: DevStore) -> None:
        self._store, self._prefix = store, f"bucket/{number}/"
        self.url = f"s3://{self._prefix}"
        options = store.storage_options.items()
        self.options = tuple(f"--storage-option={name}={value}" for name, value in options)

    def contents(self) -> dict[str, Any]:
        objects = dict(self._store.objects)
        own = {name: data for name, data in objects.items() if name.startswith(self._prefix)}
        return comparable({name.removeprefix(self._prefix): data for name, data in own.items()})

    def uploads(self) -> list[str]:
        """Return the uploads that have begun, and have not ended."""
        return [upload.key for upload in self._store._s3._uploads.values()]


def started(settings: list[str], place: Disk | Bucket) -> int:
    """Begin a command in a fork, and return its id."""
    process = os.fork()
    if process:
        return process
    with Path("log").open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        source, *options = settings
        code = 1
        try:
            workers = ["--workers", "2", *place.options]
            code = run(["write", source, place.url, *options, *workers])
        finally:
            os._exit(code)


def ended(process: int, seconds: float | None) -> int:
    """Return the status of a command's end; after some seconds it is killed."""
    descriptor = os.pidfd_open(process)
    if not select.select([descriptor], [], [], seconds)[0]:
        os.kill(process, signal.SIGKILL)
    os.close(descriptor)
    return os.waitpid(process, 0)[1]


def whole(settings: list[str], place: Disk | Bucket) -> float:
    """Run a command to its end, and return its seconds."""
    begin = time.monotonic()
    assert ended(started(settings, place), None) == 0, Path("log").read_text()
    return time.monotonic() - begin


def kill(
    settings: list[str],
    place: Disk | Bucket,
    expected: dict[str, Any],
    seconds: float,
    choice: random.Random,
) -> int:
    """Kill a command, perhaps several times, and run it again; return how often it was killed."""
    kills = 0
    while True:
        kills += os.WIFSIGNALED(ended(started(settings, place), choice.uniform(0, seconds)))
        for name, data in place.contents().items():
            is_whole = name.startswith(".") or data == expected[name]
            assert is_whole, f"{settings}: {name} is not whole: {data!r}"
        if choice.random() < 0.7:
            break
    whole(settings, place)
    found = place.contents()
    wrong = [name for name in found | expected if found.get(name) != expected.get(name)]
    assert not wrong, f"{settings}: {wrong} have other bytes, or are too many or missing"
    assert place.uploads() == [], f"{settings}: uploads were left"
    return kills


def check(settings: list[str], store: DevStore | None, kills: int, choice: random.Random) -> None:
    def new(number: int) -> Disk | Bucket:
        return Disk(number) if store is None else Bucket(number, store)

    begin = new(0)
    seconds = whole(settings, begin)
    expected, done, number = begin.contents(), 0, 1
    assert len(expected) > 3
    while done < kills:
        done += kill(settings, new(number), expected, seconds, choice)
        number += 1
    print(
        f"{done} kills: {' '.join(settings)}",
        "in a store" if store else "",
        flush=True,
    )


def main(directory: str, kills: int, seed: int) -> None:
    os.chdir(directory)
    picture_folder(Path("pictures"))
    new_object.PART = PART
    # Here, so that no fork imports.
    importlib.import_module("aiobotocore.session").get_session()
    importlib.import_module("s3fs")
    Path("first").mkdir()
    assert run(["write", FUNCTION[0], "first/", *FUNCTION[1:], "--shuffle"]) == 0
    assert run(["write", "pictures", "first/", *SPLIT]) == 0
    choice = random.Random(seed)
    ways = SETTINGS[:-1] if is_day() else SETTINGS
    for settings, in_store in each_once(ways, [False, True]):
        with DevStore() as store:
            store.objects.create_bucket("bucket")
            check(settings, store if in_store else None, kills, choice)
    print("done")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
