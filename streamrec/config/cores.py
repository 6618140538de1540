"""The cores that this process may use."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from streamrec.config.launchers import local_ranks
from streamrec.surroundings import allowed_cores, has_interpreter

if TYPE_CHECKING:
    from streamrec.config import DatasetSettings
    from streamrec.config.server_settings import ServerSettings

CGROUP = Path("/sys/fs/cgroup")


def worker_count(settings: ServerSettings) -> int:
    """Return the number of a daemon's worker processes: the setting, or the cores to use."""
    return usable_cores() if settings.workers == "auto" else settings.workers


MOST_FETCH_PROCESSES = 4
"""As many as one orderer can follow: each brings 1 to 2 GB/s, and it scans 4 to 8."""


def fetch_process_count(settings: DatasetSettings) -> int:
    """Return the number of fetch processes: the setting, or fewer than half of this rank's cores.

    The other half is for the orderer, for decoding threads and for the trainer.
    """
    if settings.fetch_processes != "auto":
        return settings.fetch_processes
    if not hasattr(os, "memfd_create") or not has_interpreter():  # none can be started here
        return 0
    cores = usable_cores() // local_ranks()
    return max(0, min(MOST_FETCH_PROCESSES, cores // 2 - 1))


def usable_cores() -> int:
    """Return the number of cores of the affinity mask, or fewer by the cgroup's quota (v2, v1).

    A quota of one and a half cores is one: two processes would be stopped in turn.
    """
    cores, quota = allowed_cores(), _quota()
    return cores if quota is None else max(1, min(cores, int(quota)))


def _quota() -> float | None:
    """Return the cores that the cgroup may use at a time; ``None``: there is no limit."""
    try:
        both = (CGROUP / "cpu.max").read_text().split()
    except OSError:
        both = [_number("cpu.cfs_quota_us"), _number("cpu.cfs_period_us")]
    if len(both) != 2 or not all(number.isdigit() and int(number) for number in both):
        return None  # "max", or -1
    # Microseconds of CPU time in each period, in both versions.
    quota, period = map(int, both)
    return quota / period


def _number(name: str) -> str:
    try:
        return (CGROUP / "cpu" / name).read_text().strip()
    except OSError:
        return ""
