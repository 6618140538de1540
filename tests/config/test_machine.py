from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest
from pydantic import ByteSize

from streamrec.config import DatasetSettings, machine, validate
from streamrec.config.daemon import DaemonSettings
from streamrec.config.machine import daemon_budget, memory_budget, record_limit, shared_limit
from streamrec.config.server_settings import ServerSettings
from streamrec.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


def test_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    automatic = validate(DatasetSettings, {"source": "x"})
    explicit = validate(DatasetSettings, {"source": "x", "memory_budget": "64MiB"})
    assert memory_budget(explicit) == 64 << 20
    monkeypatch.setattr(machine, "_memory_limit", lambda: 2 << 30)
    assert memory_budget(automatic) == 512 << 20
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert memory_budget(automatic) == 128 << 20
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "four")
    assert memory_budget(automatic) == 512 << 20
    monkeypatch.setattr(machine, "_memory_limit", lambda: 1 << 40)
    assert memory_budget(automatic) == 1 << 30


def test_the_budget_of_a_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_memory_limit", lambda: 8 << 30)
    assert daemon_budget(ServerSettings()) == 4 << 30
    assert daemon_budget(ServerSettings(memory_budget=ByteSize(32 << 20))) == 32 << 20
    monkeypatch.setattr(machine, "_memory_limit", lambda: 64 << 20)
    assert daemon_budget(ServerSettings()) == 64 << 20
    with pytest.raises(ConfigError, match=r"'server.memory_budget' is less than the 8 MiB"):
        validate(DaemonSettings, {"server": {"memory_budget": "1MiB"}, "datasets": {}})


def test_the_shared_memory_of_a_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_memory_limit", lambda: 8 << 30)
    assert shared_limit(ServerSettings()) == 2 << 30
    assert shared_limit(ServerSettings(shared_memory=ByteSize(0))) == 0
    described = {"server": {"shared_memory": "1GiB"}, "datasets": {"a": {"source": "x"}}}
    assert shared_limit(validate(DaemonSettings, described).server) == 1 << 30
    with pytest.raises(ConfigError, match=r"'server.shared_memory'"):
        validate(DaemonSettings, {**described, "server": {"shared_memory": "-1"}})


def test_the_memory_limit_is_a_number_of_this_machine() -> None:
    assert 1 << 26 < machine._memory_limit() < 1 << 50


SERVICE = "system.slice/streamrec.service"
JOB = "slurm/uid_7/job_9/step_0"


