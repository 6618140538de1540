from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from streamrec.config import DatasetSettings, cores
from streamrec.config.server_settings import ServerSettings

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def four_cores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cores, "CGROUP", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2, 4, 6})
    (tmp_path / "cpu").mkdir()


@pytest.mark.parametrize(
    ("files", "usable"),
    [
        ({}, 4),
        ({"cpu.max": "max 100000\n"}, 4),
        ({"cpu.max": "250000 100000\n"}, 2),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "6400000 100000\n"}, 4),
        ({"cpu.max": "nonsense"}, 4),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4),
    ],
)
def test_the_cores_of_the_affinity_and_the_quota(
    files: dict[str, str], usable: int, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert cores.usable_cores() == usable


def test_where_there_is_no_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert cores.usable_cores() == 1


def test_the_number_of_workers() -> None:
    assert cores.worker_count(ServerSettings()) == 1
    assert cores.worker_count(ServerSettings(workers=3)) == 3
    assert cores.worker_count(ServerSettings(workers="auto")) == 4


@pytest.mark.parametrize(
    ("cores_here", "ranks", "number"),
    [(1, 1, 0), (2, 1, 0), (4, 1, 1), (8, 1, 3), (8, 2, 1), (96, 1, 4)],
)
def test_the_number_of_fetch_processes(
    monkeypatch: pytest.MonkeyPatch, cores_here: int, ranks: int, number: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores_here)))
    monkeypatch.setattr(cores, "local_ranks", lambda: ranks)
    settings = DatasetSettings(source="x", fetch_processes="auto")
    assert cores.fetch_process_count(settings) == number


def test_a_number_of_fetch_processes_is_that_number(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cores.fetch_process_count(DatasetSettings(source="x")) == 0
    assert cores.fetch_process_count(DatasetSettings(source="x", fetch_processes=7)) == 7
    monkeypatch.delattr(os, "memfd_create", raising=False)
    assert cores.fetch_process_count(DatasetSettings(source="x", fetch_processes="auto")) == 0


def test_fetch_processes_need_an_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "usable_cores", lambda: 16)
    settings = DatasetSettings(source="x", fetch_processes="auto")
    assert cores.fetch_process_count(settings) > 0
    monkeypatch.setattr(sys, "executable", "")
    assert cores.fetch_process_count(settings) == 0
