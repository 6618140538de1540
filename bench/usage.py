"""CPU time and memory of processes, from Linux's ``/proc``; standard library only."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

TICKS = os.sysconf("SC_CLK_TCK")


class Usage(NamedTuple):
    """CPU time and memory of a process, all its threads included."""

    cpu_seconds: float
    """User and system time, in ticks of usually 10 ms."""
    peak_megabytes: float
    """Largest resident set; ``ru_maxrss`` would begin with the parent's."""


def usage(pid: int) -> Usage:
    """Return the usage of a running process since its start."""
    fields = _stat(pid)
    return Usage((int(fields[11]) + int(fields[12])) / TICKS, _status_megabytes(pid, "VmHWM:"))


def helpers_usage(pid: int) -> Usage:
    """Return the usage of all processes that a process has started.

    Processes that have ended count once they have been waited for, and only for the CPU time. The
    memory is the sum of the peaks: memory that is shared after a fork counts for each process.
    """
    found = children(pid)
    usages = [usage(child) for child in found]
    cpu = sum(one.cpu_seconds for one in usages) + sum(map(_reaped_cpu_seconds, [pid, *found]))
    return Usage(cpu, sum(one.peak_megabytes for one in usages))


def _reaped_cpu_seconds(pid: int) -> float:
    fields = _stat(pid)
    return (int(fields[13]) + int(fields[14])) / TICKS


def resident_megabytes(pid: int) -> float:
    """Return the resident set of a running process."""
    return _status_megabytes(pid, "VmRSS:")


def proportional_megabytes(pid: int) -> float:
    """Return the memory of a running process; of what it shares with others, its part."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return _kilobytes(rollup, "Pss:") * 1024 / 1e6


def descriptors(pid: int) -> int:
    """Return the number of descriptors that a running process has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def threads(pid: int) -> int:
    """Return the number of threads of a running process."""
    return int(_stat(pid)[17])


def tree(pid: int) -> list[int]:
    """Return the ids of a process and of all that descend from it."""
    return [pid, *(one for child in children(pid) for one in tree(child))]


def _status_megabytes(pid: int, name: str) -> float:
    return _kilobytes(Path(f"/proc/{pid}/status").read_text(), name) * 1024 / 1e6


def _kilobytes(text: str, name: str) -> int:
    line = next(line for line in text.splitlines() if line.startswith(name))
    return int(line.split()[1])


def children(pid: int) -> list[int]:
    """Return the ids of the running processes that a process has started."""
    return [int(entry.name) for entry in Path("/proc").glob("[0-9]*") if _parent(entry.name) == pid]


def _parent(pid: str) -> int | None:
    try:
        return int(_stat(pid)[1])
    except OSError:  # it has ended meanwhile
        return None


def _stat(pid: int | str) -> list[str]:
    """Return the fields of proc_pid_stat(5) from the third on; the second may hold spaces."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