@pytest.mark.parametrize(
    ("files", "membership", "found"),
    [
        ({"memory.max": "1048576\n"}, "0::/\n", 1 << 20),
        ({"memory/memory.limit_in_bytes": "2097152\n"}, "4:memory:/docker/5f0c\n", 2 << 20),
        ({"memory.max": "max\n"}, "0::/\n", None),
        ({"memory.max": f"{1 << 62}\n"}, "0::/\n", None),
        ({}, "", None),
        ({f"{SERVICE}/memory.max": "1048576\n"}, f"0::/{SERVICE}\n", 1 << 20),
        ({f"{SERVICE}/memory.high": "1048576\n"}, f"0::/{SERVICE}\n", 1 << 20),
        (
            {f"{SERVICE}/memory.max": "max\n", "system.slice/memory.max": "4194304\n"},
            f"0::/{SERVICE}\n",
            4 << 20,
        ),
        (
            {f"memory/{JOB}/memory.limit_in_bytes": "2097152\n", "memory/x": ""},
            f"9:cpu,cpuacct:/\n4:memory:/{JOB}\n0::/init.scope\n",
            2 << 20,
        ),
        ({"memory.max": "1048576\n", "other/memory.max": "5\n"}, "0::/../other\n", 1 << 20),
    ],
    ids=[
        "a container",
        "a container of v1",
        "no limit",
        "beyond all memory",
        "no cgroup",
        "a service",
        "throttled",
        "the slice of a service",
        "a job of v1",
        "outside of the namespace",
    ],
)
def test_a_cgroup_has_less_than_its_machine(
    files: dict[str, str],
    membership: str,
    found: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _lay_out(tmp_path, files, membership)
    monkeypatch.setattr("os.sysconf", lambda name: {"SC_PAGE_SIZE": 4096}.get(name, 1 << 20))
    assert machine._memory_limit() == (found or 4096 << 20)


def _lay_out(root: Path, files: dict[str, str], membership: str) -> None:
    """Write the files of cgroups, and the file that says which of them are those of a process."""
    for name, text in {**files, "memberships": membership}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_the_longest_record_is_as_long_as_the_budget_or_as_is_set() -> None:
    values = {"source": "x", "memory_budget": "64MiB"}
    assert record_limit(validate(DatasetSettings, values)) == 64 << 20
    values["max_record_bytes"] = "1GiB"
    assert record_limit(validate(DatasetSettings, values)) == 1 << 30


@pytest.mark.parametrize(
    ("values", "limits"),
    [
        ({"memory_budget": "8MiB"}, (48 << 20, 48 << 20)),
        ({"memory_budget": "192MiB"}, (64 << 20, 64 << 20)),
        ({"memory_budget": "1GiB"}, ((1 << 30) // 3, 89_478_485)),
        ({"max_bytes": "1MiB"}, (1 << 20, 1 << 20)),
        ({"max_bytes": "1MiB", "max_pixels": 7}, (1 << 20, 7)),
    ],
)
def test_the_largest_batch_and_picture(values: dict[str, object], limits: tuple[int, int]) -> None:
    settings = validate(DatasetSettings, {"source": "x", **values})
    assert (machine.batch_limit(settings), machine.pixel_limit(settings)) == limits


def test_the_largest_batch_of_a_daemon() -> None:
    server = validate(ServerSettings, {"memory_budget": "512MiB"})
    assert machine.daemon_batch_limit(server) == machine.daemon_batch_limit(server) == 128 << 20
    assert machine.daemon_pixel_limit(server) == 89_478_485
    server = validate(ServerSettings, {"memory_budget": "8MiB"})
    assert machine.daemon_batch_limit(server) == machine.daemon_pixel_limit(server) == 48 << 20
    server = validate(ServerSettings, {"max_bytes": 9, "max_pixels": 8})
    assert (machine.daemon_batch_limit(server), machine.daemon_pixel_limit(server)) == (9, 8)


@pytest.fixture(autouse=True)
def four_cores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "CGROUPS", tmp_path)
    monkeypatch.setattr(machine, "MEMBERSHIPS", tmp_path / "memberships")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2, 4, 6})


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
        ({f"{SERVICE}/cpu.max": "200000 100000\n", "system.slice/cpu.max": "max 100000\n"}, 2),
        ({f"{SERVICE}/cpu.max": "300000 100000\n", "system.slice/cpu.max": "100000 100000\n"}, 1),
        (
            {f"cpu/{JOB}/cpu.cfs_quota_us": "200000", f"cpu/{JOB}/cpu.cfs_period_us": "100000"},
            2,
        ),
    ],
)
def test_the_cores_of_the_affinity_and_the_quota(
    files: dict[str, str], usable: int, tmp_path: Path
) -> None:
    _lay_out(tmp_path, files, f"3:cpu,cpuacct:/{JOB}\n0::/{SERVICE}\n")
    assert machine.usable_cores() == usable


def test_where_there_is_no_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert machine.usable_cores() == 1


def test_the_number_of_workers() -> None:
    assert machine.worker_count(ServerSettings()) == 1
    assert machine.worker_count(ServerSettings(workers=3)) == 3
    assert machine.worker_count(ServerSettings(workers="auto")) == 4


@pytest.mark.parametrize(
    ("cores_here", "ranks", "number"),
    [(1, 1, 0), (2, 1, 0), (4, 1, 1), (8, 1, 3), (8, 2, 1), (96, 1, 4)],
)
def test_the_number_of_fetch_processes(
    monkeypatch: pytest.MonkeyPatch, cores_here: int, ranks: int, number: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores_here)))
    monkeypatch.setattr(machine, "local_ranks", lambda: ranks)
    settings = DatasetSettings(source="x", fetch_processes="auto")
    assert machine.fetch_process_count(settings) == number


def test_a_number_of_fetch_processes_is_that_number(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.fetch_process_count(DatasetSettings(source="x")) == 0
    assert machine.fetch_process_count(DatasetSettings(source="x", fetch_processes=7)) == 7
    monkeypatch.delattr(os, "memfd_create", raising=False)
    assert machine.fetch_process_count(DatasetSettings(source="x", fetch_processes="auto")) == 0


def test_fetch_processes_need_an_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "usable_cores", lambda: 16)
    settings = DatasetSettings(source="x", fetch_processes="auto")
    assert machine.fetch_process_count(settings) > 0
    monkeypatch.setattr(sys, "executable", "")
    assert machine.fetch_process_count(settings) == 0
