"""What goes wrong in ``streamrec write``: one sentence, and nothing half-written is visible."""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.by_day import at_night
from tests.cli.support import assert_one_sentence
from tests.cli.support import streamrec as cli
from tests.datasets.datasets import contents, names
from tests.datasets.test_write_faults import place, unprivileged, visible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["place"]  # a fixture

RECORDS = 200
FAULT: list[Callable[[], object]] = []
"""What happens in the middle of the records, once."""
WAYS = [
    ["--shards", "2"],
    at_night(["--shard-size", "150kB"]),
    ["--shard-size", "150kB", "--split", "train=0.5,test=0.5", "--shuffle"],
]


def records() -> Iterator[dict[str, Any]]:
    for number in range(RECORDS):
        if number == RECORDS // 2 and FAULT:
            FAULT.pop()()
        yield {"id": number, "data": b"%05000d" % number}


def write(directory: Path, *options: str) -> Any:
    name = "tests.cli.test_write_faults:records"
    return cli("write", name, directory / "x", "--source-version", "1", *options)


def mounted(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no filesystem can be mounted: {done.stderr}")


@contextmanager
def disk(directory: Path, size: str) -> Iterator[None]:
    """Mount a filesystem of a size."""
    if os.geteuid():
        pytest.skip("only root can mount a filesystem")
    mounted("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(directory))
    try:
        yield
    finally:
        subprocess.run(["umount", str(directory)], check=True)


@pytest.fixture(params=WAYS, ids=str)
def way(request: pytest.FixtureRequest) -> list[str]:
    way: list[str] = request.param
    return way


@pytest.fixture
def expected(tmp_path: Path, way: list[str]) -> dict[str, Any]:
    (tmp_path / "whole").mkdir()
    assert write(tmp_path / "whole", *way).code == 0
    return contents(tmp_path / "whole")


def test_a_disk_that_is_full(place: Path, way: list[str], expected: dict[str, Any]) -> None:
    with disk(place, "600k"):
        assert_one_sentence(write(place, *way), 1, f"{place}", "No space left", "write it again")
        assert visible(place) == []
        mounted("mount", "-o", "remount,size=20m", str(place))
        assert write(place, *way).code == 0
        assert contents(place) == expected


def test_a_disk_that_is_read_only(place: Path, way: list[str], expected: dict[str, Any]) -> None:
    with disk(place, "20m"):
        mounted("mount", "-o", "remount,ro", str(place))
        assert_one_sentence(write(place, *way), 1, f"{place}", "Read-only", "write it again")
        assert names(place) == []
        mounted("mount", "-o", "remount,rw", str(place))
        assert write(place, *way).code == 0
        assert contents(place) == expected


def test_a_permission_that_is_lost(place: Path, way: list[str], expected: dict[str, Any]) -> None:
    loss = unprivileged(place)
    FAULT.append(loss.__enter__)
    try:
        refused = write(place, *way)
    finally:
        loss.__exit__(None, None, None)
    assert_one_sentence(refused, 1, "may not be written; check the permissions")
    assert visible(place) == []
    assert write(place, *way).code == 0
    assert contents(place) == expected


def test_a_function_that_fails(place: Path, way: list[str], expected: dict[str, Any]) -> None:
    def fail() -> None:
        raise OSError("the database has gone away")

    FAULT.append(fail)
    refused = write(place, *way)
    assert_one_sentence(refused, 1, "raised OSError for record 100: the database has gone away")
    assert visible(place) == []
    assert write(place, *way).code == 0
    assert contents(place) == expected


def test_a_dataset_that_is_there(place: Path, way: list[str], expected: dict[str, Any]) -> None:
    assert write(place, *way).code == 0
    refused = write(place, *way, "--compression", "gzip")
    assert_one_sentence(
        refused, 2, "compression is none in that one, and gzip in this one", "overwrite=True"
    )
    assert contents(place) == expected
